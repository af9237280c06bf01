"""`compile` and `fit` between real ranks. Run under tfringrun with at least 2 ranks."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd

hvd.init()
pytestmark = [
    pytest.mark.skipif(hvd.size() < 2, reason="needs at least 2 ranks"),
    pytest.mark.timeout(120),
]
EAGERLY = pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eager"])


def same_everywhere(arrays: list[np.ndarray]) -> bool:
    mine = [array.tobytes() for array in arrays]
    return hvd.allgather_object(mine) == [mine] * hvd.size()


@EAGERLY
def test_linear_model(eagerly: bool) -> None:
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    x = np.ones((1, 1), "float32")
    model.fit(x, x * (1.0 + 2.0 * hvd.rank()), verbose=0)
    assert float(model.get_weights()[0][0, 0]) == 1.0 + (hvd.size() - 1)
    assert "tf_keras" not in sys.modules


def digits_like() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(240, 8)).astype("float32")
    return x, np.tanh(x @ generator.normal(size=(8, 2))).astype("float32")


def small_model() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(2)]
    )


def test_loss_curve_is_that_of_one_process() -> None:
    x, y = digits_like()
    batch, size = 12, hvd.size()
    whole = batch * size
    count = len(x) // whole * whole
    x, y = x[:count], y[:count]
    # Batch k of all ranks together is batch k of one process.
    mine = np.arange(count).reshape(-1, size, batch)[:, hvd.rank()].ravel()

    alone = small_model()
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    expected = alone.fit(x, y, batch_size=whole, epochs=3, shuffle=False, verbose=0)

    model = small_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    actual = model.fit(
        x[mine],
        y[mine],
        batch_size=batch,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
    )
    np.testing.assert_allclose(actual.history["loss"], expected.history["loss"], rtol=1e-5)
    for a, b in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert same_everywhere(model.get_weights())


@EAGERLY
@pytest.mark.parametrize("inside", [True, False], ids=["compile wraps", "user wraps"])
def test_mixed_precision_overflow_on_one_rank(eagerly: bool, inside: bool) -> None:
    class Scale(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(), initializer="zeros", dtype="float32")

        def call(self, x: Any) -> Any:
            return x * keras.ops.cast(self.w, x.dtype)

    inputs = keras.Input((1,), dtype="float16")
    layer = Scale(dtype="mixed_float16")
    model = keras.Model(inputs, layer(inputs))
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    if inside:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    else:
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
        optimizer = hvd.DistributedOptimizer(scaled)
    model.compile(optimizer, loss=lambda y, p: keras.ops.mean(p), run_eagerly=eagerly)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    x = np.ones((4, 1), "float16")
    if hvd.rank() == 1:
        x[1] = np.inf
    model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    assert float(layer.w.numpy()) == -3.0
    assert float(model.optimizer.dynamic_scale.numpy()) == 2.0**14
    assert same_everywhere([v.numpy() for v in model.optimizer.variables])


@EAGERLY
def test_gan_train_step(eagerly: bool) -> None:
    class Gan(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
            self.critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            self.second = hvd.DistributedOptimizer(keras.optimizers.Adam(0.02))

        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape(persistent=True) as tape:
                fake = self.critic(self.generator(data))
                critic_loss = tf.reduce_mean(fake) - tf.reduce_mean(self.critic(data))
                loss = -tf.reduce_mean(fake)
            for net, optimizer, value in (
                (self.critic, self.optimizer, critic_loss),
                (self.generator, self.second, loss),
            ):
                variables = net.trainable_variables
                gradients = tape.gradient(value, variables)
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return {"loss": loss}

    keras.utils.set_random_seed(3)
    gan = Gan()
    gan.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), run_eagerly=eagerly)
    x = np.random.default_rng(hvd.rank()).normal(size=(10, 2)).astype("float32")
    gan.fit(x, batch_size=2, verbose=0)
    assert int(gan.optimizer.iterations) == int(gan.second.iterations) == 5
    assert same_everywhere([v.numpy() for v in gan.trainable_variables])


def test_save_and_resume(tmp_path: Any) -> None:
    x, y = digits_like()
    model = small_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    model.fit(x, y, epochs=1, verbose=0)
    path = hvd.broadcast_object(str(tmp_path / "model.keras"))
    if hvd.rank() == 0:
        model.save(path)
    hvd.broadcast_object("saved")
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.Adam
    loaded.compile(hvd.DistributedOptimizer(loaded.optimizer), "mse")
    generator = np.random.default_rng(hvd.rank())
    rows = generator.permutation(len(x))[:64]
    loaded.fit(x[rows], y[rows], epochs=1, verbose=0)
    assert same_everywhere(loaded.get_weights())
    assert int(loaded.optimizer.iterations) == 8 + 2
