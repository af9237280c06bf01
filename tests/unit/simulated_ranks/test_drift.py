"""Ranks whose variables are not the same: found, named, told of, mended."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import _drift, drift, objects, world
from tfring.callbacks.drift import DriftCallback
from tfring.constants import Adasum
from tfring.optimizer import DistributedOptimizer

ERROR = tf.errors.FailedPreconditionError


def _variables(*values: Any) -> list[tf.Variable]:
    return [tf.Variable(value, name=f"v{i}") for i, value in enumerate(values)]


def _caught(function: Any) -> str:
    with pytest.raises(ERROR) as caught:
        function()
    return str(caught.value)


def test_alike_is_one_small_exchange(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sim, sent = ranks(3), []
    stock = objects.allgather_object

    def gather(item: Any, **kwargs: Any) -> Any:
        sent.append(item)
        return stock(item, **kwargs)

    monkeypatch.setattr(objects, "allgather_object", gather)
    assert sim.run(lambda rank: drift.check_drift(_variables(1.0, [2, 3]))) == [[]] * 3
    assert [len(item) for item in sent] == [16, 16, 16]


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_raise_names_variable_and_ranks(ranks: Any, odd: int) -> None:
    def body(rank: int) -> str:
        variables = _variables(1.0, [2.0, 4.0 if rank == odd else 3.0], [rank == odd])
        return _caught(lambda: drift.check_drift(variables, when="after step 7"))

    texts = ranks(3).run(body)
    others = " and ".join(str(r) for r in range(3) if r != odd)
    assert (
        f"not the same after step 7: 2 of 3 differ. The first is `v1:0`: rank {odd} differs from "
        f"ranks {others}, by up to 1 where values reach 3." in texts[0]
    )
    assert len(set(texts)) == 1


def test_without_a_majority_the_lowest_rank_counts(ranks: Any) -> None:
    texts = ranks(2).run(
        lambda rank: _caught(lambda: drift.check_drift(_variables(float(rank + 1))))
    )
    assert "rank 1 differs from rank 0, by up to 1 where values reach 1" in texts[0]


@pytest.mark.parametrize(
    ("other", "hint"),
    [
        (np.float32(1.0000001), "different kinds of processors"),
        (np.float32(2), "BroadcastGlobalVariablesCallback"),
        (np.float32(np.nan), "by infinities or NaN"),
        (np.float32(-0.0), "by up to 1 where"),
    ],
)
def test_the_text_fits_the_difference(ranks: Any, other: Any, hint: str) -> None:
    def body(rank: int) -> str:
        variables = _variables(other if rank else np.float32(1))
        return _caught(lambda: drift.check_drift(variables))

    assert hint in ranks(2).run(body)[0]


def test_warn_logs_once(ranks: Any, caplog: pytest.LogCaptureFixture) -> None:
    def body(rank: int) -> Any:
        variables = _variables(1.0, float(rank))
        return drift.check_drift(variables, "warn"), float(variables[1].numpy())

    with caplog.at_level(logging.WARNING, "tfring"):
        assert ranks(2).run(body) == [(["v1:0"], 0.0), (["v1:0"], 1.0)]
    assert [record.message.count("rank 1 differs") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("values", "root"), [([5.0, 7.0, 7.0], 1), ([5.0, 7.0, 5.0], 0), ([1.0, 2.0, 3.0], 0)]
)
def test_resync_takes_the_majority(
    ranks: Any, caplog: pytest.LogCaptureFixture, values: list[float], root: int
) -> None:
    def body(rank: int) -> Any:
        variables = _variables(np.int8(1), values[rank], [True])
        named = drift.check_drift(variables, action="resync")
        return named, float(variables[1].numpy()), drift.check_drift(variables)

    with caplog.at_level(logging.WARNING, "tfring"):
        assert ranks(3).run(body) == [(["v1:0"], values[root], [])] * 3
    assert f"All ranks now have the values of rank {root}." in caplog.text


@pytest.mark.parametrize("action", _drift.ACTIONS)
def test_other_variables_always_raise(ranks: Any, action: str) -> None:
    def body(rank: int) -> str:
        variables = _variables(1.0, *[[2.0]] * rank)
        return _caught(lambda: drift.check_drift(variables, action))

    assert "rank 1 has [#1: float32 (1,)]" in ranks(2).run(body)[0]


def test_process_set_compares_its_ranks(ranks: Any) -> None:
    sim = ranks(3)
    members = sim.process_set([1, 2])

    def body(rank: int) -> Any:
        if rank == 0:
            return None
        return _caught(lambda: drift.check_drift(_variables(float(rank)), process_set=members))

    assert "rank 2 differs from rank 1" in sim.run(body)[1]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"target": [], "action": "stop"}, ValueError, "`action` must be .*action='stop'"),
        ({"target": 5}, TypeError, "`target` must be a Keras model.*target=5"),
        ({"target": [5]}, TypeError, "`target` must be"),
        ({"target": [], "process_set": 1}, TypeError, "`process_set` must be"),
    ],
)
def test_wrong_arguments(ranks: Any, arguments: Any, error: Any, text: str) -> None:
    ranks(2)
    with pytest.raises(error, match=text):
        drift.check_drift(**arguments)


def _model(optimizer: Any = None) -> Any:
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3, name="first"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1, name="last"),
        ]
    )
    model.set_weights([np.full(w.shape, 0.5, "float32") for w in model.get_weights()])
    optimizer = DistributedOptimizer(keras.optimizers.Adam()) if optimizer is None else optimizer
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def _data(rank: int, count: int = 8) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(rank).standard_normal((count, 2)).astype("float32")
    return x, x[:, :1]


def test_what_each_rank_has_of_its_own_is_left_out(ranks: Any) -> None:
    def body(rank: int) -> Any:
        optimizer = DistributedOptimizer(
            keras.optimizers.Adam(), backward_passes_per_step=3, average_aggregated_gradients=True
        )
        model = _model(optimizer)
        optimizer.register_local_var(model.get_layer("last").kernel)
        model.fit(*_data(rank), batch_size=2, verbose=0)  # moving statistics, half a sum
        model.get_layer("last").kernel.assign([[rank]] * 3)
        return drift.check_drift(model), drift.check_drift(model.optimizer)

    assert ranks(2).run(body) == [([], [])] * 2


def test_sums_that_keras_has_not_completed_are_left_out(ranks: Any) -> None:
    def body(rank: int) -> Any:
        model = _model(DistributedOptimizer(keras.optimizers.SGD(gradient_accumulation_steps=3)))
        model.fit(*_data(rank), batch_size=2, verbose=0)
        return drift.check_drift(model)

    assert ranks(2).run(body) == [[]] * 2


def test_state_of_adasum_is_left_out(ranks: Any) -> None:
    def body(rank: int) -> Any:
        model = _model(DistributedOptimizer(keras.optimizers.Adam(), op=Adasum))
        model.fit(*_data(rank), batch_size=4, verbose=0)
        return drift.check_drift(model)

    assert ranks(2).run(body) == [[]] * 2


def test_moving_statistics_on_demand(ranks: Any) -> None:
    def body(rank: int) -> Any:
        model = _model()
        model.fit(*_data(rank), verbose=0)
        return drift.check_drift(model, "warn", non_trainable=True)

    names = ranks(2).run(body)[0]
    assert [name.split("/")[-1] for name in names] == ["moving_mean", "moving_variance"]


def test_slots_are_compared(ranks: Any) -> None:
    def body(rank: int) -> Any:
        model = _model()
        model.fit(*_data(rank), verbose=0)
        if rank == 1:
            model.optimizer._momentums[0].assign_add(np.ones((2, 3), "float32"))
        return drift.check_drift(model, "warn")

    ((name,), _) = ranks(2).run(body)
    assert name.endswith("first_kernel_momentum")


class Nudge(keras.callbacks.Callback):
    """Changes a weight after a batch, on one rank."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._at = batch
        self.batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)
        if batch == self._at:
            self.model.get_layer("first").bias.assign_add([1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("every", "seen", "when"),
    [
        (2, [0, 1, 2, 3], "after batch 3 of epoch 0"),
        (1, [0, 1, 2], "after batch 2 of epoch 0"),
        (5, [0, 1, 2, 3, 0], "after batch 0 of epoch 1"),
        (None, [0, 1, 2, 3], "at the end of epoch 0"),
    ],
)
def test_callback_looks_every_so_many_steps(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, every: int | None, seen: list[int], when: str
) -> None:
    sim = ranks(2)
    monkeypatch.setattr(world.settings(), "drift", "off")

    def body(rank: int) -> Any:
        model = _model()
        nudge = Nudge(2 if rank == 1 else -1)
        callbacks = [nudge, DriftCallback(every)]
        text = _caught(
            lambda: model.fit(*_data(rank), batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
        )
        return nudge.batches, text

    result = sim.run(body)
    assert [batches for batches, _ in result] == [seen] * 2
    assert f"not the same {when}" in result[0][1]
    assert "/first/" in result[0][1].split("`")[1]


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_callback_checks_every(every: Any) -> None:
    with pytest.raises(ValueError, match="`every` must be a positive number of steps"):
        DriftCallback(every)


def test_callback_checks_action() -> None:
    with pytest.raises(ValueError, match="`action` must be"):
        DriftCallback(action="fix")


def _fit_apart(ranks: Any, monkeypatch: pytest.MonkeyPatch, setting: str) -> list[Any]:
    """Two ranks, one of which has other weights; the names of epochs' ends and the weights."""
    sim = ranks(2)
    monkeypatch.setattr(world.settings(), "drift", setting)

    def body(rank: int) -> Any:
        model = _model()
        if rank == 1:
            model.get_layer("first").bias.assign([3.0, 0.5, 0.5])
        error = ""
        try:
            model.fit(*_data(rank), batch_size=4, epochs=2, verbose=0)
        except ERROR as caught:
            error = str(caught)
        return error, model.get_layer("first").bias.numpy().tobytes()

    return sim.run(body)


def test_fit_raises_at_the_end_of_the_first_epoch(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _), (second, _) = _fit_apart(ranks, monkeypatch, "raise")
    assert "not the same at the end of epoch 0: 1 of" in first
    assert "/first/bias`: rank 1 differs from rank 0, by up to 2.5" in first
    assert first == second


@pytest.mark.parametrize(("setting", "warnings"), [("warn", 2), ("resync", 1), ("off", 0)])
def test_fit_does_what_the_setting_says(
    ranks: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    setting: str,
    warnings: int,
) -> None:
    with caplog.at_level(logging.WARNING, "tfring"):
        (error, ours), (_, theirs) = _fit_apart(ranks, monkeypatch, setting)
    assert error == ""
    assert (ours == theirs) == (setting == "resync")
    assert sum("not the same" in record.message for record in caplog.records) == warnings


def test_what_callbacks_change_is_no_drift(ranks: Any) -> None:
    class Changes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.get_layer("first").bias.assign([7.0] * 3)

    def body(rank: int) -> Any:
        model = _model()
        callbacks = [Changes()] if rank == 1 else []
        model.fit(*_data(rank), verbose=0, callbacks=callbacks)
        return model.get_layer("first").bias.numpy().tolist()

    assert ranks(2).run(body) == [[7.0] * 3] * 2
