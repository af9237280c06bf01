"""Optimizers and tapes with local variables, for any number of ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = [pytest.mark.many_ranks, pytest.mark.timeout(90)]
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
