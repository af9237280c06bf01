"""What callbacks decide on one rank counts for all, in Keras' own fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import _stop_wish, objects
from tfring.callbacks import (
    BroadcastGlobalVariablesCallback,
    JoinCallback,
    MetricAverageCallback,
    RootOnly,
    TrainingCheckpoint,
)
from tfring.optimizer import DistributedOptimizer

C = keras.callbacks
BATCHES = 4


class Does(keras.callbacks.Callback):
    """Calls a function with the model and what a hook got."""

    def __init__(self, hook: str, function: Callable[[Any, int], Any]) -> None:
        super().__init__()
        setattr(self, hook, lambda step, logs=None: function(self.model, step))


class Rates(keras.callbacks.Callback):
    """Keeps the learning rate of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(self.model.optimizer.learning_rate.numpy()))


class Result:
    """What a rank has after fit."""

    def __init__(self, model: Any, history: Any) -> None:
        self.weights = [w.ravel().tolist() for w in model.get_weights()]
        self.iterations = int(model.optimizer.iterations)
        self.rate = float(model.optimizer.learning_rate.numpy())
        self.logs = history.history
        self.epochs = len(history.epoch)
        self.stopped = model.stop_training


def fit(
    callbacks: list[Any],
    *,
    targets: Any = 1.0,
    rate: float = 0.0,
    epochs: int = 3,
    optimizer: Any = None,
    steps_per_execution: int = 1,
    eagerly: bool = True,
    **kwargs: Any,
) -> Result:
    """Trains w with the loss w * target, from w = 0."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = optimizer or DistributedOptimizer(keras.optimizers.SGD(rate))
    model.compile(
        optimizer,
        loss=lambda y, p: p * y,
        run_eagerly=eagerly,
        steps_per_execution=steps_per_execution,
    )
    x = np.ones((BATCHES, 1), "float32")
    y = x * np.reshape(targets, [-1, 1]).astype("float32")
    history = model.fit(
        x, y, batch_size=1, shuffle=False, epochs=epochs, verbose=0, callbacks=callbacks, **kwargs
    )
    return Result(model, history)


def on(rank: int, of: int, *callbacks: Any) -> list[Any]:
    return list(callbacks) if rank == of else []


def stop(model: Any, step: int = 0) -> None:
    model.stop_training = True


def scores(values: list[float]) -> Any:
    """Writes a metric of this rank's own into the logs, before all others."""

    class Scores(MetricAverageCallback):
        def before_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["score"] = values[epoch]
            super().before_epoch_end(epoch, logs)

    return Scores()


ORDERS = pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)


@ORDERS
def test_logs_are_those_of_all_ranks_in_every_order(ranks: Any, order: tuple[int, ...]) -> None:
    """Scores 2, 4, 4, 4 in the mean; rank 1 alone would stop one epoch earlier."""

    def body(rank: int) -> Result:
        callbacks = [
            scores([[2.0, 5.0, 6.0, 7.0], [2.0, 3.0, 2.0, 1.0]][rank]),
            C.EarlyStopping("score", mode="max", patience=2),
            C.ReduceLROnPlateau("score", mode="max", patience=1, factor=0.5),
        ]
        return fit([callbacks[i] for i in order], rate=0.5, epochs=4)

    results = ranks(2).run(body)
    for result in results:
        assert result.logs["score"] == [2.0, 4.0, 4.0, 4.0]
        assert result.epochs == 4
        assert result.rate == 0.125
        assert result.weights == results[0].weights


@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_stop_at_an_epochs_end_on_one_rank(ranks: Any, of: int, first: bool) -> None:
    def body(rank: int) -> Result:
        mine = on(rank, of, Does("on_epoch_end", lambda model, epoch: epoch == 1 and stop(model)))
        average = [MetricAverageCallback()]
        return fit(mine + average if first else average + mine)

    for result in ranks(2).run(body):
        assert (result.epochs, result.iterations, result.stopped) == (2, 2 * BATCHES, True)


@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "compiled"])
def test_stop_within_an_epoch_when_ranks_ask(ranks: Any, eagerly: bool, monkeypatch: Any) -> None:
    """They ask each other after batches 1, 2, 3; rank 1 wishes to stop after batch 1."""
    monkeypatch.setattr(_stop_wish, "FIRST_BATCH", 1)
    monkeypatch.setattr(_stop_wish, "SECONDS", 0.0)
    sim = ranks(2)

    def body(rank: int) -> Result:
        mine = on(rank, 1, Does("on_train_batch_end", lambda m, batch: batch == 1 and stop(m)))
        return fit(mine, eagerly=eagerly, rate=1.0)

    for result in sim.run(body):
        assert (result.epochs, result.iterations, result.stopped) == (1, 2, True)
        assert result.weights == [[-2.0]]
    assert sim.names().count("callbacks/stop") == 2


