"""Gradients that cross ranks; rank r weighs its part of the loss with r + 1."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

MODES = ["eager", "graph"]


def gradient(mode: str, function, x: tf.Tensor) -> np.ndarray:
    """The gradient at x of this rank's loss, sum((rank + 1) * function(x))."""

    def compute(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x)) * (hvd.rank() + 1.0)
        return tape.gradient(loss, x)

    return (compute if mode == "eager" else tf.function(compute))(x).numpy()


@pytest.fixture
def weights(size: int) -> float:
    """The sum of all ranks' weights."""
    return size * (size + 1) / 2


@pytest.mark.parametrize("mode", MODES)
def test_sum(mode: str, rank: int, weights: float) -> None:
    result = gradient(mode, lambda x: hvd.allreduce(x, op=hvd.Sum), tf.ones([2]))
    np.testing.assert_array_equal(result, [weights] * 2)


@pytest.mark.parametrize("mode", MODES)
def test_scaled_average(mode: str, weights: float, size: int) -> None:
    result = gradient(
        mode,
        lambda x: hvd.allreduce(x, prescale_factor=4.0, postscale_factor=0.5),
        tf.ones([2], tf.float64),
    )
    np.testing.assert_allclose(result, [2.0 * weights / size] * 2, rtol=1e-15)


@pytest.mark.parametrize("mode", MODES)
def test_max_goes_to_its_holder(mode: str, rank: int, size: int, weights: float) -> None:
    # The first element is largest on the last rank, the second on rank 0, the third is a tie.
    x = tf.constant([rank, -rank, 5], tf.float32)
    result = gradient(mode, lambda x: hvd.allreduce(x, op=hvd.Max), x)
    expected = [weights * (rank == size - 1), weights * (rank == 0), weights / size]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_scaled_min_goes_to_its_holder(mode: str, rank: int, size: int, weights: float) -> None:
    x = tf.constant([rank, -rank], tf.float32)
    result = gradient(
        mode, lambda x: hvd.allreduce(x, op=hvd.Min, prescale_factor=2.0, postscale_factor=4.0), x
    )
    np.testing.assert_array_equal(
        result, [8 * weights * (rank == 0), 8 * weights * (rank == size - 1)]
    )


@pytest.mark.parametrize("mode", MODES)
def test_product_of_the_others(mode: str, rank: int, size: int, weights: float) -> None:
    # Rank 0 holds a zero in the second element.
    x = tf.constant([rank + 1.0, float(rank > 0)])
    result = gradient(mode, lambda x: hvd.allreduce(x, op=hvd.Product), x)
    others = np.prod([r + 1.0 for r in range(size) if r != rank])
    np.testing.assert_allclose(result, [weights * others, weights * (rank == 0)], rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_gather_gives_back_own_rows(mode: str, rank: int, size: int, weights: float) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        gathered = hvd.allgather(x)
        return gathered * tf.cast(tf.range(tf.shape(gathered)[0]), tf.float32)[:, None]

    first = rank * (rank + 1) // 2
    result = gradient(mode, function, tf.ones([rank + 1, 2]))
    expected = np.arange(first, first + rank + 1)[:, None] * weights / size
    np.testing.assert_allclose(result, np.broadcast_to(expected, (rank + 1, 2)), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_broadcast_gives_back_to_the_root(mode: str, rank: int, size: int, weights: float) -> None:
    root = size - 1
    result = gradient(mode, lambda x: hvd.broadcast(x, root), tf.ones([2]))
    expected = weights / size if rank == root else 0.0
    np.testing.assert_allclose(result, [expected] * 2, rtol=1e-6)


def test_group_is_one_collective_each_way(weights: float) -> None:
    x, y = tf.constant(1.0), tf.constant([2.0], tf.float64)
    before = hvd.stats().collectives
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        a, b = hvd.grouped_allreduce([x, y], op=hvd.Sum)
        loss = (tf.cast(a, tf.float64) + b[0]) * (hvd.rank() + 1.0)
    first, second = tape.gradient(loss, [x, y])
    assert hvd.stats().collectives - before == 2
    assert (float(first), second.numpy().tolist()) == (weights, [weights])
