"""SyncBatchNormalization over real ranks against one process that has the whole batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = [
    pytest.mark.skipif(hvd.size() < 2, reason="needs at least 2 ranks"),
    pytest.mark.timeout(120),
]
EAGERLY = pytest.mark.parametrize("eagerly", [False, True], ids=["function", "eager"])


def my_slice(counts: list[int]) -> slice:
    """Returns where this rank's samples lie in the whole batch; ranks beyond `counts` have none."""
    counts = counts + [0] * hvd.size()
    start = sum(counts[: hvd.rank()])
    return slice(start, start + counts[hvd.rank()])


def step(layer: Any, x: np.ndarray, weights: np.ndarray, eagerly: bool, **call: Any) -> list[Any]:
    """Returns output, gradients by input and by weights, and moving statistics of one step."""
    layer.build(x.shape)

    def body(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, **call)
            loss = tf.reduce_sum(tf.cast(y, tf.float64) * weights)
        parameters = [v.value for v in layer.trainable_variables]
        return y, *tape.gradient(loss, [x, *parameters])

    results = (body if eagerly else tf.function(body))(tf.constant(x))
    return [r.numpy() for r in [*results, layer.moving_mean, layer.moving_variance]]


def compare(
    x: np.ndarray,
    rows: slice,
    eagerly: bool,
    mask: Any = None,
    tolerance: float = 1e-4,
    **kwargs: Any,
) -> None:
    generator = np.random.default_rng(3)
    weights = generator.normal(size=x.shape)
    call = {} if mask is None else {"mask": mask}
    expected = step(keras.layers.BatchNormalization(**kwargs), x, weights, True, **call)
    call = {} if mask is None else {"mask": mask[rows]}
    layer = hvd.SyncBatchNormalization(**kwargs)
    y, dx, *parameters, mean, variance = step(layer, x[rows], weights[rows], eagerly, **call)
    sums = [np.sum(hvd.allgather_object(d), axis=0) for d in parameters]
    wanted = [expected[0][rows], expected[1][rows], *expected[2:]]
    for actual, value in zip([y, dx, *sums, mean, variance], wanted, strict=True):
        assert actual.dtype == value.dtype
        np.testing.assert_allclose(
            actual.astype("float64"), value.astype("float64"), rtol=tolerance, atol=tolerance
        )
    mine = [mean.tobytes(), variance.tobytes()]
    assert hvd.allgather_object(mine) == [mine] * hvd.size()


def random(*shape: int, dtype: str = "float32", offset: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(1).normal(size=shape) * 3 + offset).astype(dtype)


@EAGERLY
def test_known_numbers(eagerly: bool) -> None:
    """0, 0, 0, 4 on rank 0 and 8 on rank 1."""
    whole = np.array([[0.0], [0.0], [0.0], [4.0], [8.0]], "float32")
    mine = whole[my_slice([4, 1])]
    layer = hvd.SyncBatchNormalization(momentum=0.9, epsilon=0.0)
    y, *_, mean, variance = step(layer, mine, np.ones_like(mine), eagerly)
    np.testing.assert_allclose(y, (mine - 2.4) / np.sqrt(10.24), rtol=1e-6)
    np.testing.assert_allclose(mean, [0.24], rtol=1e-6)
    np.testing.assert_allclose(variance, [1.924], rtol=1e-6)


@EAGERLY
@pytest.mark.parametrize("counts", [[4, 4], [5, 1], [0, 6], [6, 0]], ids=str)
def test_uneven_batches(eagerly: bool, counts: list[int]) -> None:
    compare(random(sum(counts), 3), my_slice(counts), eagerly)


@EAGERLY
@pytest.mark.parametrize("kwargs", [{"center": False}, {"scale": False}], ids=["scale", "center"])
def test_one_weight_only(eagerly: bool, kwargs: Any) -> None:
    compare(random(6, 3), my_slice([5, 1]), eagerly, **kwargs)


@pytest.mark.parametrize(("shape", "axis"), [((5, 4, 3, 2), -1), ((5, 2, 4, 3), 1), ((5, 3, 4), 2)])
def test_axes(shape: tuple[int, ...], axis: int) -> None:
    compare(random(*shape), my_slice([3, 2]), False, axis=axis)