@pytest.mark.parametrize("steps", [1, 3])
def test_stop_within_an_epoch_before_ranks_ask(ranks: Any, steps: int) -> None:
    """The epoch is finished, and was the last one."""

    def body(rank: int) -> Result:
        mine = on(rank, 0, Does("on_train_batch_end", lambda model, batch: stop(model)))
        return fit(mine, steps_per_execution=steps, eagerly=False)

    for result in ranks(3).run(body):
        assert (result.epochs, result.iterations, result.stopped) == (1, BATCHES, True)


@pytest.mark.parametrize("everywhere", [True, False], ids=["all ranks", "one rank"])
def test_terminate_on_nan_of_one_ranks_loss(ranks: Any, everywhere: bool, monkeypatch: Any) -> None:
    """Rank 0's loss is NaN in batch 2, rank 1's not before batch 3, when the weights are."""
    monkeypatch.setattr(_stop_wish, "FIRST_BATCH", 1)
    monkeypatch.setattr(_stop_wish, "SECONDS", 0.0)

    def body(rank: int) -> Result:
        targets = [1.0, 1.0, np.nan if rank == 0 else 1.0, 1.0]
        return fit([C.TerminateOnNaN()] if everywhere or rank == 0 else [], targets=targets)

    for result in ranks(2).run(body):
        assert (result.epochs, result.iterations, result.stopped) == (1, 3, True)


def test_learning_rate_schedule_on_one_rank(ranks: Any) -> None:
    """It sets the rate as an epoch begins: its first batch has it on all ranks."""

    def body(rank: int) -> tuple[list[float], Result]:
        mine = on(rank, 1, C.LearningRateScheduler(lambda epoch: 0.5**epoch))
        rates = Rates()
        return rates.seen, fit([*mine, rates], epochs=2)

    for seen, result in ranks(2).run(body):
        assert seen == [1.0] * BATCHES + [0.5] * BATCHES
        assert result.weights == [[-1.5 * BATCHES]]


def test_the_lowest_rank_that_changed_the_rate_counts(ranks: Any) -> None:
    def body(rank: int) -> Result:
        def change(model: Any, epoch: int) -> None:
            model.optimizer.learning_rate = 0.25 * rank

        return fit([] if rank == 0 else [Does("on_epoch_end", change)], rate=1.0, epochs=1)

    assert [result.rate for result in ranks(3).run(body)] == [0.25] * 3


def test_a_schedule_of_the_optimizer_stays(ranks: Any) -> None:
    def body(rank: int) -> Result:
        schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 4, 0.5, staircase=True)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(schedule))
        mine = on(rank, 1, Does("on_epoch_end", lambda model, epoch: stop(model)))
        return fit(mine, optimizer=optimizer)

    for result in ranks(2).run(body):
        assert (result.epochs, result.rate, result.weights) == (1, 0.5, [[-float(BATCHES)]])


@pytest.mark.parametrize("of", [[0], [1], [1, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end", "on_train_end"])
def test_weights_that_callbacks_set(ranks: Any, of: list[int], hook: str) -> None:
    """All get those of the lowest rank: its number plus 1."""
    sim = ranks(3)

    def body(rank: int) -> Result:
        def change(model: Any, epoch: Any) -> None:
            model.set_weights([w * 0 + rank + 1.0 for w in model.get_weights()])

        class Change(keras.callbacks.Callback):
            def on_train_end(self, logs: Any = None) -> None:
                change(self.model, None)

        callback = Change() if hook == "on_train_end" else Does(hook, change)
        return fit([callback] if rank in of else [], epochs=1)

    assert [result.weights for result in sim.run(body)] == [[[of[0] + 1.0]]] * 3


@pytest.mark.parametrize("of", [0, 1])
def test_best_weights_are_restored_on_all_ranks(ranks: Any, of: int) -> None:
    """The first epoch is the best, after which w = -4."""

    def body(rank: int) -> Result:
        best = C.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
        return fit(on(rank, of, best), rate=1.0, epochs=5)

    for result in ranks(2).run(body):
        assert (result.epochs, result.weights) == (3, [[-4.0]])


def test_weights_that_all_set_alike_are_not_sent(ranks: Any, monkeypatch: Any) -> None:
    sim = ranks(2)
    monkeypatch.setattr(objects, "broadcast_variables", None)

    def body(rank: int) -> Result:
        def change(model: Any, epoch: int) -> None:
            model.set_weights([w * 0 + 7.0 for w in model.get_weights()])

        return fit([Does("on_epoch_end", change)], epochs=1)

    assert [result.weights for result in sim.run(body)] == [[[7.0]]] * 2


def test_momentum_that_a_callback_changes(ranks: Any) -> None:
    def body(rank: int) -> list[float]:
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.5))
        change = Does("on_epoch_end", lambda model, epoch: optimizer.momentums[0].assign([[8.0]]))
        fit(on(rank, 1, change), optimizer=optimizer, epochs=1)
        return [float(optimizer.momentums[0].numpy()[0, 0]), int(optimizer.iterations)]

    assert ranks(2).run(body) == [[8.0, BATCHES]] * 2


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"epochs": (2, 3)}, "rank 0: begin of training, epochs=2; rank 1: .* epochs=3"),
        ({"initial_epoch": (0, 1)}, "rank 0: begin of epoch 0, .* rank 1: begin of epoch 1"),
        ({"initial_epoch": (0, 3)}, "rank 0: begin of epoch 0, .* rank 1: end of training"),
        ({"steps_per_epoch": (2, 3)}, "data.shard.* rank 0: 2 batches; rank 1: 3 batches"),
    ],
    ids=["epochs", "initial epoch", "nothing to do", "batches"],
)
def test_other_epochs_or_batches_on_one_rank(ranks: Any, kwargs: dict[str, Any], text: str) -> None:
    sim = ranks(2)

    def body(rank: int) -> None:
        with pytest.raises(tf.errors.FailedPreconditionError, match=text):
            fit([], **{name: values[rank] for name, values in kwargs.items()})

    sim.run(body)


