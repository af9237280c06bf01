"""Whole `fit` calls over simulated ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from tfring.optimizer import DistributedOptimizer

EAGERLY = pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eager"])


@EAGERLY
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_linear_model(ranks: Any, eagerly: bool, steps_per_execution: int) -> None:
    def body(rank: int) -> Any:
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        model.compile(
            DistributedOptimizer(keras.optimizers.SGD(0.5)),
            "mse",
            run_eagerly=eagerly,
            steps_per_execution=steps_per_execution,
        )
        x = np.ones((1, 1), "float32")
        model.fit(x, x * [1.0, 3.0][rank], verbose=0)
        return float(model.get_weights()[0][0, 0])

    assert ranks(2).run(body) == [2.0, 2.0]


class Overflow(keras.layers.Layer):
    """Identity whose gradient is what its input tells."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(), initializer="zeros", dtype="float32")

    def call(self, x: Any) -> Any:
        return x * keras.ops.cast(self.w, x.dtype)


@EAGERLY
@pytest.mark.parametrize("inside", [True, False], ids=["compile wraps", "user wraps"])
def test_mixed_precision_overflow_on_one_rank(ranks: Any, eagerly: bool, inside: bool) -> None:
    def body(rank: int) -> Any:
        inputs = keras.Input((1,), dtype="float16")
        layer = Overflow(dtype="mixed_float16")
        model = keras.Model(inputs, layer(inputs))
        model.dtype_policy = keras.DTypePolicy("mixed_float16")
        if inside:
            optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        else:
            stock = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
            optimizer = DistributedOptimizer(stock)
        model.compile(optimizer, loss=lambda y, p: keras.ops.mean(p), run_eagerly=eagerly)
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        x = np.ones((4, 1), "float16")
        if rank == 1:
            x[1] = np.inf
        model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
        scale = float(model.optimizer.dynamic_scale.numpy())
        return float(layer.w.numpy()), scale, int(model.optimizer.iterations)

    assert ranks(2).run(body) == [(-3.0, 2.0**14, 3)] * 2


@EAGERLY
def test_backward_passes_in_fit(ranks: Any, eagerly: bool) -> None:
    sim = ranks(2)

    def body(rank: int) -> Any:
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        optimizer = DistributedOptimizer(
            keras.optimizers.Adam(0.1),
            backward_passes_per_step=2,
            average_aggregated_gradients=True,
        )
        model.compile(optimizer, "mse", run_eagerly=eagerly)
        x = np.arange(8, dtype="float32")[:, None] + rank
        model.fit(x, x, batch_size=1, verbose=0, epochs=2)
        return model.get_weights()[0].tobytes(), int(optimizer.iterations)

    (w0, n0), (w1, n1) = sim.run(body)
    assert w0 == w1
    assert n0 == n1 == 8
    assert sim.names() == ["optimizer0/bucket0"] * 8
