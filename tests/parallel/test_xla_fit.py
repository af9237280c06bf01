"""`fit` with `jit_compile=True` trains as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

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


def test_one_weight_becomes_two_on_both_ranks() -> None:
    """The mean of what the ranks want: 1 and 3."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse", jit_compile=True, steps_per_execution=2)
    x = np.ones([4, 1], "float32")
    model.fit(x, x * (1.0 + 2.0 * hvd.rank()), 1, epochs=30, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [[2.0]], atol=1e-5)
