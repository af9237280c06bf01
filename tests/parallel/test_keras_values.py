"""Collectives of tfring.keras on values: NumPy in, NumPy out."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd

hvd.init()
SIZE, RANK = hvd.size(), hvd.rank()
SUM = SIZE * (SIZE + 1) / 2


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (RANK + 1, "int64"),
        (RANK + 1.0, "float64"),
        (np.float32(RANK + 1), "float32"),
        (np.full((2, 3), RANK + 1, "float16"), "float16"),
        ([RANK + 1.0], "float64"),
    ],
    ids=["int", "float", "float32", "array", "list"],
)
def test_allreduce(value: Any, dtype: str) -> None:
    result = hvd.allreduce(value, op=hvd.Sum)
    assert isinstance(result, (np.ndarray, np.generic))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.full(np.shape(value), SUM))


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, SUM / SIZE),
        ({"average": False}, SUM),
        ({"average": True}, SUM / SIZE),
        ({"op": hvd.Max}, SIZE),
        ({"op": hvd.Sum, "prescale_factor": 2.0}, 2 * SUM),
        ({"op": hvd.Sum, "postscale_factor": 0.5}, SUM / 2),
        ({"name": "n", "compression": hvd.Compression.fp16}, SUM / SIZE),
        ({"process_set": hvd.global_process_set}, SUM / SIZE),
    ],
    ids=str,
)
def test_arguments_of_allreduce(kwargs: Any, expected: float) -> None:
    assert hvd.allreduce(RANK + 1.0, **kwargs) == expected


def test_full_precision_of_python_numbers() -> None:
    assert hvd.allreduce(0.1, op=hvd.Max) == 0.1
    assert hvd.allreduce(2**60 + 1, op=hvd.Max) == 2**60 + 1


def test_allgather() -> None:
    result = hvd.allgather(np.full((RANK, 2), RANK, "int32"))
    assert isinstance(result, np.ndarray)
    assert result.dtype == "int32"
    np.testing.assert_array_equal(result[:, 0], np.repeat(np.arange(SIZE), np.arange(SIZE)))


def test_broadcast() -> None:
    assert hvd.broadcast(RANK + 5, root_rank=0) == 5
    assert hvd.broadcast([True, RANK == 0], SIZE - 1, "flags").tolist() == [True, SIZE == 1]


def test_reducescatter() -> None:
    rows = np.arange(SIZE + 1.0)[:, None] * (RANK + 1)
    mine = hvd.reducescatter(rows, op=hvd.Sum)
    expected = np.array_split(np.arange(SIZE + 1.0)[:, None] * SUM, SIZE)[RANK]
    assert isinstance(mine, np.ndarray)
    np.testing.assert_array_equal(mine, expected)
    assert hvd.reducescatter(np.ones(SIZE)).tolist() == [1.0]


@pytest.mark.parametrize("kind", [tf.constant, tf.Variable, keras.Variable])
def test_tensors_give_tensors(kind: Any) -> None:
    assert tf.is_tensor(hvd.allreduce(kind([1.0])))
    assert tf.is_tensor(hvd.allgather(kind([1.0])))
    assert tf.is_tensor(hvd.broadcast(kind([1.0]), 0))
    assert tf.is_tensor(hvd.reducescatter(kind([1.0] * SIZE)))


def test_sparse_tensors() -> None:
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([RANK]), tf.constant([SIZE, 1]))
    dense = tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum))
    assert dense.numpy().ravel().tolist() == [1.0] * SIZE


def test_in_a_function_all_are_tensors() -> None:
    step = tf.function(lambda: hvd.allreduce(np.float32(RANK + 1), op=hvd.Sum) + 0.5)
    assert float(step()) == SUM + 0.5


@pytest.mark.parametrize("value", ["text", [[1.0], [1.0, 2.0]], None], ids=str)
def test_bad_value_on_all_ranks(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        hvd.allreduce(value)
    assert hvd.allreduce(1, op=hvd.Sum) == SIZE


@pytest.mark.skipif(SIZE < 2, reason="needs at least 2 ranks")
@pytest.mark.parametrize("value", ["text", [[1.0], [1.0, 2.0]]], ids=str)
def test_bad_value_on_one_rank(value: Any) -> None:
    kinds = (TypeError, ValueError) if RANK == 0 else tf.errors.InvalidArgumentError
    with pytest.raises(kinds):
        hvd.allreduce(value if RANK == 0 else 1.0)
    assert hvd.allreduce(1, op=hvd.Sum) == SIZE