@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (MetricAverageCallback, "MetricAverageCallback"),
        (JoinCallback, "JoinCallback"),
        (lambda: BroadcastGlobalVariablesCallback(0), "BroadcastGlobalVariablesCallback"),
        (lambda: TrainingCheckpoint("unused"), "TrainingCheckpoint"),
        (lambda: RootOnly(C.CSVLogger("unused.csv")), r"RootOnly\(CSVLogger\)"),
    ],
)
def test_a_callback_that_one_rank_lacks(ranks: Any, make: Any, name: str, of: int) -> None:
    def body(rank: int) -> None:
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"rank {of}: {name}"):
            fit(on(rank, of, make()))

    ranks(2).run(body)


def test_ranks_outside_of_the_process_set_go_their_own_way(ranks: Any) -> None:
    sim = ranks(3)
    pair = sim.process_set([0, 2])

    def body(rank: int) -> Result:
        optimizer = DistributedOptimizer(keras.optimizers.SGD(0.0), process_set=pair)
        mine = on(rank, 2, Does("on_epoch_end", lambda model, epoch: stop(model)))
        return fit(mine, optimizer=optimizer)

    assert [result.epochs for result in sim.run(body)] == [1, 3, 1]


def test_join_is_not_for_process_sets(ranks: Any) -> None:
    sim = ranks(3)
    pair = sim.process_set([0, 2])

    def body(rank: int) -> None:
        optimizer = DistributedOptimizer(keras.optimizers.SGD(0.0), process_set=pair)
        with pytest.raises(ValueError, match="not for process sets"):
            fit([JoinCallback()], optimizer=optimizer)

    sim.run(body)


def test_an_optimizer_that_is_not_distributed(ranks: Any) -> None:
    def body(rank: int) -> Result:
        mine = on(rank, 1, Does("on_train_batch_end", lambda model, batch: stop(model)))
        return fit(mine, optimizer=keras.optimizers.SGD(0.0))

    assert [result.iterations for result in ranks(2).run(body)] == [3 * BATCHES, 1]


def test_a_rank_alone_stops_where_keras_does(ranks: Any) -> None:
    mine = Does("on_train_batch_end", lambda model, batch: stop(model))
    assert ranks(1).run(lambda rank: fit([mine]))[0].iterations == 1


def test_a_loop_of_ones_own_with_callbacks_on_one_rank(ranks: Any) -> None:
    def body(rank: int) -> None:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        if rank == 0:
            callbacks = C.CallbackList([C.EarlyStopping("loss")], model=model, add_history=True)
            callbacks.on_train_begin()
            callbacks.on_epoch_begin(0)
            callbacks.on_train_batch_end(0, {"loss": 1.0})
            callbacks.on_epoch_end(0, {"loss": 1.0})
            callbacks.on_train_end()

    ranks(2).run(body)


def test_a_list_within_the_list(ranks: Any) -> None:
    """Its callbacks come in the same turn, and ranks agree once."""

    def body(rank: int) -> Result:
        inner = C.CallbackList([MetricAverageCallback()])
        mine = on(rank, 1, Does("on_epoch_end", lambda model, epoch: stop(model)))
        return fit([*mine, inner], targets=float(rank), rate=1.0)

    for result in ranks(2).run(body):
        assert result.epochs == 1
        assert result.logs["loss"] == [pytest.approx(-0.375)]


def test_the_logs_at_the_end_of_training(ranks: Any) -> None:
    def body(rank: int) -> float:
        last: list[Any] = []
        seen = C.LambdaCallback(on_train_end=last.append)
        fit([seen, MetricAverageCallback()], targets=float(2 * rank), rate=1.0, epochs=1)
        return float(last[0]["loss"])

    first, second = ranks(2).run(body)
    assert first == second == pytest.approx(-1.5)
