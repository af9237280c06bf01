"""Reducescatter and alltoall against NumPy, in exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

NUMBERS = [
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
]
MODES = ["eager", "graph", "unknown dimensions", "unknown rank"]
OPS = {"Average": hvd.Average, "Sum": hvd.Sum}


def by_name(dtype: tf.DType) -> str:
    return dtype.name


def run(mode: str, function, tensor: tf.Tensor):
    if mode == "eager":
        return function(tensor)
    specs = {
        "graph": tf.TensorSpec(tensor.shape, tensor.dtype),
        "unknown dimensions": tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype),
        "unknown rank": tf.TensorSpec(None, tensor.dtype),
    }
    return tf.function(function, input_signature=[specs[mode]])(tensor)


def equal(result: tf.Tensor, expected: np.ndarray) -> None:
    assert result.shape == expected.shape
    np.testing.assert_array_equal(tf.cast(result, tf.float64), expected)


def to_reduce(rank: int, shape: tuple[int, ...]) -> np.ndarray:
    """Small whole numbers that every dtype adds and averages exactly, up to 4 ranks."""
    position = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return hvd.size() * ((position + rank) % 4 + rank).astype(float)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", NUMBERS, ids=by_name)
def test_reducescatter_of_every_dtype(dtype: tf.DType, op: str, mode: str, rank: int) -> None:
    check_reducescatter(dtype, op, (9, 3), mode, rank)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(0,), (1,), (8,), (9, 2, 2), (4, 0)], ids=str)
def test_reducescatter_of_every_shape(shape: tuple, mode: str, rank: int) -> None:
    check_reducescatter(tf.float32, "Sum", shape, mode, rank)


def check_reducescatter(dtype: tf.DType, op: str, shape: tuple, mode: str, rank: int) -> None:
    size = hvd.size()
    tensor = tf.cast(to_reduce(rank, shape), dtype)
    result = run(mode, lambda x: hvd.reducescatter(x, op=OPS[op]), tensor)
    total = sum(to_reduce(r, shape) for r in range(size))
    expected = np.array_split(total / size if op == "Average" else total, size)[rank]
    assert result.dtype == dtype
    equal(result, expected)


@pytest.mark.parametrize("rows", [1 << 18, (1 << 18) + 1])
def test_large_reducescatter(rows: int, rank: int, size: int) -> None:
    result = hvd.reducescatter(tf.range(rows) * (rank + 1), op=hvd.Sum)
    total = np.arange(rows, dtype=np.int32) * (size * (size + 1) // 2)
    np.testing.assert_array_equal(result, np.array_split(total, size)[rank])


def test_static_rows_of_a_reducescatter(rank: int, size: int) -> None:
    shapes = []

    @tf.function
    def function(tensor: tf.Tensor) -> tf.Tensor:
        part = hvd.reducescatter(tensor)
        shapes.append(part.shape.as_list())
        return part

    assert function(tf.ones([size + 1, 3])).shape == (1 + (rank == 0), 3)
    assert shapes == [[1 + (rank == 0), 3]]


@pytest.mark.parametrize("op", OPS)
def test_factors(op: str, rank: int, size: int) -> None:
    x = tf.fill([size], tf.constant(3.0, tf.float64))
    result = hvd.reducescatter(x, op=OPS[op], prescale_factor=0.5, postscale_factor=4.0)
    equal(result, np.array([6.0 * (size if op == "Sum" else 1)]))


def test_factors_are_float64(size: int) -> None:
    result = hvd.reducescatter(tf.ones([size], tf.float64), prescale_factor=0.1)
    assert abs(float(result[0]) - 0.1) < 1e-16


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compressed_reducescatter(compression, rank: int, size: int) -> None:
    result = hvd.reducescatter(tf.fill([size, 2], rank + 1.0), op=hvd.Sum, compression=compression)
    assert result.dtype == tf.float32
    equal(result, np.full((1, 2), size * (size + 1) / 2))


def test_group_of_reducescatters_is_one_collective(rank: int, size: int) -> None:
    before = hvd.stats().collectives
    a, b, c = hvd.grouped_reducescatter(
        [tf.ones([size]), tf.fill([2 * size, 2], rank), tf.ones([1], tf.bfloat16)], op=hvd.Sum
    )
    assert hvd.stats().collectives - before == 1
    equal(a, np.full([1], float(size)))
    equal(b, np.full([2, 2], size * (size - 1) / 2))
    equal(c, np.full([1 if rank == 0 else 0], float(size)))


def test_empty_groups() -> None:
    assert hvd.grouped_reducescatter([]) == []
    assert hvd.grouped_allgather([]) == []


def splits_of(rank: int) -> list[int]:
    """Rows that a rank sends to each other: different for all, with zeros."""
    return [(2 * rank + 3 * to) % 4 for to in range(hvd.size())]


def sent_by(rank: int, columns: tuple[int, ...]) -> np.ndarray:
    """Row by row the number of the sender plus 10 times that of the receiver."""
    parts = [np.full((n, *columns), rank + 10 * to) for to, n in enumerate(splits_of(rank))]
    return np.concatenate(parts)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("dtype", [*NUMBERS, tf.bool], ids=by_name)
def test_alltoall_of_every_dtype(dtype: tf.DType, mode: str, rank: int) -> None:
    check_alltoall(dtype, (3,), mode, rank)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", [(), (2, 2), (0,)], ids=str)
def test_alltoall_of_every_shape(columns: tuple, mode: str, rank: int) -> None:
    check_alltoall(tf.float32, columns, mode, rank)


def check_alltoall(dtype: tf.DType, columns: tuple, mode: str, rank: int) -> None:
    size = hvd.size()
    tensor = tf.cast(sent_by(rank, columns), dtype)
    output, received = run(mode, lambda x: hvd.alltoall(x, splits_of(rank)), tensor)
    counts = [splits_of(r)[rank] for r in range(size)]
    assert (output.dtype, received.dtype) == (dtype, tf.int32)
    np.testing.assert_array_equal(received, counts)
    expected = [np.full((n, *columns), r + 10 * rank) for r, n in enumerate(counts)]
    np.testing.assert_array_equal(output, tf.cast(np.concatenate(expected), dtype))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_alltoall_in_equal_parts(rows: int, mode: str, rank: int, size: int) -> None:
    tensor = tf.repeat(tf.range(size) * 10 + rank, rows)
    output = run(mode, hvd.alltoall, tensor)
    np.testing.assert_array_equal(output, np.repeat(np.arange(size) + 10 * rank, rows))


@pytest.mark.parametrize("splits", ["list", "array", "int32", "int64"])
def test_splits_of_any_kind(splits: str, rank: int, size: int) -> None:
    ones = [1] * size
    make = {
        "list": lambda: ones,
        "array": lambda: np.array(ones),
        "int32": lambda: tf.constant(ones, tf.int32),
        "int64": lambda: tf.constant(ones, tf.int64),
    }
    output, _ = hvd.alltoall(tf.fill([size], rank), make[splits]())
    np.testing.assert_array_equal(output, np.arange(size))


def test_rows_beyond_the_splits_stay(rank: int, size: int) -> None:
    output, received = hvd.alltoall(tf.range(size + 2), [1] * size)
    np.testing.assert_array_equal(output, np.full(size, rank))
    np.testing.assert_array_equal(received, np.ones(size))


def test_splits_that_only_the_run_knows(rank: int, size: int) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec(None, tf.int32)])
    def function(tensor: tf.Tensor, splits: tf.Tensor):
        return hvd.alltoall(tensor, splits)

    for rows in (1, 2):
        output, received = function(tf.ones([rows * size]), tf.fill([size], rows))
        assert output.shape == (rows * size,)
        np.testing.assert_array_equal(received, np.full(size, rows))


def test_large_alltoall(rank: int, size: int) -> None:
    rows = (1 << 18) + 3
    output = hvd.alltoall(tf.repeat(tf.range(size) + 10 * rank, rows))
    np.testing.assert_array_equal(output, np.repeat(np.arange(size) * 10 + rank, rows))


def test_several_at_once_in_a_function(rank: int, size: int) -> None:
    @tf.function
    def function(x: tf.Tensor):
        return [
            hvd.reducescatter(x, op=hvd.Sum),
            hvd.alltoall(x),
            hvd.allgather(x),
            hvd.allreduce(x, op=hvd.Sum),
        ]

    for _ in range(20):
        scattered, turned, gathered, reduced = function(tf.fill([size, 2], float(rank)))
        total = size * (size - 1) / 2
        equal(scattered, np.full((1, 2), total))
        equal(turned, np.repeat(np.arange(size), 2).reshape(size, 2))
        equal(gathered, np.repeat(np.arange(size), 2 * size).reshape(size * size, 2))
        equal(reduced, np.full((size, 2), total))
