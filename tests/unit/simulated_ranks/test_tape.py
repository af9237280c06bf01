"""DistributedGradientTape over simulated ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring.constants import Sum
from tfring.tape import DistributedGradientTape

GRAPH = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def run(sim: Any, body: Any, graph: bool) -> list[Any]:
    def whole(rank: int) -> Any:
        w = tf.Variable(3.0)
        call = lambda: body(rank, w)  # noqa: E731
        return tf.nest.map_structure(float, (tf.function(call) if graph else call)())

    return sim.run(whole)


@GRAPH
def test_single_source(ranks: Any, graph: bool) -> None:
    def body(rank: int, w: Any) -> Any:
        with DistributedGradientTape(tf.GradientTape()) as tape:
            loss = w * (1.0 + rank)
        return tape.gradient(loss, w)

    assert run(ranks(2), body, graph) == [1.5, 1.5]


@GRAPH
def test_nested_sources_of_every_kind(ranks: Any, graph: bool) -> None:
    kv = [keras.Variable(1.0), keras.Variable(1.0)]

    def body(rank: int, w: Any) -> Any:
        x = tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = w * (1.0 + rank) + 2.0 * x + kv[rank] * 4.0
        return DistributedGradientTape(tape).gradient(loss, {"w": w, "rest": [x, kv[rank]]})

    assert run(ranks(2), body, graph) == [{"w": 1.5, "rest": [2.0, 4.0]}] * 2


@GRAPH
def test_persistent(ranks: Any, graph: bool) -> None:
    def body(rank: int, w: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            one, two = w * (1.0 + rank), w * w
        tape = DistributedGradientTape(tape, op=Sum)
        return tape.gradient(one, w), tape.gradient(two, w)

    assert run(ranks(2), body, graph) == [(3.0, 12.0)] * 2


def test_output_gradients_and_unconnected(ranks: Any) -> None:
    def body(rank: int, w: Any) -> Any:
        other = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = w * (1.0 + rank)
        return DistributedGradientTape(tape).gradient(
            loss,
            [w, other],
            output_gradients=tf.constant(2.0),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )

    assert run(ranks(2), body, False) == [[3.0, 0.0]] * 2


def test_none(ranks: Any) -> None:
    def body(rank: int) -> Any:
        a, b, c = tf.Variable(1.0), tf.Variable(1.0), tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = a * 2.0 + (b * 4.0 if rank == 0 else 0.0)
        return DistributedGradientTape(tape).gradient(loss, [a, b, c])

    for a, b, c in ranks(2).run(body):
        assert (float(a), float(b), c) == (2.0, 2.0, None)


def test_sparse(ranks: Any) -> None:
    def body(rank: int) -> Any:
        table = tf.Variable(np.zeros((4, 1), "float32"))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [[0, 1, 1], [1, 3]][rank]))
        gradient = DistributedGradientTape(tape).gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        assert len(set(gradient.indices.numpy())) == len(gradient.indices)
        return tf.convert_to_tensor(gradient).numpy().ravel().tolist()

    assert ranks(2).run(body) == [[0.5, 1.5, 0.0, 0.5]] * 2


def test_one_plan_for_all_steps_of_an_eager_loop(ranks: Any) -> None:
    sim = ranks(2)

    def body(rank: int) -> None:
        w = tf.Variable(1.0)
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = w * w
            DistributedGradientTape(tape).gradient(loss, w)

    sim.run(body)
    assert sim.names() == ["tape0/bucket0"] * 3


def test_delegates_to_the_tape(ranks: Any) -> None:
    ranks(1)
    x = tf.constant([1.0, 2.0])
    with DistributedGradientTape(tf.GradientTape()) as tape:
        tape.watch(x)
        y = x * x
    np.testing.assert_array_equal(tape.jacobian(y, x), np.diag([2.0, 4.0]))


def test_the_rest_of_a_tape(ranks: Any) -> None:
    ranks(1)
    frozen, x = keras.Variable(3.0, trainable=False), tf.constant(2.0)
    with DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        tape.watch([frozen, {"x": x}])
        y = frozen * x
        with tape.stop_recording():
            unseen = frozen * x
    assert tape.watched_variables() == (frozen.value,)
    assert [float(g) for g in tape.gradient(y, [frozen, x])] == [2.0, 3.0]
    assert tape.gradient(unseen, x) is None
    with tape:
        tape.reset()
        z = frozen * 2.0
    assert (tape.gradient(y, frozen), tape.gradient(z, x)) == (None, None)


def test_the_fourth_argument_may_be_horovods(ranks: Any) -> None:
    """`use_generic_names` there, which names by position always have here."""
    ranks(1)
    w, other = tf.Variable(2.0), tf.Variable(1.0)
    with DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        y = w * w
    assert float(tape.gradient(y, [w], None, True)[0]) == 4.0
    assert float(tape.gradient(y, w, use_generic_names=True)) == 4.0
    zero = tape.gradient(y, other, None, tf.UnconnectedGradients.ZERO)
    assert float(zero) == 0.0


def test_not_a_tape(ranks: Any) -> None:
    ranks(1)
    with pytest.raises(TypeError, match="`gradtape` must be"):
        DistributedGradientTape(None)
