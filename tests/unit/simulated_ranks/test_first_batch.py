"""The warning that ranks begin with the same batch; nothing of the data is lost by it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import _first_batch, callbacks, world
from tfring.optimizer import DistributedOptimizer


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told once is told again."""
    monkeypatch.setattr(_first_batch, "_told", set())


@pytest.fixture
def ranks(ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """As elsewhere, with the comparison on."""

    def make(size: int) -> Any:
        simulation = ranks(size)
        monkeypatch.setattr(world.settings(), "check_batches", True)
        return simulation

    return make


def contents(dataset: Any) -> list[Any]:
    return [tf.nest.map_structure(lambda t: np.asarray(t).tolist(), e) for e in dataset]


@pytest.mark.parametrize(
    ("starts", "told"),
    [
        ([0, 0, 0], "ranks 0, 1 and 2."),
        ([0, 5, 5, 0], "ranks 0 and 3; ranks 1 and 2."),
        ([0, 1, 2], None),
    ],
)
def test_ranks_with_the_same_batch_are_named_once(
    ranks: Callable[..., Any], caplog: pytest.LogCaptureFixture, starts: list[int], told: str
) -> None:
    def train(rank: int) -> list[Any]:
        data = tf.data.Dataset.range(starts[rank], starts[rank] + 3)
        return [contents(_first_batch.compared(iter(data), 9)) for _ in range(2)]

    with caplog.at_level(logging.WARNING, "tfring"):
        seen = ranks(len(starts)).run(train)
    assert seen == [[[s, s + 1, s + 2]] * 2 for s in starts]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (told is not None)
    assert all(f"The first batch is the same on {told} Ranks that" in m for m in messages)


KINDS = {
    "dict": lambda: {"a": tf.range(6), "b": tf.cast(tf.range(6), tf.float16)},
    "strings": lambda: tf.constant(["a", "bc", "d", "e", "f", "g"]),
    "ragged": lambda: tf.ragged.constant([[1], [], [2, 3], [4], [5], [6]]),
    "tuple": lambda: (tf.range(6), (tf.ones((6, 2), tf.bfloat16), tf.range(6) > 2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_elements_and_their_specs_stay(ranks: Callable[..., Any], kind: str) -> None:
    data = tf.data.Dataset.from_tensor_slices(KINDS[kind]()).batch(4)

    def train(_: int) -> Any:
        again = _first_batch.compared(iter(data), 9)
        return again.element_spec, [repr(element) for element in again]

    expected = data.element_spec, [repr(element) for element in data]
    assert ranks(2).run(train) == [expected] * 2


def test_no_more_is_read_than_asked_for(ranks: Callable[..., Any]) -> None:
    def train(_: int) -> tuple[list[Any], list[Any]]:
        iterator = iter(tf.data.Dataset.range(5))
        return contents(_first_batch.compared(iterator, 2)), contents(iterator)

    assert ranks(2).run(train) == [([0, 1], [2, 3, 4])] * 2


def test_sparse_elements_stay(ranks: Callable[..., Any]) -> None:
    data = tf.data.Dataset.from_tensors(tf.sparse.from_dense([[1, 0], [0, 2]])).repeat(2)

    def train(_: int) -> list[Any]:
        again = _first_batch.compared(iter(data), 9)
        return [tf.sparse.to_dense(element).numpy().tolist() for element in again]

    assert ranks(2).run(train) == [[[[1, 0], [0, 2]]] * 2] * 2


def test_a_rank_without_data_is_no_matter(
    ranks: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    data = [tf.data.Dataset.range(0), tf.data.Dataset.range(2)]
    seen = ranks(2).run(lambda rank: contents(_first_batch.compared(iter(data[rank]), 9)))
    assert seen == [[], [0, 1]]
    assert caplog.records == []


def test_off_on_one_rank_leaves_nobody_waiting(
    ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    simulation = ranks(2)
    settings = world.settings()

    def of_rank() -> Any:
        return type(settings)(**{**vars(settings), "check_batches": simulation.rank == 1})

    monkeypatch.setattr(world, "settings", of_rank)
    data = tf.data.Dataset.range(2)
    seen = simulation.run(lambda _: contents(_first_batch.compared(iter(data), 9)))
    assert seen == [[0, 1], [0, 1]]
    assert caplog.records == []


@pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("built", [True, False], ids=["built", "not built"])
def test_fit_trains_on_every_batch_and_is_traced_once(
    ranks: Callable[..., Any], caplog: pytest.LogCaptureFixture, eagerly: bool, built: bool
) -> None:
    traces: list[int] = []

    class Counting(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traces.append(1)
            return x

    def train(rank: int) -> tuple[float, int]:
        layers = [Counting(), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        model = keras.Sequential([keras.Input((1,)), *layers] if built else layers)
        model.compile(
            DistributedOptimizer(keras.optimizers.SGD(1.0)),
            loss=lambda y, p: keras.ops.mean(p),
            run_eagerly=eagerly,
            steps_per_execution=1 if eagerly else 2,
        )
        x = np.array([[1.0], [2.0], [4.0], [8.0]], "float32")
        data = tf.data.Dataset.from_tensor_slices((x, x)).batch(1)
        model.fit(data, verbose=0, callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)])
        return float(model.get_weights()[0][0, 0]), int(model.optimizer.iterations)

    with caplog.at_level(logging.WARNING, "tfring"):
        assert ranks(2).run(train) == [(-15.0, 4)] * 2
    assert [r.getMessage()[:48] for r in caplog.records] == [
        "The first batch is the same on ranks 0 and 1. Ra"
    ]
