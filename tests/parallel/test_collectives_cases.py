"""Cases about gradients with values worked out by hand, each for its number of ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = pytest.mark.timeout(120)
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
HALVES = [
    ("float16", hvd.Average, [30000.0] * 4, 30000.0),
    ("float16", hvd.Average, [6e-8] * 4, 6e-8),
]
HALVES += [("bfloat16", hvd.Sum, [1.0, 2**-9, 2**-9, 2**-9], 1.0078125)]


def call(function: Any, graph: bool) -> Any:
    return (tf.function(function) if graph else function)()


def of_rank(first: Any, second: Any) -> Any:
    return second if hvd.rank() else first


@pytest.mark.ranks(4)
@MODES
@pytest.mark.parametrize(("dtype", "op", "values", "expected"), HALVES)
def test_16_bit_sums(
    graph: bool, dtype: str, op: int, values: list[float], expected: float
) -> None:
    """Added up in float32 and rounded once: no overflow, no loss of small terms."""
    mine = tf.constant(values[hvd.rank()], dtype)
    result = call(lambda: hvd.allreduce(mine, op=op), graph)
    assert result.dtype == dtype
    assert result.numpy() == tf.constant(expected, dtype).numpy()


@pytest.mark.ranks(4)
@MODES
@pytest.mark.parametrize(("dtype", "op", "values", "expected"), HALVES)
def test_16_bit_gradients(
    graph: bool, dtype: str, op: int, values: list[float], expected: float
) -> None:
    w = tf.Variable(tf.zeros((), dtype))

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = w * tf.constant(values[hvd.rank()], dtype)
        return hvd.DistributedGradientTape(tape, op=op).gradient(loss, w)

    assert call(gradient, graph).numpy() == tf.constant(expected, dtype).numpy()


@pytest.mark.ranks(2)
@MODES
def test_a_variable_used_on_one_rank_only(graph: bool) -> None:
    used, lonely, unused = (keras.Variable(0.0) for _ in range(3))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([used, lonely, unused])

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = 1.0 * used + (4.0 * lonely if hvd.rank() == 0 else 0.0)
        gradients = tape.gradient(loss, [used, lonely, unused])
        optimizer.apply(gradients, [used, lonely, unused])

    call(step, graph)
    assert [float(v.numpy()) for v in (used, lonely, unused)] == [-1.0, -2.0, 0.0]


@pytest.mark.ranks(2)
@MODES
def test_it_is_an_error_in_strict_mode(graph: bool) -> None:
    lonely = keras.Variable(0.0, name="lonely")

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = 4.0 * lonely if hvd.rank() == 0 else tf.constant(1.0)
        return hvd.DistributedGradientTape(tape, strict=True).gradient(loss, lonely)

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"`lonely` is None on ranks \[1\]"):
        call(step, graph)
    assert float(hvd.allreduce(1.0 + hvd.rank(), op=hvd.Sum)) == 3.0  # usable afterwards


def table_gradient(table: Any, **options: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, of_rank([0, 1, 1], [1, 3])))
    return hvd.DistributedGradientTape(tape, **options).gradient(loss, table)


@pytest.mark.ranks(2)
@MODES
@pytest.mark.parametrize("as_dense", [False, True], ids=["sparse", "as dense"])
def test_sparse_average(graph: bool, as_dense: bool) -> None:
    table = tf.Variable(tf.zeros((4, 2)))
    step = lambda: table_gradient(table, sparse_as_dense=as_dense)  # noqa: E731
    step = tf.function(step) if graph else step
    for _ in range(3):  # the first travels as rows; then the small table travels whole
        result = step()
        assert isinstance(result, tf.Tensor if as_dense else tf.IndexedSlices)
        np.testing.assert_array_equal(
            tf.convert_to_tensor(result), np.outer([0.5, 1.5, 0.0, 0.5], [1.0, 1.0])
        )


ROW = 2 * 4 + 8  # two float32 and the number of the row
COUNTS = 2 * 8  # how many rows of values and of numbers, int64


def payload_of(send: Any) -> int:
    before = hvd.stats().payload_bytes
    send()
    return hvd.stats().payload_bytes - before


@pytest.mark.ranks(2)
def test_merged_rows_are_sent() -> None:
    """2 rows of each rank: rank 0 adds up its two rows number 1."""
    table = keras.Variable(np.zeros((4, 2)))
    rows = tf.constant(of_rank([0, 1, 1], [1, 3]), tf.int64)
    slices = tf.IndexedSlices(tf.ones((3 - hvd.rank(), 2)), rows, tf.constant([4, 2]))
    assert payload_of(lambda: hvd.allreduce(slices)) == 2 * ROW + COUNTS

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([table])
    none = tf.IndexedSlices(tf.zeros((0, 2)), tf.zeros((0,), tf.int64), tf.constant([4, 2]))
    optimizer.apply([none], [table])  # agrees on the plan
    assert payload_of(lambda: optimizer.apply([slices], [table])) == 2 * ROW + COUNTS
    np.testing.assert_array_equal(table, -np.outer([0.5, 1.5, 0.0, 0.5], [1.0, 1.0]))


@pytest.mark.ranks(2)
def test_allreduce_of_slices_gives_each_ranks_merged_rows() -> None:
    rows = tf.constant(of_rank([0, 1, 1], [1, 3]))
    result = hvd.allreduce(tf.IndexedSlices(tf.ones((3 - hvd.rank(), 2)), rows, [4, 2]))
    assert result.indices.numpy().tolist() == [0, 1, 1, 3]
    assert result.values.numpy()[:, 0].tolist() == [0.5, 1.0, 0.5, 0.5]


@pytest.mark.ranks(2)
@MODES
def test_fp16_compression(graph: bool) -> None:
    w = tf.Variable(0.0)

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = w * tf.constant(of_rank(1.0, 2.0)) / 3.0
        tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)
        return tape.gradient(loss, w)

    result = call(gradient, graph)
    assert result.dtype == tf.float32
    assert abs(float(result) - 0.5) <= np.spacing(np.float16(0.5))
