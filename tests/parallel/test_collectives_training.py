"""Optimizers and tapes with local variables or Adasum, for any number of ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = [pytest.mark.many_ranks, pytest.mark.timeout(120)]
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def call(function: Any, graph: bool) -> Any:
    return (tf.function(function) if graph else function)()


@MODES
@pytest.mark.parametrize("scale", [True, False])
def test_local_variables(graph: bool, scale: bool) -> None:
    own, shared = keras.Variable(np.zeros(hvd.rank() + 1, "float32")), keras.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), scale_local_gradients=scale)
    optimizer.register_local_var(own)
    optimizer.build([own, shared])

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = (tf.reduce_sum(own) + shared) * (1.0 + hvd.rank())
        optimizer.apply(tape.gradient(loss, [own, shared]), [own, shared])

    call(step, graph)
    mine = (1.0 + hvd.rank()) / (hvd.size() if scale else 1)
    assert own.numpy() == pytest.approx(np.full(hvd.rank() + 1, -mine))
    assert float(shared.numpy()) == -(1.0 + np.mean(range(hvd.size())))


@MODES
def test_infinity_in_a_local_gradient_stops_all_ranks(graph: bool) -> None:
    own, shared = keras.Variable(0.0), keras.Variable(0.0)
    distributed = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    distributed.register_local_var(own)
    optimizer = keras.optimizers.LossScaleOptimizer(distributed, initial_scale=4.0)
    optimizer.build([own, shared])
    gradient = tf.constant(np.inf if hvd.rank() == hvd.size() - 1 else 4.0, tf.float32)
    call(lambda: optimizer.apply([gradient, tf.constant(4.0)], [own, shared]), graph)
    assert float(optimizer.dynamic_scale.numpy()) == 2.0
    assert (float(own.numpy()), float(shared.numpy())) == (0.0, 0.0)


@pytest.mark.parametrize("run_eagerly", [True, False], ids=["eager", "graph"])
def test_partial_optimizer_in_fit(run_eagerly: bool) -> None:
    own, shared = (
        keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)
    )
    model = keras.Sequential([own, shared])
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.5), local_layers=[own])
    model.compile(optimizer, lambda _, y: keras.ops.mean(y), run_eagerly=run_eagerly)
    x = np.full((1, 1), 1.0 + hvd.rank(), "float32")
    model.fit(x, x, verbose=0)
    mean = 1.0 + np.mean(range(hvd.size()))
    assert float(shared.kernel.numpy()[0, 0]) == pytest.approx(1.0 - 0.5 * mean)
    assert float(own.kernel.numpy()[0, 0]) == pytest.approx(1.0 - 0.5 * x[0, 0] / hvd.size())


@MODES
def test_partial_tape(graph: bool) -> None:
    own, shared = (
        keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)
    )
    model = keras.Sequential([keras.Input((1,)), own, shared])

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = model(tf.fill((1, 1), 1.0 + hvd.rank()))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers={own})
        local, everywhere = tape.get_local_and_global_gradients(loss, model.trainable_weights)
        return [gradient for _, gradient in (*local, *everywhere)]

    mine, mean = call(gradients, graph)
    assert float(mine[0, 0]) == pytest.approx((1.0 + hvd.rank()) / hvd.size())
    assert float(mean[0, 0]) == 1.0 + np.mean(range(hvd.size()))


def adasum(vectors: list[np.ndarray]) -> np.ndarray:
    """Maleki et al., arXiv:2006.02924: pairs, then pairs of pairs."""
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    a, b = adasum(vectors[:half]), adasum(vectors[half:])
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


IS_POWER_OF_TWO = hvd.size() & (hvd.size() - 1) == 0
PAIRED = pytest.mark.skipif(not IS_POWER_OF_TWO, reason="needs a power of two of ranks")


@PAIRED
@MODES
def test_adasum_optimizer(graph: bool) -> None:
    gradients = np.random.default_rng(3).normal(size=(hvd.size(), 5, 7))
    w = keras.Variable(np.zeros(7, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), op=hvd.Adasum)
    optimizer.build([w])
    step = lambda gradient: optimizer.apply([gradient], [w])  # noqa: E731
    step = tf.function(step) if graph else step
    expected, velocity = np.zeros(7), np.zeros((hvd.size(), 7))
    for i in range(5):
        step(tf.constant(gradients[hvd.rank(), i], tf.float32))
        velocity = 0.9 * velocity - 0.1 * gradients[:, i]
        expected = expected + adasum(list(velocity))
        np.testing.assert_allclose(w, expected, rtol=1e-4, atol=1e-6)
    bits = w.numpy().tobytes()
    assert hvd.allgather_object(bits) == [bits] * hvd.size()


@PAIRED
@MODES
def test_adasum_tape(graph: bool) -> None:
    gradients = np.random.default_rng(4).normal(size=(hvd.size(), 6))
    w = tf.Variable(np.zeros(6))

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * gradients[hvd.rank()])
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, w)

    np.testing.assert_allclose(call(gradient, graph), adasum(list(gradients)), rtol=1e-9)


@PAIRED
def test_adasum_in_fit_with_mixed_precision() -> None:
    model = keras.Sequential([keras.layers.Dense(3, dtype="mixed_float16"), keras.layers.Dense(1)])
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=4.0)
    model.compile(hvd.DistributedOptimizer(scaled, op=hvd.Adasum), "mse")
    generator = np.random.default_rng(hvd.rank())
    x = generator.normal(size=(32, 4)).astype("float32")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    losses = model.fit(x, x[:, :1], 8, 6, callbacks=[first], verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    bits = [w.tobytes() for w in model.get_weights()]
    assert hvd.allgather_object((bits, int(scaled.iterations))) == [(bits, 24)] * hvd.size()


@pytest.mark.skipif(IS_POWER_OF_TWO, reason="needs another number of ranks")
def test_adasum_of_another_number_of_ranks() -> None:
    with pytest.raises(ValueError, match=f"power of two.*{hvd.size()} ranks"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Adasum)
    with pytest.raises(ValueError, match=f"power of two.*{hvd.size()} ranks"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum)
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == hvd.size()


@MODES
def test_averages_are_those_of_the_ranks_that_have_not_joined(graph: bool) -> None:
    """Rank 0 has 5 batches with gradient 1, the others 3 with gradient 3."""
    mine, steps = (1.0, 5) if hvd.rank() == 0 else (3.0, 3)
    w = keras.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), gradient_predivide_factor=2.0)
    optimizer.build([w])
    step = lambda: optimizer.apply([tf.constant(mine)], [w])  # noqa: E731
    step = tf.function(step) if graph else step
    for _ in range(steps):
        step()
    hvd.join()
    mean = (1.0 + 3.0 * (hvd.size() - 1)) / hvd.size()
    assert float(w.numpy()) == pytest.approx(-3 * mean - (2 * 1.0 if hvd.rank() == 0 else 0.0))


def test_partial_optimizer_and_broadcast() -> None:
    """Own weights stay each rank's own, also those that Adam keeps for them."""
    keras.utils.set_random_seed(hvd.rank())
    own, shared = keras.layers.Dense(3), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((4,)), own, shared])
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.Adam(0.01), local_layers=own)
    model.compile(optimizer, "mse")
    before = own.kernel.numpy().copy()
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own.weights)
    x = np.random.default_rng(hvd.rank()).normal(size=(8, 4)).astype("float32")
    model.fit(x, x[:, :1], 4, callbacks=[first], verbose=0)
    assert np.abs(own.kernel.numpy() - before).max() < 0.05  # not another rank's
    shared_bits = [v.numpy().tobytes() for v in shared.weights]
    assert hvd.allgather_object(shared_bits) == [shared_bits] * hvd.size()
    own_bits = [v.numpy().tobytes() for v in own.weights]
    assert len({tuple(bits) for bits in hvd.allgather_object(own_bits)}) == hvd.size()


@MODES
def test_groups_of_dense_and_sparse(graph: bool) -> None:
    w, other = keras.Variable(0.0), keras.Variable(0.0)
    table = keras.Variable(np.zeros((4, 1), "float32"))
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), groups=[[w, table], [other]], op=hvd.Sum
    )
    optimizer.build([w, table, other])

    def step() -> None:
        with tf.GradientTape() as tape:
            rows = tf.gather(table.value, [hvd.rank() % 4, 3])
            loss = w + other * 2.0 + tf.reduce_sum(rows)
        variables = [w, table, other]
        optimizer.apply(tape.gradient(loss, variables), variables)

    step = tf.function(step) if graph else step
    for _ in range(2):
        step()
    assert (float(w.numpy()), float(other.numpy())) == (-2.0 * hvd.size(), -4.0 * hvd.size())
    expected = np.bincount([*(r % 4 for r in range(hvd.size())), *[3] * hvd.size()], minlength=4)
    np.testing.assert_array_equal(table.numpy().ravel(), -2.0 * expected)
