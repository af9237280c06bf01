"""Allreduce: every dtype, operation and kind of shape against NumPy, in exact arithmetic."""

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
SHAPES = [(), (0,), (1,), (2, 0, 3), (7, 5), (1031,)]
OPS = {
    "Average": (hvd.Average, lambda inputs: sum(inputs) / len(inputs)),
    "Sum": (hvd.Sum, sum),
    "Min": (hvd.Min, lambda inputs: np.minimum.reduce(inputs)),
    "Max": (hvd.Max, lambda inputs: np.maximum.reduce(inputs)),
    "Product": (hvd.Product, lambda inputs: np.multiply.reduce(inputs)),
}
BOOLEAN_OPS = {
    "Min": (hvd.Min, np.logical_and.reduce),
    "Max": (hvd.Max, np.logical_or.reduce),
    "Product": (hvd.Product, np.logical_and.reduce),
}


def input_of(rank: int, shape: tuple[int, ...], op: str) -> np.ndarray:
    """Small whole numbers: every result is exact in every dtype, up to 4 ranks."""
    position = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if op == "Product":
        return 1.0 + (position + rank) % 3
    return hvd.size() * ((position + rank) % 4 + rank).astype(float)


def run(mode: str, tensor: tf.Tensor, op: int) -> tf.Tensor:
    if mode == "eager":
        return hvd.allreduce(tensor, op=op)
    specs = {
        "graph": tf.TensorSpec(tensor.shape, tensor.dtype),
        "unknown dimensions": tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype),
        "unknown rank": tf.TensorSpec(None, tensor.dtype),
    }
    function = tf.function(lambda x: hvd.allreduce(x, op=op), input_signature=[specs[mode]])
    return function(tensor)


def equal(result: tf.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(tf.cast(result, tf.float64), expected)


def check_numbers(dtype: tf.DType, op: str, shape: tuple, mode: str) -> None:
    number, reduce = OPS[op]
    tensor = tf.cast(input_of(hvd.rank(), shape, op), dtype)
    result = run(mode, tensor, number)
    assert (result.dtype, result.shape) == (dtype, shape)
    equal(result, reduce([input_of(r, shape, op) for r in range(hvd.size())]))


def by_name(dtype: tf.DType) -> str:
    return dtype.name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", NUMBERS, ids=by_name)
def test_numbers(dtype: tf.DType, op: str, shape: tuple) -> None:
    check_numbers(dtype, op, shape, "eager")


# What a graph adds, the shape of the result, depends neither on the dtype nor on the operation.
GRAPHS = pytest.mark.parametrize("mode", ["graph", "unknown dimensions", "unknown rank"])


@GRAPHS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_in_graphs(shape: tuple, mode: str) -> None:
    check_numbers(tf.float32, "Average", shape, mode)


@GRAPHS
@pytest.mark.parametrize("dtype", NUMBERS, ids=by_name)
def test_dtypes_in_graphs(dtype: tf.DType, mode: str) -> None:
    check_numbers(dtype, "Sum", (7, 5), mode)


@GRAPHS
@pytest.mark.parametrize("op", OPS)
def test_operations_in_graphs(op: str, mode: str) -> None:
    check_numbers(tf.int64, op, (1031,), mode)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", BOOLEAN_OPS)
def test_booleans(op: str, shape: tuple, mode: str, rank: int, size: int) -> None:
    number, reduce = BOOLEAN_OPS[op]
    inputs = [input_of(r, shape, "Product") > 1 for r in range(size)]
    result = run(mode, tf.constant(inputs[rank]), number)
    assert result.dtype == tf.bool
    np.testing.assert_array_equal(result, reduce(inputs))


@pytest.mark.parametrize("elements", [3 * 2**18 + 7, 2**20, 2**22 + 1])
def test_large(elements: int, rank: int, size: int) -> None:
    x = tf.range(elements, dtype=tf.int32) * (rank + 1)
    result = hvd.allreduce(x, op=hvd.Sum)
    factor = size * (size + 1) // 2
    np.testing.assert_array_equal(result, np.arange(elements, dtype=np.int32) * factor)


@pytest.mark.ranks(2)
def test_average_of_integers_truncates(rank: int) -> None:
    assert int(hvd.allreduce(rank + 1, op=hvd.Sum)) == 3
    assert int(hvd.allreduce(rank + 1)) == 1
    assert int(hvd.allreduce(-rank - 1)) == -1


@pytest.mark.ranks(2)
def test_older_spelling(rank: int) -> None:
    assert float(hvd.allreduce(rank + 1.0, average=True)) == 1.5
    assert float(hvd.allreduce(rank + 1.0, average=False)) == 3.0


@pytest.mark.parametrize(
    ("dtype", "value"), [(tf.float16, 30000.0), (tf.float16, 6e-8), (tf.bfloat16, 8e37)]
)
def test_average_neither_overflows_nor_vanishes(dtype: tf.DType, value: float) -> None:
    x = tf.cast(value, dtype)
    assert float(hvd.allreduce(x)) == float(x)


@pytest.mark.ranks(4)
def test_sixteen_bits_accumulate_in_float32(rank: int) -> None:
    x = tf.cast(1.0 if rank == 0 else 2.0**-9, tf.bfloat16)
    assert float(hvd.allreduce(x, op=hvd.Sum)) == 1.0078125


def test_factors_are_float64(rank: int, size: int) -> None:
    x = tf.constant(3.0, tf.float64)
    assert float(hvd.allreduce(x, op=hvd.Max, prescale_factor=0.1)) == 3.0 * 0.1
    result = hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.1)
    assert float(result) == 3.0 * size * 0.1


