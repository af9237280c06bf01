"""Callbacks in real `fit` calls over simulated ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import objects
from tfring.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from tfring.optimizer import DistributedOptimizer, state_variables

EAGERLY = pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eager"])


class Recorder(keras.callbacks.Callback):
    """Keeps the learning rate of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))


def spy_on_first_apply(optimizer: Any, seen: list[Any]) -> None:
    """Keeps the variables as they are when the first update begins."""
    stock = optimizer.apply

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        if not seen:
            seen.extend(v.numpy() for v in [*trainable_variables, *optimizer.variables])
        return stock(grads, trainable_variables)

    object.__setattr__(optimizer, "apply", apply)


# --- broadcast -----------------------------------------------------------------------------


class OwnStep(keras.Sequential):
    """A model whose `train_step` may average gradients in its own way."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def frozen() -> Any:
    layer = keras.layers.Dense(1)
    layer.trainable = False
    return keras.Sequential([layer])


@pytest.mark.parametrize(
    ("make", "wrap", "warned"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(1)]), lambda o: o, True),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), DistributedOptimizer, False),
        (
            lambda: keras.Sequential([keras.layers.Dense(1)]),
            lambda o: keras.optimizers.LossScaleOptimizer(DistributedOptimizer(o)),
            False,
        ),
        (lambda: OwnStep([keras.layers.Dense(1)]), lambda o: o, False),
        (frozen, lambda o: o, False),
    ],
    ids=["plain", "distributed", "scaled", "own step", "nothing to train"],
)
def test_optimizer_that_is_not_distributed(
    ranks: Any, caplog: pytest.LogCaptureFixture, make: Any, wrap: Any, warned: bool
) -> None:
    def body(rank: int) -> None:
        model = make()
        x = np.ones((2, 2), "float32") * rank
        model.compile(wrap(keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
        model.fit(x, x[:, :1], verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])

    with caplog.at_level("WARNING", "tfring"):
        ranks(2).run(body)
    messages = [record.getMessage() for record in caplog.records]
    assert [("each of the 2 ranks trains on its own" in m) for m in messages] == [True] * warned


@pytest.mark.parametrize("wrapped", [True, False])
def test_unbuilt_model_and_a_peer_that_has_trained(ranks: Any, wrapped: bool) -> None:
    def body(rank: int) -> Any:
        generator = np.random.default_rng(rank)
        model = keras.Sequential(
            [
                keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(rank)),
                keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(rank)),
            ]
        )
        optimizer = keras.optimizers.Adam(0.1)
        x, y = generator.random((4, 2), "float32"), generator.random((4, 1), "float32")
        if rank == 1:
            model.compile(optimizer, "mse", run_eagerly=True)
            for _ in range(3):
                model.train_on_batch(x, y)
        seen: list[Any] = []
        if wrapped:
            DistributedOptimizer(optimizer)
        model.compile(optimizer, "mse", run_eagerly=True)
        spy_on_first_apply(optimizer, seen)
        model.fit(
            x, y, batch_size=4, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(root_rank=0)]
        )
        return seen

    seen = ranks(2).run(body)
    assert len(seen[0]) == len(seen[1]) == 4 + 2 + 8
    for a, b in zip(*seen, strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(seen[1][4]) == 0  # iterations


@EAGERLY
@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
def test_all_start_from_the_root(ranks: Any, eagerly: bool, root: int, built: bool) -> None:
    def body(rank: int) -> Any:
        inputs = [keras.Input((2,))] if built else []
        initial = keras.initializers.Constant(1.0 + rank)
        model = keras.Sequential([*inputs, keras.layers.Dense(1, kernel_initializer=initial)])
        model.compile(
            DistributedOptimizer(keras.optimizers.SGD(0.0, momentum=0.9)),
            "mse",
            run_eagerly=eagerly,
        )
        x = np.ones((4, 2), "float32")
        model.fit(
            x,
            x[:, :1],
            batch_size=2,
            verbose=0,
            callbacks=[BroadcastGlobalVariablesCallback(root_rank=root)],
        )
        return model.layers[-1].kernel.numpy().ravel().tolist()

    assert ranks(2).run(body) == [[1.0 + root] * 2] * 2


def test_accumulators_and_loss_scale_are_broadcast(ranks: Any) -> None:
    def body(rank: int) -> Any:
        w = keras.Variable(0.0)
        optimizer = DistributedOptimizer(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 4.0 + rank),
            backward_passes_per_step=2,
        )
        optimizer.build([w])
        objects.broadcast_variables(state_variables(optimizer), 0)
        return float(optimizer.dynamic_scale.numpy()), len(state_variables(optimizer))

    (scale0, count0), (scale1, count1) = ranks(2).run(body)
    assert scale0 == scale1 == 4.0
    assert count0 == count1


def test_random_states_and_local_variables_stay(ranks: Any) -> None:
    def body(rank: int) -> Any:
        dropout = keras.layers.Dropout(0.5, seed=rank)
        dense = keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(rank))
        model = keras.Sequential([keras.Input((2,)), dropout, dense])
        model.compile(DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", run_eagerly=True)
        callback = BroadcastGlobalVariablesCallback(root_rank=0)
        callback.register_local_var(dense.bias)
        x = np.ones((2, 2), "float32")
        model.fit(x, x[:, :1], verbose=0, callbacks=[callback])
        return dense.bias.numpy().tolist(), dropout.seed_generator.state.numpy()[0]

    (bias0, seed0), (bias1, seed1) = ranks(2).run(body)
    assert (bias0, bias1) == ([0.0], [1.0])
    assert (seed0, seed1) == (0, 1)


def test_different_models_are_an_error(ranks: Any) -> None:
    def body(rank: int) -> None:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1 + rank)])
        model.compile(DistributedOptimizer(keras.optimizers.SGD()), "mse", run_eagerly=True)
        x = np.ones((2, 2), "float32")
        callback = BroadcastGlobalVariablesCallback(root_rank=0)
        model.fit(x, x[:, : 1 + rank], verbose=0, callbacks=[callback])

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"\(2, 1\).*\(2, 2\)"):
        ranks(2).run(body)


def test_a_model_that_cannot_be_built_is_an_error(ranks: Any) -> None:
    ranks(1)

    class Picky(keras.Model):
        def call(self, x: Any) -> Any:
            return float(tf.reduce_sum(x)) * x

    model = Picky()
    model.compile(keras.optimizers.SGD(), "mse", run_eagerly=True)
    x = np.ones((2, 2), "float32")
    with pytest.raises(ValueError, match=r"Call model.build\(input_shape\)"):
        model.fit(x, x, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])


@EAGERLY
def test_subclassed_model(ranks: Any, eagerly: bool) -> None:
    class Net(keras.Model):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(seed))

        def build(self, shape: Any) -> None:
            self.gain = self.add_weight(shape=(), initializer="zeros")
            self.dense.build(shape)

        def call(self, x: Any) -> Any:
            return self.dense(x) + self.gain

    def body(rank: int) -> Any:
        model = Net(rank)
        model.compile(DistributedOptimizer(keras.optimizers.Adam(0.0)), "mse", run_eagerly=eagerly)
        x = np.ones((2, 2), "float32")
        model.fit(x, x[:, :1], verbose=0, callbacks=[BroadcastGlobalVariablesCallback(1)])
        return model.dense.kernel.numpy().ravel().tolist(), len(model.optimizer.variables)

    assert ranks(2).run(body) == [([1.0, 1.0], 2 + 2 * 3)] * 2


def test_model_with_a_step_of_its_own(ranks: Any) -> None:
    class Pair(keras.Model):
        def __init__(self, seed: int) -> None:
            super().__init__()
            initial = keras.initializers.Constant(seed)
            self.one = keras.Sequential(
                [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer=initial)]
            )
            self.two = keras.Sequential(
                [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer=initial)]
            )

        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.two(data) - self.one(data))
            variables = self.one.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return {"loss": loss}

    def body(rank: int) -> Any:
        model = Pair(rank)
        optimizer = keras.optimizers.Adam(0.0)
        model.compile(DistributedOptimizer(optimizer, backward_passes_per_step=2))
        x = np.ones((4, 2), "float32")
        model.fit(x, batch_size=2, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(1)])
        return [float(w.numpy().sum()) for w in model.weights], len(optimizer.variables)

    assert ranks(2).run(body) == [([2.0, 0.0, 2.0, 0.0], 2 + 2 * 2)] * 2


@pytest.mark.parametrize("root", [None, -1, "0", True, 1.0])
def test_bad_root(ranks: Any, root: Any) -> None:
    ranks(1)
    with pytest.raises(ValueError, match="Received: root_rank="):
        BroadcastGlobalVariablesCallback(root)


def test_root_without_a_rank(ranks: Any) -> None:
    ranks(2)
    with pytest.raises(ValueError, match="less than the number of ranks, 2"):
        BroadcastGlobalVariablesCallback(2).on_train_begin()


# --- metrics -------------------------------------------------------------------------------


def fit_constant_model(rank: int, x: list[Any], val: list[Any], batch: int, **kwargs: Any) -> Any:
    """Loss of a sample y is y squared; returns the history and what a later callback saw."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, trainable=False)])
    model.layers[0].set_weights([np.zeros((1, 1)), np.zeros(1)])
    model.add(keras.layers.Dense(1, kernel_initializer="ones"))
    model.compile(
        DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", run_eagerly=True, **kwargs
    )
    later: list[Any] = []
    seen = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: later.append(dict(logs)))
    y, val_y = (np.sqrt(np.array(v[rank], "float32"))[:, None] for v in (x, val))
    history = model.fit(
        np.ones_like(y),
        y,
        batch_size=batch,
        shuffle=False,
        verbose=0,
        validation_data=(np.ones_like(val_y), val_y),
        callbacks=[MetricAverageCallback(), seen],
    )
    return {k: v[-1] for k, v in history.history.items()}, later[-1]


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_weighted_by_samples(ranks: Any, batch: int) -> None:
    train, val = [[2.0] * 4, [4.0] * 4], [[1.0, 1.0, 1.0], [5.0]]
    results = ranks(2).run(lambda rank: fit_constant_model(rank, train, val, batch))
    for history, later in results:
        assert history == later
        assert history["val_loss"] == pytest.approx(2.0, rel=1e-6)
        assert history["loss"] == pytest.approx(3.0, rel=1e-6)
    assert results[0] == results[1]


