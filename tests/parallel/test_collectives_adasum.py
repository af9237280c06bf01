"""Adasum against a model written from the paper: Maleki et al., arXiv:2006.02924."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
TOLERANCES = {tf.float16: 2e-3, tf.bfloat16: 2e-2, tf.float32: 1e-5, tf.float64: 1e-13}


def is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


@pytest.fixture
def power_of_two(size: int) -> None:
    if not is_power_of_two(size):
        pytest.skip("needs a power of two of ranks")


needs_power_of_two = pytest.mark.usefixtures("power_of_two")


def adasum(tensors: list[np.ndarray]) -> np.ndarray:
    """Pairs of ranks, then pairs of pairs: section 3 of the paper."""
    if len(tensors) == 1:
        return tensors[0]
    half = len(tensors) // 2
    a, b = adasum(tensors[:half]), adasum(tensors[half:])
    dot, aa, bb = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    # What is zero adds nothing.
    return a * (1 - dot / (2 * aa) if aa else 1) + b * (1 - dot / (2 * bb) if bb else 1)


def gradient_of(rank: int, shape: tuple[int, ...], dtype: tf.DType) -> np.ndarray:
    """Random numbers as the dtype rounds them, in float64."""
    values = np.random.default_rng([7, rank]).normal(size=shape)
    return tf.cast(tf.cast(values, dtype), tf.float64).numpy()


@needs_power_of_two
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (1031,)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_model(dtype: tf.DType, shape: tuple, mode: str, rank: int, size: int) -> None:
    inputs = [gradient_of(r, shape, dtype) for r in range(size)]

    def reduce(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, op=hvd.Adasum)

    result = (reduce if mode == "eager" else tf.function(reduce))(tf.cast(inputs[rank], dtype))
    assert (result.dtype, result.shape) == (dtype, shape)
    tolerance = TOLERANCES[dtype]
    np.testing.assert_allclose(
        tf.cast(result, tf.float64), adasum(inputs), rtol=tolerance, atol=tolerance
    )


@needs_power_of_two
def test_parallel_is_averaged_and_orthogonal_is_added(rank: int, size: int) -> None:
    parallel = hvd.allreduce(tf.constant([3.0, 4.0]), op=hvd.Adasum)
    np.testing.assert_allclose(parallel, [3.0, 4.0], rtol=1e-6)
    orthogonal = hvd.allreduce(tf.one_hot(rank, size), op=hvd.Adasum)
    np.testing.assert_allclose(orthogonal, np.ones(size), rtol=1e-6)


@needs_power_of_two
def test_zeros_add_nothing(rank: int, size: int) -> None:
    x = tf.constant([2.0, 1.0]) if rank == size - 1 else tf.zeros([2])
    np.testing.assert_array_equal(hvd.allreduce(x, op=hvd.Adasum), [2.0, 1.0])
    np.testing.assert_array_equal(hvd.allreduce(tf.zeros([3]), op=hvd.Adasum), np.zeros(3))
    assert hvd.allreduce(tf.zeros([0]), op=hvd.Adasum).shape == (0,)


@needs_power_of_two
def test_each_tensor_of_a_group_by_itself(rank: int, size: int) -> None:
    inputs = [
        [gradient_of(r, (5,), tf.float32), gradient_of(r + 10, (3, 2), tf.float64)]
        for r in range(size)
    ]
    before = hvd.stats().collectives
    results = hvd.grouped_allreduce(
        [tf.cast(inputs[rank][0], tf.float32), inputs[rank][1]], op=hvd.Adasum
    )
    assert hvd.stats().collectives - before == 1
    for i, result in enumerate(results):
        np.testing.assert_allclose(result, adasum([x[i] for x in inputs]), rtol=1e-5, atol=1e-6)


@needs_power_of_two
def test_same_bits_on_all_ranks(rank: int) -> None:
    result = hvd.allreduce(gradient_of(rank, (100_003,), tf.float32), op=hvd.Adasum)
    everybody = hvd.allgather_object(result.numpy().tobytes())
    assert len(set(everybody)) == 1


@needs_power_of_two
def test_factors_and_compression(rank: int, size: int) -> None:
    inputs = [gradient_of(r, (64,), tf.float16) for r in range(size)]
    x = tf.cast(inputs[rank], tf.float32)
    result = hvd.allreduce(
        x,
        op=hvd.Adasum,
        prescale_factor=2.0,
        postscale_factor=0.25,
        compression=hvd.Compression.fp16,
    )
    assert result.dtype == tf.float32
    expected = adasum([2.0 * v for v in inputs]) * 0.25
    np.testing.assert_allclose(result, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("group", [False, True], ids=["one", "group"])
def test_other_numbers_of_ranks_are_refused(group: bool, rank: int, size: int) -> None:
    if is_power_of_two(size):
        pytest.skip("needs another number of ranks")
    with pytest.raises(ValueError, match=f"power of two of ranks. Received: .* {size} ranks"):
        if group:
            hvd.grouped_allreduce([1.0, 2.0], op=hvd.Adasum)
        else:
            hvd.allreduce(1.0, op=hvd.Adasum)
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size


@pytest.mark.parametrize("dtype", [tf.int32, tf.bool], ids=lambda d: d.name)
def test_only_floats(dtype: tf.DType) -> None:
    with pytest.raises(ValueError, match="Adasum needs floating-point tensors"):
        hvd.allreduce(tf.ones([2], dtype), op=hvd.Adasum)


@needs_power_of_two
def test_slices_are_refused_before_anything_is_sent() -> None:
    before = hvd.stats().payload_bytes
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), dense_shape=[3, 2])
    with pytest.raises(NotImplementedError, match="must be Average or Sum for tf.IndexedSlices"):
        hvd.grouped_allreduce([tf.ones([2]), slices], op=hvd.Adasum)
    assert hvd.stats().payload_bytes == before