def test_compressed_result_has_the_inputs_dtype(size: int) -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        result = hvd.allreduce([0.5, 1.5], op=hvd.Sum, compression=compression)
        assert result.dtype == tf.float32
        np.testing.assert_array_equal(result, [0.5 * size, 1.5 * size])


@pytest.mark.ranks(2)
def test_compressed_mean_is_within_one_step(rank: int) -> None:
    mean = hvd.allreduce(tf.constant((rank + 1) / 3.0), compression=hvd.Compression.fp16)
    assert mean.dtype == tf.float32
    assert abs(float(mean) - 0.5) <= 2.0**-12


def test_group_of_mixed_dtypes_keeps_order(rank: int, size: int) -> None:
    total = size * (size - 1) // 2
    before = hvd.stats().collectives
    inputs = [tf.cast(tf.fill([3, i], rank), dtype) for i, dtype in enumerate(NUMBERS)]
    results = hvd.grouped_allreduce(inputs, op=hvd.Sum)
    assert hvd.stats().collectives - before == 1
    for i, (result, dtype) in enumerate(zip(results, NUMBERS, strict=True)):
        assert result.dtype == dtype
        equal(result, np.full([3, i], total))


def test_slices_are_gathered(rank: int, size: int) -> None:
    slices = tf.IndexedSlices(
        tf.fill([rank + 1, 2], float(size * (rank + 1))),
        tf.range(rank + 1),
        dense_shape=tf.constant([size, 2]),
    )
    dense, result = hvd.grouped_allreduce([tf.constant(float(size)), slices])
    assert float(dense) == size
    indices = np.concatenate([np.arange(r + 1) for r in range(size)])
    values = np.concatenate([np.full(r + 1, r + 1) for r in range(size)])
    np.testing.assert_array_equal(result.indices, indices)
    np.testing.assert_array_equal(result.values[:, 0], values)
    np.testing.assert_array_equal(result.dense_shape, [size, 2])


@pytest.mark.ranks(2)
def test_slices_average(rank: int) -> None:
    rows = [[0, 1, 1], [1, 3]][rank]
    table = tf.IndexedSlices(tf.ones([len(rows), 2]), tf.constant(rows), tf.constant([4, 2]))
    result = tf.convert_to_tensor(hvd.allreduce(table))
    np.testing.assert_array_equal(result[:, 0], [0.5, 1.5, 0.0, 0.5])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_group_of_dense_and_sparse_keeps_order_and_shapes(mode: str, rank: int, size: int) -> None:
    def reduce() -> list[tf.Tensor]:
        table = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([rank]), tf.constant([size, 2]))
        wide = tf.IndexedSlices(
            tf.fill([2, 3], 1.0 + rank), tf.constant([4, 4]), tf.constant([5, 3], tf.int64)
        )
        group = [tf.constant([1.0]), table, tf.constant(2), wide, tf.constant([rank * 2.0])]
        return [tf.convert_to_tensor(t) for t in hvd.grouped_allreduce(group, op=hvd.Sum)]

    results = (reduce if mode == "eager" else tf.function(reduce))()
    wide = np.zeros([5, 3])
    wide[4] = size * (size + 1)
    expected = [[size], np.ones([size, 2]), 2 * size, wide, [size * (size - 1.0)]]
    for result, value in zip(results, expected, strict=True):
        equal(result, value)
