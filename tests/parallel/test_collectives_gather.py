"""Allgather, broadcast and barrier, and the exchange of objects and variables."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

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
MODES = ["eager", "graph"]


def run(mode: str, function, tensor: tf.Tensor, spec: list | None) -> tf.Tensor:
    if mode == "eager":
        return function(tensor)
    signature = [tf.TensorSpec(spec, tensor.dtype)]
    return tf.function(function, input_signature=signature)(tensor)


def by_name(dtype: tf.DType) -> str:
    return dtype.name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", [(), (1,), (5,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=by_name)
def test_rank_gives_as_many_rows_as_its_number(
    dtype: tf.DType, columns: tuple, mode: str, rank: int, size: int
) -> None:
    tensor = tf.cast(tf.fill((rank, *columns), rank), dtype)
    result = run(mode, hvd.allgather, tensor, [None, *columns])
    expected = np.concatenate([np.full((r, *columns), r) for r in range(size)])
    assert result.dtype == dtype
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, tf.cast(expected, dtype))


@pytest.mark.parametrize("mode", MODES)
def test_nobody_gives_rows(mode: str) -> None:
    assert run(mode, hvd.allgather, tf.zeros([0, 4]), [None, 4]).shape == (0, 4)


@pytest.mark.parametrize("giver", ["first", "last"])
def test_one_gives_all_rows(giver: str, rank: int, size: int) -> None:
    gives = rank == (0 if giver == "first" else size - 1)
    tensor = tf.range(1000) if gives else tf.range(0)
    np.testing.assert_array_equal(hvd.allgather(tensor), np.arange(1000))


def test_large_gather(rank: int, size: int) -> None:
    result = hvd.allgather(tf.fill([1 << 18, 3], rank))
    assert result.shape == (size << 18, 3)
    for r in range(size):
        assert bool(tf.reduce_all(result[r << 18 : (r + 1) << 18] == r))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (1 << 18,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=by_name)
def test_broadcast_from_the_last(
    dtype: tf.DType, shape: tuple, mode: str, rank: int, size: int
) -> None:
    def of(rank: int) -> tf.Tensor:
        return tf.cast(tf.reshape(tf.range(np.prod(shape, dtype=int)) % 5 + rank, shape), dtype)

    own = of(rank)
    result = run(mode, lambda x: hvd.broadcast(x, size - 1), own, None)
    assert (result.dtype, result.shape) == (dtype, shape)
    assert bool(tf.reduce_all(result == of(size - 1)))
    assert bool(tf.reduce_all(own == of(rank))), "the input has changed"


def test_broadcast_from_each(rank: int, size: int) -> None:
    assert [int(hvd.broadcast(rank, root)) for root in range(size)] == list(range(size))


@pytest.mark.parametrize("mode", MODES)
def test_barrier(mode: str) -> None:
    function = hvd.barrier if mode == "eager" else tf.function(lambda: hvd.barrier() and None)
    for _ in range(3):
        function()


def test_objects_of_any_type(rank: int, size: int) -> None:
    own = [None, {"a": [1, 2]}, "text", 3.5][rank % 4]
    for root in range(size):
        assert hvd.broadcast_object(own, root) == [None, {"a": [1, 2]}, "text", 3.5][root % 4]
    assert hvd.allgather_object((rank, "x" * rank)) == [(r, "x" * r) for r in range(size)]


def test_large_object(rank: int) -> None:
    sent = bytes(range(256)) * (5 << 12) if rank == 0 else None
    assert hvd.broadcast_object(sent) == bytes(range(256)) * (5 << 12)


def test_function_as_object(rank: int) -> None:
    assert hvd.broadcast_object(lambda: rank if rank < 0 else 41 + 1)() == 42


@pytest.mark.parametrize("mode", MODES)
def test_variables_of_all_kinds(mode: str, rank: int, size: int) -> None:
    variables = [
        tf.Variable(tf.fill([3], float(rank))),
        keras.Variable(np.full([2, 2], rank, "float32")),
        tf.Variable(tf.cast(rank, tf.uint32)),
        tf.Variable(rank % 2 == 0),
        tf.Variable(tf.cast([rank], tf.bfloat16)),
    ]
    before = hvd.stats().collectives

    def broadcast() -> None:
        hvd.broadcast_variables(variables, root_rank=size - 1)

    (broadcast if mode == "eager" else tf.function(broadcast))()
    assert hvd.stats().collectives - before == 1
    expected = [float(size - 1)] * 3 + [(size - 1) % 2 == 0, float(size - 1)]
    for variable, value in zip(variables, expected, strict=True):
        assert np.all(tf.cast(tf.convert_to_tensor(variable), tf.float64) == float(value))


@pytest.mark.parametrize("exchange", [hvd.allgather_object, hvd.broadcast_object])
def test_object_that_cannot_be_pickled_is_an_error_on_all_ranks(exchange, rank: int) -> None:
    obj = threading.Lock() if rank == 0 else "fine"
    with pytest.raises(TypeError, match="rank 0 cannot be pickled"):
        exchange(obj)
    assert hvd.broadcast_object(rank) == 0


def test_scalar_of_unknown_rank_is_refused() -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def gather(value):
        return hvd.allgather(value)

    with pytest.raises(tf.errors.InvalidArgumentError, match="a scalar cannot be gathered"):
        gather(tf.constant(1.0))
    assert gather(tf.ones([2])).shape == (2 * hvd.size(),)


@pytest.mark.parametrize("mode", MODES)
def test_group_of_mixed_dtypes_is_one_collective(mode: str, rank: int, size: int) -> None:
    def gather() -> list[tf.Tensor]:
        return hvd.grouped_allgather(
            [tf.fill([rank + 1, 2], float(rank)), tf.constant([rank]), tf.fill([rank], True)]
        )

    before = hvd.stats().collectives
    first, second, third = (gather if mode == "eager" else tf.function(gather))()
    assert hvd.stats().collectives - before == 1
    expected = np.repeat(np.arange(size), np.arange(1, size + 1))
    np.testing.assert_array_equal(first, np.stack([expected, expected], axis=1))
    np.testing.assert_array_equal(second, np.arange(size))
    assert (third.dtype, third.shape) == (tf.bool, (size * (size - 1) // 2,))


@pytest.mark.parametrize("mode", MODES)
def test_variables_in_place(mode: str, rank: int, size: int) -> None:
    variables = [tf.Variable(tf.cast([rank, 1], dtype)) for dtype in (*DTYPES, tf.uint32)]
    variables.append(keras.Variable([[float(rank)]]))
    before = hvd.stats().collectives

    def broadcast() -> list[tf.Tensor]:
        return hvd.broadcast_(variables, size - 1)

    values = (broadcast if mode == "eager" else tf.function(broadcast))()
    assert hvd.stats().collectives - before == 1
    for variable, value in zip(variables, values, strict=True):
        expected = tf.cast([size - 1, 1], value.dtype) if len(value.shape) == 1 else [[size - 1]]
        np.testing.assert_array_equal(value, expected)
        np.testing.assert_array_equal(tf.convert_to_tensor(variable), expected)


def test_variables_in_a_v1_session(rank: int, size: int) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(name, initializer=float(rank), use_resource=resource)
            for name, resource in (("resource", True), ("reference", False))
        ]
        values = hvd.broadcast_(variables, size - 1)
        operation = hvd.broadcast_variables(variables, 0)
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(values) == [size - 1] * 2
        assert session.run(variables) == [size - 1] * 2
        session.run([variable.assign(float(rank)) for variable in variables])
        session.run(operation)
        assert session.run(variables) == [0.0, 0.0]


def test_objects_through_a_function(rank: int, size: int) -> None:
    assert hvd.broadcast_object_fn(size - 1)([rank]) == [size - 1]