def test_compiled_metrics_too(ranks: Any) -> None:
    train, val = [[2.0] * 4, [4.0] * 4], [[1.0, 1.0, 1.0], [4.0]]
    results = ranks(2).run(lambda rank: fit_constant_model(rank, train, val, 4, metrics=["mae"]))
    assert results[0] == results[1]
    assert results[0][0]["val_mae"] == pytest.approx(1.25, rel=1e-6)


class _Fake:
    """A model as far as MetricAverageCallback looks at it."""

    def __init__(self, count: float) -> None:
        loss = keras.metrics.Mean(name="loss")
        loss.update_state(np.ones(int(count)))
        self.metrics = [loss]

    def get_metrics_result(self) -> dict[str, Any]:
        return {metric.name: metric.result() for metric in self.metrics}


def average(ranks: Any, logs: list[dict[str, Any]], counts: list[float]) -> list[dict[str, Any]]:
    def body(rank: int) -> dict[str, Any]:
        callback = MetricAverageCallback()
        callback._model = _Fake(counts[rank])
        mine = dict(logs[rank])
        callback.on_epoch_begin(0)
        callback.on_epoch_end(0, mine)
        return mine

    return ranks(len(logs)).run(body)


def test_a_metric_that_one_rank_lacks(ranks: Any) -> None:
    out = average(ranks, [{"loss": 1.0}, {"loss": 4.0, "extra": 7.0}], [2, 1])
    assert out == [{"loss": 2.0, "extra": 7.0}] * 2


