"""Wrong arguments: the right kind of error on every rank, at once, and the engine usable after."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

Invalid = tf.errors.InvalidArgumentError
Mismatch = tf.errors.FailedPreconditionError

pytestmark = pytest.mark.many_ranks


@pytest.fixture(autouse=True)
def usable_afterwards(rank: int, size: int) -> Iterator[None]:
    yield
    assert float(hvd.allreduce(rank + 1.0, op=hvd.Sum)) == size * (size + 1) / 2


# name: (what is wrong, what the rank that does it raises)
EVERYWHERE: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    "root beyond the world": (lambda: hvd.broadcast(1.0, 99), Invalid),
    "negative root": (lambda: hvd.broadcast(1.0, -1), Invalid),
    "root of variables": (lambda: hvd.broadcast_([tf.Variable(1.0)], 99), Invalid),
    "root of an object": (lambda: hvd.broadcast_object(1, 99), Invalid),
    "scalar to allgather": (lambda: hvd.allgather(1.0), Invalid),
    "scalar to grouped allgather": (lambda: hvd.grouped_allgather([[1.0], 1.0]), Invalid),
    "scalar to reducescatter": (lambda: hvd.reducescatter(1.0), Invalid),
    "scalar to alltoall": (lambda: hvd.alltoall(1.0), Invalid),
    "too few splits": (lambda: hvd.alltoall([1.0], [1]), Invalid),
    "splits of two dimensions": (lambda: hvd.alltoall([1.0], [[1] * hvd.size()]), Invalid),
    "splits beyond the rows": (lambda: hvd.alltoall([1.0], [1] * hvd.size()), Invalid),
    "negative split": (lambda: hvd.alltoall([1.0], [-1] + [1] * (hvd.size() - 1)), Invalid),
    "rows that do not divide": (lambda: hvd.alltoall(tf.ones([hvd.size() + 1])), Invalid),
    "fractional splits": (lambda: hvd.alltoall([1.0], [0.5] * hvd.size()), TypeError),
    "text": (lambda: hvd.allreduce("text"), TypeError),
    "sum of booleans": (lambda: hvd.allreduce(True), ValueError),
    "unknown op": (lambda: hvd.allreduce(1.0, op=9), ValueError),
    "op and average": (lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum), ValueError),
    "infinite factor": (lambda: hvd.allreduce(1.0, prescale_factor=np.inf), ValueError),
    "no compressor": (lambda: hvd.allreduce(1.0, compression=3), TypeError),
    "minimum to reducescatter": (lambda: hvd.reducescatter([1.0], op=hvd.Min), ValueError),
    "booleans to reducescatter": (lambda: hvd.reducescatter([True]), ValueError),
    "adasum of integers": (lambda: hvd.allreduce(1, op=hvd.Adasum), ValueError),
    "slices with Max": (
        lambda: hvd.allreduce(tf.IndexedSlices([[1.0]], [0]), op=hvd.Max),
        NotImplementedError,
    ),
    "slices without indices": (
        lambda: hvd.allreduce(tf.IndexedSlices([[1.0], [2.0]], [0])),
        Invalid,
    ),
    "no number": (lambda: hvd.allreduce(1.0, prescale_factor="x"), ValueError),
    "no list": (lambda: hvd.grouped_allreduce(tf.ones([2])), TypeError),
}
# What the other ranks call at the same time, by kind.
RIGHT = {
    "root": lambda: hvd.broadcast(1.0, 0),
    "allgather": lambda: hvd.allgather([1.0]),
    "split": lambda: hvd.alltoall(tf.ones([hvd.size()])),
    "other": lambda: hvd.allreduce(1.0),
    "object": lambda: hvd.broadcast_object(1, 0),
    "reducescatter": lambda: hvd.reducescatter([1.0]),
}


@pytest.mark.parametrize("case", EVERYWHERE)
def test_wrong_on_all_ranks(case: str) -> None:
    call, kind = EVERYWHERE[case]
    for _ in range(2):
        with pytest.raises(kind):
            call()


def right_for(case: str) -> Callable[[], object]:
    if "alltoall" in case or "split" in case or "divide" in case:
        return RIGHT["split"]
    for word in ("object", "root", "allgather", "reducescatter"):
        if word in case:
            return RIGHT[word]
    return RIGHT["other"]


@pytest.mark.parametrize("case", EVERYWHERE)
def test_wrong_on_the_last_rank_only(case: str, rank: int, size: int) -> None:
    call, kind = EVERYWHERE[case]
    if rank == size - 1:
        with pytest.raises(kind):
            call()
    else:
        with pytest.raises(Invalid, match=f"rank {size - 1}"):
            right_for(case)()


@pytest.mark.parametrize("case", ["splits beyond the rows", "negative split"])
def test_wrong_splits_of_one_rank_in_a_function(case: str, rank: int, size: int) -> None:
    bad = [2] * size if case == "splits beyond the rows" else [-1] + [1] * (size - 1)
    splits = tf.constant(bad if rank == 0 else [1] * size)
    function = tf.function(lambda x, s: hvd.alltoall(x, s)[0])
    with pytest.raises(Invalid, match="rank 0"):
        function(tf.ones([size]), splits)
    assert function(tf.ones([size]), tf.ones([size], tf.int32)).shape == (size,)


def test_scalar_of_one_rank_in_a_function(rank: int) -> None:
    function = tf.function(hvd.reducescatter, input_signature=[tf.TensorSpec(None)])
    with pytest.raises(Invalid, match="rank 0"):
        function(tf.constant(1.0) if rank == 0 else tf.ones([4]))


MISMATCHES = {
    "reducescatter shape": lambda rank: hvd.reducescatter(tf.ones([4 + (rank == 0), 2])),
    "reducescatter dtype": lambda rank: hvd.reducescatter(
        tf.ones([4], tf.float32 if rank else tf.float64)
    ),
    "reducescatter op": lambda rank: hvd.reducescatter(
        tf.ones([4]), op=hvd.Sum if rank else hvd.Average
    ),
    "alltoall columns": lambda rank: hvd.alltoall(tf.ones([hvd.size(), 2 + (rank == 0)])),
    "alltoall dtype": lambda rank: hvd.alltoall(
        tf.ones([hvd.size()], tf.float32 if rank else tf.int32)
    ),
    "gather columns": lambda rank: hvd.grouped_allgather(
        [tf.ones([1]), tf.ones([1, 2 + (rank == 0)])]
    ),
    "root": lambda rank: hvd.broadcast_([tf.Variable(1.0)], 0 if rank else 1),
    "kind": lambda rank: hvd.alltoall(tf.ones([hvd.size()])) if rank else hvd.allreduce(1.0),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_ranks_that_disagree(case: str, rank: int) -> None:
    with pytest.raises(Mismatch, match="rank"):
        MISMATCHES[case](rank)


def test_variables_keep_their_values(rank: int) -> None:
    variable = tf.Variable(float(rank))
    with pytest.raises(Invalid):
        hvd.broadcast_([variable], 99)
    assert float(variable) == rank
