"""Cases with values worked out by hand for two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = [pytest.mark.ranks(2), pytest.mark.timeout(120)]
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
MIB = 1 << 20


def of_rank(first: Any, second: Any) -> Any:
    return second if hvd.rank() else first


@MODES
def test_clip_of_the_mean(graph: bool) -> None:
    w = keras.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=1.0))
    optimizer.build([w])

    def step() -> None:
        optimizer.apply_gradients([(tf.constant(of_rank(5.0, -1.0)), w)])

    (tf.function(step) if graph else step)()
    assert float(w.numpy()) == -1.0


@MODES
@pytest.mark.parametrize("inside", [True, False], ids=["scale(dist)", "dist(scale)"])
def test_loss_scale_and_accumulation(graph: bool, inside: bool) -> None:
    sgd = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    limits = {"initial_scale": 4, "dynamic_growth_steps": 3}
    if inside:
        scaled = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd), **limits)
        optimizer = scaled
    else:
        scaled = keras.optimizers.LossScaleOptimizer(sgd, **limits)
        optimizer = hvd.DistributedOptimizer(scaled)
    w = keras.Variable(0.0)
    optimizer.build([w])

    def step(gradient: tf.Tensor) -> None:
        optimizer.apply([gradient], [w])

    step = tf.function(step) if graph else step
    values, scales, updates = [], [], []
    for gradient in (4.0, np.inf, 8.0, 8.0, 8.0):
        step(tf.constant(gradient, tf.float32))
        values.append(float(w.numpy()))
        scales.append(float(scaled.dynamic_scale.numpy()))
        updates.append(int(sgd.iterations.numpy()))
        assert all(np.isfinite(v.numpy()).all() for v in sgd.variables)
    assert values == [0.0, 0.0, -2.5, -2.5, -6.5]
    assert scales == [4.0, 2.0, 2.0, 2.0, 4.0]
    assert updates == [0, 0, 1, 1, 2]


class TwoOfOneName(keras.Model):
    """The sum of two layers that are both called `same`."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="same")
            for _ in range(2)
        )

    def call(self, x: Any) -> Any:
        return self.one(x[:, :1]) + self.two(x[:, 1:])


def test_layers_of_one_name() -> None:
    model = TwoOfOneName()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), lambda _, y: keras.ops.mean(y)
    )
    x = np.array([of_rank([1.0, 2.0], [3.0, 4.0])], "float32")
    model.fit(x, x, verbose=0)
    assert len({v.path for v in model.trainable_variables}) == 1
    assert [float(w[0, 0]) for w in model.get_weights()] == [-2.0, -3.0]


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new world whose buckets hold 1 MiB."""
    hvd.shutdown()
    with monkeypatch.context() as patch:
        patch.setenv("TFRING_FUSION_THRESHOLD", str(MIB))
        hvd.init()
    yield
    hvd.shutdown()
    hvd.init()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    ("shapes", "collectives", "limit"),
    [([(2, 1), (1,), (1,)], 1, MIB // 16), ([(MIB // 4,)] * 3, 3, 2 * MIB)],
    ids=["4 floats", "3 x 1 MiB"],
)
def test_memory_is_bounded(
    small_buckets: None, shapes: list[tuple[int, ...]], collectives: int, limit: int
) -> None:
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in shapes]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build(variables)

    @tf.function
    def step() -> None:
        optimizer.apply([tf.ones(v.shape) for v in variables], variables)

    for _ in range(50):  # allocators fill their pools
        step()
    before, resident = hvd.stats(), resident_bytes()
    for _ in range(500):
        step()
    assert hvd.stats().collectives - before.collectives == 500 * collectives
    assert hvd.stats().staging_bytes_peak <= limit
    assert resident_bytes() - resident < 5 * MIB
    assert float(variables[0].numpy().ravel()[0]) == -275.0