def test_a_rank_without_samples(ranks: Any) -> None:
    out = average(ranks, [{"loss": 1.0}, {"loss": float("nan")}], [2, 0])
    assert out == [{"loss": 1.0}] * 2


def test_what_is_no_number_stays(ranks: Any) -> None:
    out = average(ranks, [{"loss": 1.0, "note": "a"}, {"loss": 3.0, "note": "b"}], [1, 1])
    assert out == [{"loss": 2.0, "note": "a"}, {"loss": 2.0, "note": "b"}]


def test_numpy_scalars_are_numbers(ranks: Any) -> None:
    out = average(ranks, [{"loss": np.float32(1.0)}, {"loss": np.array(3.0)}], [1, 1])
    assert out == [{"loss": 2.0}] * 2


# --- learning rate -------------------------------------------------------------------------


def fit_with(
    callback: Any,
    *,
    epochs: int,
    steps: int = 5,
    initial_epoch: int = 0,
    optimizer: Any = None,
) -> tuple[list[float], Any]:
    """Returns the learning rate at each update, and the model."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer or keras.optimizers.SGD(0.0), "mse")
    recorder = Recorder()
    x = np.ones((steps, 1), "float32")
    model.fit(
        x,
        x,
        batch_size=1,
        epochs=epochs,
        initial_epoch=initial_epoch,
        verbose=0,
        callbacks=[callback, recorder],
    )
    return recorder.rates, model


def test_warmup(ranks: Any) -> None:
    ranks(4)
    rates, _ = fit_with(LearningRateWarmupCallback(0.4, warmup_epochs=2), epochs=3)
    assert [rates[i] for i in (0, 5, 10, 11)] == pytest.approx([0.1, 0.25, 0.4, 0.4], rel=1e-6)
    assert np.diff(rates[:11]) == pytest.approx([0.03] * 10, rel=1e-5)


def test_warmup_of_a_later_start(ranks: Any) -> None:
    ranks(4)
    rates, _ = fit_with(LearningRateWarmupCallback(0.4, 2), epochs=4, initial_epoch=3)
    assert rates == pytest.approx([0.4] * 5, rel=1e-6)


@pytest.mark.parametrize("epochs", [0, 0.5, 1.5])
def test_warmup_ends_at_full_speed(ranks: Any, epochs: float) -> None:
    ranks(2)
    rates, _ = fit_with(LearningRateWarmupCallback(0.4, epochs), epochs=3, steps=4)
    at = int(epochs * 4)
    assert rates[at:] == pytest.approx([0.4] * (12 - at), rel=1e-6)
    assert rates[:at] == pytest.approx([0.2 + 0.2 * i / (epochs * 4) for i in range(at)], rel=1e-6)


def test_warmup_leaves_the_rate_alone_afterwards(ranks: Any) -> None:
    ranks(2)
    warmup = LearningRateWarmupCallback(0.4, 1)
    later = LearningRateScheduleCallback(0.4, 0.5, start_epoch=2)
    rates, _ = fit_with([warmup, later], epochs=4, steps=1)
    assert rates == pytest.approx([0.2, 0.4, 0.4, 0.2], rel=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"multiplier": 0.5}, [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]),
        ({"multiplier": lambda epoch: 1.0 + epoch}, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]),
        ({"multiplier": lambda e: 1.0 + e, "staircase": False}, [1.0, 1.5, 2.0, 2.5, 3.0, 3.5]),
        ({"multiplier": 0.5, "start_epoch": 1, "end_epoch": 2}, [0.3, 0.3, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_schedule(ranks: Any, kwargs: Any, expected: list[float]) -> None:
    ranks(2)
    callback = LearningRateScheduleCallback(1.0, **kwargs)
    rates, _ = fit_with(callback, epochs=3, steps=2, optimizer=keras.optimizers.SGD(0.3))
    assert rates == pytest.approx(expected, rel=1e-6)


def test_rate_is_in_the_logs(ranks: Any) -> None:
    ranks(2)
    _, model = fit_with(LearningRateScheduleCallback(1.0, 0.5), epochs=2, steps=1)
    assert model.history.history["lr"] == [1.0, 0.5]


@pytest.mark.parametrize("correct", [True, False])
def test_momentum_correction(ranks: Any, correct: bool) -> None:
    ranks(2)
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
    w = keras.Variable(0.0)
    optimizer.build([w])
    callback = LearningRateScheduleCallback(
        1.0, lambda epoch: [1.0, 0.5][epoch], momentum_correction=correct
    )
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    callback.set_model(model)
    step = tf.function(lambda: optimizer.apply([tf.constant(1.0)], [w]))
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        callback.on_train_batch_begin(0)
        step()
    # v = -1, then 0.5 * v * (0.5 / 1 if corrected) - 0.5
    assert float(w.numpy()) == (-1.75 if correct else -2.0)


def test_loss_scale_optimizer(ranks: Any) -> None:
    ranks(2)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.3))
    rates, _ = fit_with(
        LearningRateScheduleCallback(1.0, 0.5), epochs=2, steps=1, optimizer=optimizer
    )
    assert rates == [1.0, 0.5]


@pytest.mark.parametrize("callback", [LearningRateWarmupCallback, LearningRateScheduleCallback])
def test_an_optimizer_with_a_schedule_is_an_error(ranks: Any, callback: Any) -> None:
    ranks(2)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    with pytest.raises(ValueError, match="made with a learning rate schedule"):
        fit_with(callback(0.1, 1), epochs=1, optimizer=keras.optimizers.SGD(schedule))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LearningRateWarmupCallback(), "initial_lr=None"),
        (lambda: LearningRateWarmupCallback(-1.0), "initial_lr=-1.0"),
        (lambda: LearningRateWarmupCallback(1.0, -1), "warmup_epochs=-1"),
        (lambda: LearningRateScheduleCallback(None, 0.5), "initial_lr=None"),
        (lambda: LearningRateScheduleCallback(0.1), "multiplier=None"),
        (lambda: LearningRateScheduleCallback(0.1, "x"), "multiplier='x'"),
        (lambda: LearningRateScheduleCallback(0.1, 0.5, 3, 2), "start_epoch=3, end_epoch=2"),
    ],
)
def test_bad_arguments(ranks: Any, make: Any, text: str) -> None:
    ranks(1)
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("steps", [None, 0])
def test_unknown_steps_are_an_error(ranks: Any, steps: Any) -> None:
    ranks(2)
    callback = LearningRateWarmupCallback(0.4, steps_per_epoch=steps)
    callback.set_params({"steps": None})
    with pytest.raises(ValueError, match="`steps_per_epoch` must be given"):
        callback.on_train_batch_begin(0)
