"""Between real ranks: one collective per update, unequal batches, one decision on infinity."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = pytest.mark.timeout(90)
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


@MODES
@pytest.mark.parametrize("inside", [True, False], ids=["scale(dist)", "dist(scale)"])
@pytest.mark.parametrize("weighted", [False, True], ids=["by rank", "by sample"])
def test_a_pass_that_the_last_rank_alone_cannot_use(
    graph: bool, inside: bool, weighted: bool
) -> None:
    stock = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    scale = keras.optimizers.LossScaleOptimizer
    if inside:
        outer = scale(hvd.DistributedOptimizer(stock, sample_weighted=weighted), 4.0)
    else:
        outer = hvd.DistributedOptimizer(scale(stock, 4.0), sample_weighted=weighted)
    w = keras.Variable(0.0)
    outer.build([w])

    def step(gradient: tf.Tensor) -> None:
        with hvd.batch_samples(8):
            outer.apply([gradient], [w])

    step = tf.function(step) if graph else step
    is_last = hvd.rank() == hvd.size() - 1
    before = hvd.stats().collectives
    for gradient in (8.0, np.inf if is_last else 1.0, 8.0, 2.0, 2.0):
        step(tf.constant(gradient, tf.float32))
    # 8 of scale 4; dropped; 8 of scale 2: 2 and 4
    assert (float(w.numpy()), int(stock.iterations)) == (-3.0 - 1.0, 2)
    assert float(outer.dynamic_scale.numpy()) == 2.0
    if hvd.size() > 1:
        plan = 1  # is agreed on at the first pass
        assert hvd.stats().collectives - before - plan == 5 + 2


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_fit_with_unequal_batches(policy: str) -> None:
    size = hvd.size()
    counts = [1 + r for r in range(size)]
    x = np.random.default_rng(3).normal(size=(sum(counts), 1)).astype("float32")
    x = np.round(4 * x) / 4  # exact in 16 bit
    start = sum(counts[: hvd.rank()])
    mine = x[start : start + counts[hvd.rank()]]

    def train(optimizer: Any, rows: np.ndarray, policy: str) -> float:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype=policy)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.dtype_policy = keras.DTypePolicy(policy)
        model.compile(optimizer, "mse")
        model.fit(rows, 2 * rows, batch_size=len(rows), epochs=3, verbose=0)
        return float(model.get_weights()[0].item())

    expected = train(keras.optimizers.SGD(0.125), x, "float32")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.125), sample_weighted=True)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0)
    got = train(optimizer, mine, policy)
    assert got == pytest.approx(expected, rel=1e-6 if policy == "float32" else 2e-2)
    assert len(set(hvd.allgather_object(got))) == 1


@pytest.mark.parametrize("way", ["eager", "graph", "compiled by XLA"])
def test_a_rank_that_does_not_tell_is_an_error_on_all(way: str) -> None:
    w = keras.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sample_weighted=True)
    optimizer.build([w])

    def step(gradient: Any) -> None:
        optimizer.apply([gradient], [w])

    if way != "eager":
        step = tf.function(step, jit_compile=way == "compiled by XLA")
    number = hvd.batch_samples(2)
    for _ in range(2):
        told = contextlib.nullcontext() if hvd.rank() == 0 else number
        error = pytest.raises(tf.errors.InvalidArgumentError, match="did not tell.*batch_samples")
        with error, told:
            step(tf.constant(1.0))
        assert float(w.numpy()) == 0.0
    with number:
        step(tf.constant(1.0))
    assert float(w.numpy()) == -1.0


@pytest.mark.ranks(2)
@MODES
def test_what_overwrites_and_what_is_local(graph: bool) -> None:
    amax, v, w = (keras.Variable(0.0) for _ in range(3))
    amax.overwrite_with_gradient = True
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=1.0))
    optimizer.register_local_var(w)
    optimizer.build([amax, v, w])

    def step(*gradients: Any) -> None:
        optimizer.apply(list(gradients), [amax, v, w])

    values = [[5.0, 2.0, 8.0], [1.0, 4.0, 16.0]][hvd.rank()]
    (tf.function(step) if graph else step)(*map(tf.constant, values))
    norm = np.sqrt(3.0**2 + 4.0**2 + 8.0**2)
    own = [-4.0, -8.0][hvd.rank()] / norm
    got = [float(x.numpy()) for x in (amax, v, w)]
    np.testing.assert_allclose(got, [5.0, -3.0 / norm, own], rtol=1e-6)