@EAGERLY
@pytest.mark.parametrize("channels", [1, 3])
def test_mask(eagerly: bool, channels: int) -> None:
    mask = np.random.default_rng(2).random((5, 4)) < 0.6
    compare(random(5, 4, channels), my_slice([4, 1]), eagerly, mask=mask)


def test_hidden_samples_may_be_nan() -> None:
    x = random(4, 2, 1)
    mask = np.array([[True, False]] * 4)
    x[:, 1] = np.nan
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(x[my_slice([3, 1])], mask=mask[my_slice([3, 1])], training=True)
    np.testing.assert_allclose(layer.moving_mean.numpy(), [x[:, 0].mean()], rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance.numpy(), [x[:, 0].var()], rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "policy", "tolerance"),
    [
        ("float16", "mixed_float16", 2e-2),
        ("bfloat16", "mixed_bfloat16", 1e-1),
        ("float64", "float64", 1e-12),
    ],
)
def test_dtypes(dtype: str, policy: str, tolerance: float) -> None:
    x = tf.cast(random(6, 2, dtype="float64"), dtype).numpy()
    compare(x, my_slice([4, 2]), False, tolerance=tolerance, dtype=policy)


def test_float16_is_computed_in_float32() -> None:
    """The sum of 300 values of 1000 is no float16."""
    x = np.full((300, 1), 1000.0, "float16")
    layer = hvd.SyncBatchNormalization(momentum=0.0, dtype="mixed_float16")
    layer(x, training=True)
    assert layer.moving_mean.numpy().tolist() == [1000.0]
    assert layer.moving_variance.numpy().tolist() == [0.0]


def test_large_mean_does_not_cancel() -> None:
    """Mean 10,000, variance about 1e-2: E[x^2] - E[x]^2 in float32 would be off by 8."""
    x = random(64, 2, offset=0.0) / 30 + np.float32(1e4)
    exact = x.astype("float64").var(0)
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(x[my_slice([60, 4])], training=True)
    np.testing.assert_allclose(layer.moving_variance.numpy(), exact, rtol=1e-2)


def test_no_samples_anywhere() -> None:
    layer = hvd.SyncBatchNormalization(momentum=0.9)
    assert layer(np.zeros((0, 2), "float32"), training=True).shape == (0, 2)
    assert layer.moving_mean.numpy().tolist() == [0.0, 0.0]
    assert layer.moving_variance.numpy().tolist() == [1.0, 1.0]


def test_inference_needs_no_peer() -> None:
    layer = hvd.SyncBatchNormalization()
    layer.build((None, 1))
    if hvd.rank() == 0:
        assert layer(np.ones((2, 1), "float32"), training=False).shape == (2, 1)
        layer.trainable = False
        assert layer(np.ones((2, 1), "float32"), training=True).shape == (2, 1)


def test_second_derivatives_are_refused() -> None:
    layer = hvd.SyncBatchNormalization()
    x = tf.constant(random(3, 1))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(layer(x, training=True) ** 3)
        penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        outer.gradient(penalty, x)


def test_different_numbers_of_channels() -> None:
    layer = hvd.SyncBatchNormalization()
    with pytest.raises(tf.errors.FailedPreconditionError, match="rank 1"):
        layer(np.ones((2, 2 + (hvd.rank() == 1)), "float32"), training=True)
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == hvd.size()


def branches(normalization: Any) -> Any:
    """Three parallel branches, each with a normalization of its own."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,))
    parts = [normalization()(keras.layers.Dense(3)(inputs)) for _ in range(3)]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))


@EAGERLY
def test_training_is_that_of_one_process(eagerly: bool) -> None:
    size, batch, steps = hvd.size(), 4, 20
    generator = np.random.default_rng(0)
    x = generator.normal(size=(steps * batch * size, 4)).astype("float32") + 1
    y = np.tanh(x[:, :1] * x[:, 1:2]).astype("float32")
    mine = np.arange(len(x)).reshape(steps, size, batch)[:, hvd.rank()].ravel()

    alone = branches(keras.layers.BatchNormalization)
    alone.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=eagerly)
    alone.fit(x, y, batch_size=batch * size, shuffle=False, verbose=0)

    model = branches(hvd.SyncBatchNormalization)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse", run_eagerly=eagerly)
    model.fit(x[mine], y[mine], batch_size=batch, shuffle=False, verbose=0)
    for actual, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-5)
    mine = [w.tobytes() for w in model.get_weights()]
    assert hvd.allgather_object(mine) == [mine] * size
