"""Collectives in a world of one: shapes, dtypes, arguments; tests/parallel has the sums."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

pytestmark = pytest.mark.usefixtures("world")

DTYPES = [
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
    tf.bool,
]
SHAPES = [(), (0,), (5,), (2, 0, 3), (3, 7)]


def filled(shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.reshape(tf.range(np.prod(shape, dtype=int)) % 3, shape), dtype)


def by_dtype(dtype: tf.DType) -> str:
    return dtype.name


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=by_dtype)
def test_allreduce_of_one_is_the_input(dtype: tf.DType, shape: tuple, graph: bool) -> None:
    tensor = filled(shape, dtype)
    function = tf.function(hvd.allreduce) if graph else hvd.allreduce
    result = function(tensor, op=hvd.Max)
    assert (result.dtype, result.shape) == (dtype, tensor.shape)
    np.testing.assert_array_equal(result.numpy(), tensor.numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=by_dtype)
def test_gather_and_broadcast_of_one_are_the_input(dtype: tf.DType) -> None:
    tensor = filled((3, 2), dtype)
    np.testing.assert_array_equal(hvd.allgather(tensor), tensor)
    np.testing.assert_array_equal(hvd.broadcast(tensor, 0), tensor)


@pytest.mark.parametrize(
    "value",
    [3.0, [1.0, 2.0], np.float64([1, 2]), tf.Variable([1.0]), keras.Variable([1.0])],
    ids=["number", "list", "array", "tf.Variable", "keras.Variable"],
)
def test_whatever_can_be_a_tensor_is_taken(value) -> None:
    np.testing.assert_array_equal(hvd.allreduce(value), tf.convert_to_tensor(value))


def test_input_is_not_changed() -> None:
    tensor, variable = tf.constant([1.0, 2.0]), tf.Variable([1.0, 2.0])
    hvd.grouped_allreduce([tensor, variable], op=hvd.Sum, prescale_factor=10.0)
    np.testing.assert_array_equal(tensor, [1.0, 2.0])
    np.testing.assert_array_equal(variable, [1.0, 2.0])


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product])
def test_factors_scale(op: int) -> None:
    result = hvd.allreduce([1.0, 2.0], op=op, prescale_factor=2.0, postscale_factor=0.25)
    np.testing.assert_array_equal(result, [0.5, 1.0])


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Max])
def test_factors_are_float64(op: int) -> None:
    result = hvd.allreduce(tf.constant(3.0, tf.float64), op=op, prescale_factor=0.1)
    assert float(result) == 3.0 * 0.1


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Max])
def test_factors_truncate_integers(op: int) -> None:
    result = hvd.allreduce([7, -7], op=op, prescale_factor=0.5)
    np.testing.assert_array_equal(result, [3, -3])


@pytest.mark.parametrize(
    ("arguments", "expected"), [({}, 0.5), ({"average": True}, 0.5), ({"average": False}, 0.5)]
)
def test_older_spelling_is_taken(arguments: dict, expected: float) -> None:
    assert float(hvd.allreduce(0.5, **arguments)) == expected


def test_group_keeps_order_and_dtypes() -> None:
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 0]), tf.constant([5, 3]))
    inputs = [tf.constant(1.0), slices, tf.constant(2), slices, tf.constant([3.0], tf.bfloat16)]
    results = hvd.grouped_allreduce(inputs)
    assert [r.dtype for r in results] == [t.dtype for t in inputs]
    assert [isinstance(r, tf.IndexedSlices) for r in results] == [0, 1, 0, 1, 0]
    for result, given in zip(results, inputs, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(result), tf.convert_to_tensor(given))


def test_empty_group() -> None:
    assert hvd.grouped_allreduce([]) == []


def test_slices_keep_their_dense_shape() -> None:
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 0]), tf.constant([5, 3]))
    result = hvd.allreduce(slices, op=hvd.Sum, prescale_factor=3.0)
    np.testing.assert_array_equal(result.values, np.full([2, 3], 3.0))
    np.testing.assert_array_equal(result.indices, [4, 0])
    np.testing.assert_array_equal(result.dense_shape, [5, 3])


@pytest.mark.parametrize(
    ("spec", "reduced", "gathered"),
    [
        ([2, 3], (2, 3), (None, 3)),
        ([None, 3], (None, 3), (None, 3)),
        ([None, None], (None, None), (None, None)),
    ],
)
def test_static_shapes(spec: list, reduced: tuple, gathered: tuple) -> None:
    shapes = {}

    @tf.function(input_signature=[tf.TensorSpec(spec)])
    def function(tensor: tf.Tensor) -> None:
        shapes["allreduce"] = tuple(hvd.allreduce(tensor).shape)
        shapes["broadcast"] = tuple(hvd.broadcast(tensor, 0).shape)
        shapes["allgather"] = tuple(hvd.allgather(tensor).shape)

    function(tf.ones([2, 3]))
    assert shapes == {"allreduce": reduced, "broadcast": reduced, "allgather": gathered}


def test_unknown_rank() -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def function(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return hvd.allreduce(tensor), hvd.allgather(tensor)

    for tensor in (tf.ones([2]), tf.ones([2, 3])):
        for result in function(tensor):
            np.testing.assert_array_equal(result, tensor)


def test_unknown_rank_that_is_a_scalar() -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def function(tensor: tf.Tensor) -> tf.Tensor:
        return hvd.allgather(tensor)

    with pytest.raises(tf.errors.InvalidArgumentError):
        function(tf.constant(1.0))
    np.testing.assert_array_equal(function(tf.ones([2])), [1.0, 1.0])
