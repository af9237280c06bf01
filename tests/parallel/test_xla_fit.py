"""`fit` with `jit_compile=True` trains as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

pytestmark = pytest.mark.ranks(2)


def dense() -> list[Any]:
    return [keras.Input([6]), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]


def normalized() -> list[Any]:
    normalization = hvd.SyncBatchNormalization()
    return [keras.Input([6]), keras.layers.Dense(8), normalization, keras.layers.Dense(1)]


def embedded() -> list[Any]:
    layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    return [keras.Input([6], dtype="int32"), *layers]


def sgd(**arguments: Any) -> Any:
    return keras.optimizers.SGD(0.01, **arguments)


CASES: dict[str, tuple[Callable[[], list[Any]], Callable[[], Any], dict[str, Any]]] = {
    "adam": (dense, lambda: keras.optimizers.Adam(0.01), {}),
    "normalization": (normalized, sgd, {}),
    "embedding": (embedded, sgd, {}),
    "fp16": (dense, sgd, {"compression": hvd.Compression.fp16}),
    "passes": (dense, sgd, {"backward_passes_per_step": 2}),
    "accumulation": (dense, lambda: sgd(gradient_accumulation_steps=2), {}),
    "clipping": (dense, lambda: sgd(global_clipnorm=0.5), {}),
    "adasum": (dense, sgd, {"op": hvd.Adasum}),
    "weighted": (dense, sgd, {"sample_weighted": True}),
    "reproducible": (dense, sgd, {"reproducible": True}),
    "scaled": (dense, lambda: keras.optimizers.LossScaleOptimizer(sgd()), {}),
}


def trained(case: str, jit_compile: bool) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    layers, optimizer, options = CASES[case]
    generator = np.random.default_rng(hvd.rank())
    x = (
        generator.integers(0, 20, [24, 6])
        if case == "embedding"
        else generator.normal(size=[24, 6])
    )
    y = generator.normal(size=[24, 1])
    keras.utils.set_random_seed(1)
    model = keras.Sequential(layers())
    model.compile(hvd.DistributedOptimizer(optimizer(), **options), "mse", jit_compile=jit_compile)
    assert model.jit_compile == jit_compile
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    average = hvd.callbacks.MetricAverageCallback()
    history = model.fit(x, y, 8, epochs=2, verbose=0, shuffle=False, callbacks=[first, average])
    return model.get_weights(), history.history


@pytest.mark.parametrize("case", CASES)
def test_fit(case: str) -> None:
    weights, history = trained(case, jit_compile=True)
    plain, other = trained(case, jit_compile=False)
    for ours, expected in zip(weights, plain, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(history["loss"], other["loss"], rtol=1e-5)


@pytest.mark.parametrize("at_once", [1, 4])
def test_one_step_to_the_mean_of_what_the_ranks_want(at_once: int) -> None:
    """Gradients -2 and -6; more steps stay there."""
    model = keras.Sequential(
        [keras.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    model.compile(optimizer, "mse", jit_compile=True, steps_per_execution=at_once)
    x = np.ones([at_once, 1], "float32")
    model.fit(x, x * (1.0 + 2.0 * hvd.rank()), 1, verbose=0)
    assert model.get_weights()[0].item() == 2.0


def test_infinity_on_one_rank_is_left_out_on_all() -> None:
    w = keras.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    optimizer.build([w])

    @tf.function(jit_compile=True)
    def step(gradient: tf.Tensor) -> None:
        optimizer.apply([gradient], [w])

    step(tf.constant(float("inf") if hvd.rank() == 1 else 4.0))
    assert [float(w.numpy()), float(optimizer.dynamic_scale.numpy())] == [1.0, 2.0]
    step(tf.constant(4.0))
    assert float(w.numpy()) == -1.0


def test_distributed_tape() -> None:
    w = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def step(x: tf.Tensor) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(w * x)
        w.assign_sub(tape.gradient(loss, [w])[0])

    for _ in range(2):
        step(tf.fill([2], hvd.rank() + 1.0))
    np.testing.assert_array_equal(w.numpy(), [-2.0, -1.0])
