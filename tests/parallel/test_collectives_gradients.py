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


def scaled_rows(tensor: tf.Tensor) -> tf.Tensor:
    """Gives each row a cotangent of its own: 1, 2, 3, ..."""
    numbers = 1.0 + tf.cast(tf.range(tf.shape(tensor)[0]), tensor.dtype)
    return tensor * numbers[:, None]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_reducescatter_gathers_with_horovods_scale(mode: str, op: int, size: int) -> None:
    rows = 2 * size + 1
    result = gradient(
        mode,
        lambda x: scaled_rows(
            hvd.reducescatter(x, op=op, prescale_factor=3.0, postscale_factor=0.5)
        ),
        tf.ones([rows, 2], tf.float64),
    )
    parts = [
        (r + 1.0) * np.arange(1, len(part) + 1)
        for r, part in enumerate(np.array_split(np.arange(rows), size))
    ]
    factor = 1.5 * (size if op == hvd.Sum else 1)
    np.testing.assert_array_equal(
        result, np.repeat(np.concatenate(parts) * factor, 2).reshape(-1, 2)
    )


@pytest.mark.parametrize("mode", MODES)
def test_alltoall_sends_back(mode: str, rank: int, size: int) -> None:
    splits = [(rank + to) % 3 for to in range(size)]
    rows = sum(splits) + 2  # of which two are not sent
    result = gradient(mode, lambda x: scaled_rows(hvd.alltoall(x, splits)[0]), tf.ones([rows, 2]))
    expected = []
    for to in range(size):
        before = sum((r + to) % 3 for r in range(rank))  # rows that stand above ours there
        expected += [(to + 1.0) * (before + i + 1) for i in range(splits[to])]
    np.testing.assert_array_equal(result, np.repeat([*expected, 0, 0], 2).reshape(-1, 2))


@pytest.mark.parametrize("mode", MODES)
def test_alltoall_in_equal_parts(mode: str, rank: int, size: int) -> None:
    result = gradient(mode, lambda x: hvd.alltoall(x), tf.ones([size, 3]))
    expected = np.arange(1.0, size + 1)
    np.testing.assert_array_equal(result, np.repeat(expected, 3).reshape(size, 3))


@pytest.mark.parametrize("mode", MODES)
def test_group_of_gathers(mode: str, rank: int, size: int, weights: float) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        small, large = hvd.grouped_allgather([x[:1], x * 2.0])
        return tf.concat([small, large], axis=0)

    result = gradient(mode, function, tf.ones([rank + 1, 2]))
    expected = np.full((rank + 1, 2), 2.0)
    expected[0] += 1.0
    np.testing.assert_allclose(result, expected * weights / size, rtol=1e-6)


def test_group_of_gathers_is_one_collective_each_way() -> None:
    x, y = tf.ones([1]), tf.ones([2], tf.float64)
    before = hvd.stats().collectives
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        a, b = hvd.grouped_allgather([x, y])
        loss = tf.cast(tf.reduce_sum(a), tf.float64) + tf.reduce_sum(b)
    tape.gradient(loss, [x, y])
    assert hvd.stats().collectives - before == 2


SECOND = {
    "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum),
    "allgather": hvd.allgather,
    "broadcast": lambda x: hvd.broadcast(x, 0),
    "reducescatter": hvd.reducescatter,
    "alltoall": hvd.alltoall,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SECOND)
def test_second_derivative(name: str, mode: str, size: int) -> None:
    """Of sum(f(x) ** 3) at equal x on all ranks, where f is linear and its transpose is g.

    First: g(3 f(x)^2). Second, of its sum: g(6 f(x) f'(1)), with the scale of f and g.
    """

    def compute(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(SECOND[name](x) ** 3)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    first, second = (compute if mode == "eager" else tf.function(compute))(tf.fill([size], 2.0))
    is_root = hvd.rank() == 0
    expected = {
        "allreduce": (size * 3 * (2.0 * size) ** 2, 12.0 * size**3),
        "allgather": (12.0, 12.0 / size),
        "broadcast": (12.0 * is_root, 12.0 / size * is_root),
        "reducescatter": (12.0, 12.0),
        "alltoall": (12.0, 12.0),
    }[name]
    np.testing.assert_allclose(first, np.full(size, expected[0]), rtol=1e-6)
    np.testing.assert_allclose(second, np.full(size, expected[1]), rtol=1e-6)


@pytest.mark.ranks(2)
def test_adasum_has_no_gradient() -> None:
    x = tf.ones([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Adasum)
    with pytest.raises(LookupError, match="op=Adasum has no gradient"):
        tape.gradient(y, x)
