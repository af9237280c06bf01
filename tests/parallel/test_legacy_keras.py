"""Keras 2 between real ranks. tests/end_to_end/test_legacy_keras.py starts it for Keras 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring import _keras

if not _keras.IS_LEGACY:
    pytest.skip("needs TF_USE_LEGACY_KERAS=1", allow_module_level=True)

import tf_keras as keras

import tfring.keras as hvd
from tfring import Adasum, DistributedOptimizer, _legacy_keras, _xla, _xla_keras

MEAN_RANK = (hvd.size() - 1) / 2
BATCH = 8
SAMPLES = 8 * BATCH * hvd.size()

legacy = keras.optimizers.legacy
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.05, clipnorm=0.5),
    "legacy sgd": lambda: legacy.SGD(0.1, momentum=0.9),
    "legacy adam": lambda: legacy.Adam(0.05, clipnorm=0.5),
}
EVERY = pytest.mark.parametrize("name", OPTIMIZERS)
SGD = pytest.mark.parametrize("sgd", [keras.optimizers.SGD, legacy.SGD], ids=["new", "legacy"])
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def regression() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype(np.float32)
    return x, x @ np.float32([[0], [1], [2], [3]])


def my_rows(rank: int, size: int) -> np.ndarray:
    """Batch i of one process, of `BATCH * size`, is batch i of all ranks."""
    return np.arange(SAMPLES).reshape(-1, size, BATCH)[:, rank].reshape(-1)


def model(seed: int = 1, *, built: bool = True) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((4,)), *layers] if built else layers)


def require_alike(values: Any) -> None:
    for other in hvd.allgather_object(values):
        for mine, theirs in zip(values, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def call(body: Callable[[], Any], graph: bool) -> Any:
    return (tf.function(body) if graph else body)()


def test_callbacks_are_of_the_keras_in_use() -> None:
    for name in hvd.callbacks.__all__:
        assert issubclass(getattr(hvd.callbacks, name), keras.callbacks.Callback)
    assert tf.keras.callbacks.Callback is keras.callbacks.Callback


@pytest.mark.parametrize(
    ("name", "passes", "eagerly"),
    [
        ("sgd", 2, False),
        ("adam", 1, True),
        ("legacy sgd", 1, False),
        ("legacy sgd", 2, True),
        ("legacy adam", 2, False),
    ],
)
def test_fit_is_that_of_one_process(
    rank: int, size: int, name: str, passes: int, eagerly: bool
) -> None:
    x, y = regression()
    rows = my_rows(rank, size)
    mine, whole = model(), model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[name](), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    mine.compile(optimizer, "mse", run_eagerly=eagerly)
    assert mine.optimizer is optimizer
    mine.fit(x[rows], y[rows], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    whole.compile(OPTIMIZERS[name](), "mse")
    whole.fit(x, y, batch_size=BATCH * size * passes, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(mine.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert int(optimizer.iterations) == int(whole.optimizer.iterations)
    require_alike(mine.get_weights())


@SGD
@MODES
def test_tape_and_apply_gradients(rank: int, sgd: Any, graph: bool) -> None:
    w, unused = tf.Variable([1.0, 2.0]), tf.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(sgd(1.0))

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * float(rank)
        gradients = tape.gradient(loss, [w, unused])
        optimizer.apply_gradients(zip(gradients, [w, unused], strict=True))

    call(step, graph)
    np.testing.assert_array_equal(w, np.float32([1, 2]) - MEAN_RANK)
    assert float(unused) == 1.0


@SGD
@MODES
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_with_the_tape_reduced_once(rank: int, size: int, sgd: Any, graph: bool, op: int) -> None:
    w = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(sgd(1.0), op=op)

    def step() -> None:
        with hvd.DistributedGradientTape(tf.GradientTape(), op=op) as tape:
            loss = w * float(rank)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    call(step, graph)
    assert float(w) == -MEAN_RANK * (size if op == hvd.Sum else 1)


@SGD
def test_minimize(rank: int, sgd: Any) -> None:
    w = tf.Variable(0.0)
    hvd.DistributedOptimizer(sgd(1.0)).minimize(lambda: w * float(rank), [w])
    assert float(w) == -MEAN_RANK


@SGD
@pytest.mark.parametrize("passes", [1, 2])
def test_sparse_gradients(rank: int, size: int, sgd: Any, passes: int) -> None:
    table = tf.Variable(np.zeros((4, 2), np.float32))
    optimizer = hvd.DistributedOptimizer(sgd(1.0), backward_passes_per_step=passes)
    for _ in range(passes):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [0, 1, 1] if rank == 0 else [1, 3]))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    counts = np.float32([1, 2 + size - 1, 0, size - 1])
    np.testing.assert_allclose(table, -passes / size * np.stack([counts, counts], 1), rtol=1e-6)


@SGD
@pytest.mark.parametrize("passes", [1, 2])
def test_local_variable(rank: int, size: int, sgd: Any, passes: int) -> None:
    shared, own = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(sgd(1.0), backward_passes_per_step=passes)
    optimizer.register_local_var(own)
    for _ in range(passes):
        optimizer.minimize(lambda: (shared + own) * float(rank), [shared, own])
    assert float(shared) == -passes * MEAN_RANK
    assert float(own) == pytest.approx(-passes * rank / size)


@SGD
@pytest.mark.skipif(hvd.size() & (hvd.size() - 1) != 0, reason="needs a power of two of ranks")
@MODES
def test_adasum_of_orthogonal_changes_is_their_sum(
    rank: int, size: int, sgd: Any, graph: bool
) -> None:
    w = tf.Variable(np.zeros(size, np.float32))
    optimizer = DistributedOptimizer(sgd(1.0), op=Adasum)

    def step() -> None:
        optimizer.minimize(lambda: w[rank] * (rank + 1.0), [w])

    call(step, graph)
    np.testing.assert_array_equal(w, -np.arange(1.0, size + 1))


@SGD
def test_gradients_that_are_aggregated_already_are_left_alone(rank: int, sgd: Any) -> None:
    """As the arguments of Keras say."""
    w = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(sgd(1.0))
    optimizer.apply_gradients(
        [(tf.constant(1.0 + rank), w)], experimental_aggregate_gradients=False
    )
    assert float(w) == -1.0 - rank


@SGD
@pytest.mark.parametrize("outer", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("passes", [1, 2])
def test_one_rank_overflows_under_loss_scaling(
    rank: int, sgd: Any, outer: bool, passes: int
) -> None:
    """All ranks skip the update together, and go on together."""
    w = tf.Variable(1.0)
    make = keras.mixed_precision.LossScaleOptimizer
    arguments = {"backward_passes_per_step": passes}
    if outer:
        optimizer = hvd.DistributedOptimizer(make(sgd(1.0), initial_scale=4), **arguments)
    else:
        optimizer = make(hvd.DistributedOptimizer(sgd(1.0), **arguments), initial_scale=4)

    def step(slope: float) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(w * slope)
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [w]))
        optimizer.apply_gradients([(gradients[0], w)])

    step(np.inf if rank == 0 else 1.0)
    for _ in range(passes - 1):
        step(1.0)
    assert (float(w), float(optimizer.loss_scale)) == (1.0, 2.0)
    for _ in range(passes):
        step(float(rank))
    assert (float(w), float(optimizer.loss_scale)) == (1.0 - passes * MEAN_RANK, 2.0)


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.usefixtures("mixed_float16")
@pytest.mark.parametrize("name", ["adam", "legacy sgd"])
def test_fit_with_mixed_precision(rank: int, size: int, name: str) -> None:
    """Keras puts its loss scaling around the distributed optimizer."""
    x, y = regression()
    rows = my_rows(rank, size)
    x[rows[rank]] = np.inf if rank == 0 else x[rows[rank]]
    trained = model()
    trained.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse")
    trained.fit(x[rows], y[rows], batch_size=BATCH, shuffle=False, verbose=0)
    assert _legacy_keras.is_loss_scale(trained.optimizer)
    require_alike([*trained.get_weights(), float(trained.optimizer.loss_scale)])
    assert np.isfinite(trained.get_weights()[0]).all()


@pytest.mark.parametrize(
    ("name", "built"),
    [("sgd", True), ("adam", False), ("legacy sgd", False), ("legacy adam", True)],
)
def test_callbacks(rank: int, size: int, name: str, built: bool) -> None:
    x, y = regression()
    rows = my_rows(rank, size)
    trained = model(seed=rank, built=built)
    trained.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse", metrics=["mae"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1),
        hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5**epoch, start_epoch=1),
    ]
    part = rows[: len(rows) // (rank + 1)]
    history = trained.fit(
        x[rows],
        y[rows],
        validation_data=(x[part], y[part]),
        batch_size=BATCH,
        epochs=2,
        callbacks=callbacks,
        verbose=0,
    ).history
    require_alike(trained.get_weights())
    assert all(other == history for other in hvd.allgather_object(history))
    assert history["lr"][1] == pytest.approx(0.05)
    parts = np.concatenate(hvd.allgather_object(part))
    assert history["val_loss"][1] == pytest.approx(
        trained.evaluate(x[parts], y[parts], verbose=0)[0], rel=1e-4
    )


@SGD
def test_momentum_follows_the_learning_rate(sgd: Any) -> None:
    w = tf.Variable(0.0)
    optimizer = sgd(0.1, momentum=0.9)
    optimizer.minimize(lambda: w * 1.0, [w])
    (velocity,) = _legacy_keras.velocities(optimizer)
    hvd.callbacks._learning_rate.set_rate(optimizer, 0.05, True)
    assert (float(optimizer.learning_rate), float(velocity)) == pytest.approx((0.05, -0.05))


@SGD
def test_a_schedule_is_left_to_the_optimizer(sgd: Any) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with pytest.raises(ValueError, match="schedule"):
        hvd.callbacks._learning_rate.set_rate(sgd(schedule), 0.05, True)


@EVERY
def test_state_starts_alike(rank: int, name: str) -> None:
    w = tf.Variable([1.0 + rank])
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name](), backward_passes_per_step=2)
    _legacy_keras.build(optimizer, [w])
    for variable in _legacy_keras.state_variables(optimizer):
        variable.assign(tf.cast(tf.ones_like(variable) * rank, variable.dtype))
    hvd.broadcast_variables(_legacy_keras.state_variables(optimizer), 0)
    state = [v.numpy() for v in _legacy_keras.state_variables(optimizer)]
    assert len(state) >= 4  # iterations, rate or slots, the counter and one accumulator
    require_alike(state)


@pytest.mark.many_ranks
@SGD
def test_ranks_that_differ_are_told(rank: int, sgd: Any) -> None:
    w = tf.Variable(np.zeros(2 + rank, np.float32))
    with pytest.raises(tf.errors.FailedPreconditionError, match="differs between ranks"):
        hvd.DistributedOptimizer(sgd(1.0)).minimize(lambda: tf.reduce_sum(w), [w])


@SGD
def test_a_group_of_unknown_variables(sgd: Any) -> None:
    known, stranger = tf.Variable(0.0), tf.Variable(0.0, name="stranger")
    optimizer = DistributedOptimizer(sgd(1.0), groups=[[known, stranger]])
    with pytest.raises(ValueError, match="this optimizer only.*stranger"):
        optimizer.apply_gradients([(tf.constant(1.0), known)])


@SGD
def test_passes_that_differ_are_an_error_on_all_ranks(sgd: Any) -> None:
    weight = tf.Variable(0.0)
    optimizer = DistributedOptimizer(sgd(1.0), backward_passes_per_step=1 + hvd.rank())
    with pytest.raises(tf.errors.FailedPreconditionError, match="backward_passes_per_step=2"):
        optimizer.apply_gradients([(tf.constant(1.0), weight)])


@SGD
def test_distributed_twice(sgd: Any) -> None:
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd(1.0)))


def test_what_is_for_keras_3_says_so() -> None:
    with pytest.raises(NotImplementedError, match="for Keras 3 only"):
        hvd.SyncBatchNormalization()


# Keras 2 does not save the state of its legacy optimizers in its own format.
@pytest.mark.parametrize(
    ("name", "ending"),
    [*((name, "h5") for name in OPTIMIZERS), ("sgd", "keras"), ("adam", "keras")],
)
def test_load_model_goes_on_with_the_state(
    rank: int, size: int, name: str, ending: str, tmp_path: Path
) -> None:
    x, y = regression()
    rows = my_rows(rank, size)
    trained = model()
    trained.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse")
    trained.fit(x[rows], y[rows], batch_size=BATCH, shuffle=False, verbose=0)
    path = str(tmp_path / f"model.{ending}")
    trained.save(path)
    again = hvd.load_model(path)
    assert int(again.optimizer.iterations) == int(trained.optimizer.iterations)
    for each in (trained, again):
        each.fit(x[rows], y[rows], batch_size=BATCH, shuffle=False, verbose=0)
    for a, b in zip(again.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    require_alike(again.get_weights())


def test_best_model_checkpoint(rank: int, size: int, tmp_path: Path) -> None:
    x, y = regression()
    rows = my_rows(rank, size)
    trained = model()
    trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    best.filepath = str(tmp_path / "best.keras")
    trained.fit(
        x[rows],
        y[rows],
        batch_size=BATCH,
        callbacks=[hvd.callbacks.MetricAverageCallback(), best],
        verbose=0,
    )
    assert (tmp_path / "best.keras").exists() == (rank == 0)


def one_weight(name: str) -> Any:
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    one = keras.Sequential([keras.layers.Input((1,)), layer])
    one.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), loss=lambda y, p: p * y)
    return one


@EVERY
def test_join_in_fit(rank: int, name: str) -> None:
    x = np.ones((5 if rank == 0 else 3, 1), np.float32)
    y = x if rank == 0 else 3 * x
    trained = one_weight(name)
    callbacks = [hvd.callbacks.JoinCallback(), hvd.callbacks.MetricAverageCallback()]
    trained.fit(x, y, batch_size=1, epochs=2, verbose=0, callbacks=callbacks)
    assert int(trained.optimizer.iterations) == 10
    require_alike([*trained.get_weights(), *map(np.asarray, trained.history.history["loss"])])


@EVERY
def test_what_callbacks_decide_on_one_rank(rank: int, name: str) -> None:
    class Decide(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.25
            self.model.set_weights([np.full_like(w, 7.0) for w in self.model.get_weights()])

    x = np.ones((3, 1), np.float32)
    trained = one_weight(name)
    trained.fit(x, x, batch_size=1, epochs=2, verbose=0, callbacks=[Decide()] if rank else [])
    assert int(trained.optimizer.iterations) == 3
    assert float(trained.optimizer.learning_rate) == 0.25
    assert trained.get_weights() == [[[7.0]]]


def trained(name: str, **compiled: Any) -> Any:
    x, y = regression()
    mine = my_rows(hvd.rank(), hvd.size())
    trained = model()
    trained.compile(DistributedOptimizer(OPTIMIZERS[name]()), "mse", **compiled)
    trained.fit(x[mine], y[mine], BATCH, epochs=1, shuffle=False, verbose=0)
    return trained


@pytest.mark.parametrize("name", ["adam", "legacy sgd"])
def test_fit_compiled_by_xla(name: str) -> None:
    compiled = trained(name, jit_compile=True)
    assert compiled.jit_compile
    for ours, expected in zip(compiled.get_weights(), trained(name).get_weights(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


def test_falls_back_where_xla_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_xla, "unusable", lambda: "a hook is missing")
    _xla_keras._warn.cache_clear()
    with pytest.warns(UserWarning, match="a hook is missing") as caught:
        made = [trained("sgd", jit_compile=True) for _ in range(2)]
    assert len([one for one in caught if "a hook" in str(one.message)]) == 1
    assert not any(one.jit_compile for one in made)
    require_alike(made[0].get_weights())
