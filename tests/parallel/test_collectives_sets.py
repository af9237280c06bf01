"""Process sets: collectives among some ranks, at the same time, and what is refused.

Works with any number of ranks from 2 on. `front` holds all ranks but the last, `back` all but the
first, so that with 3 and more ranks they overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import process_sets

pytestmark = pytest.mark.many_ranks

MODES = ["eager", "graph"]
Invalid = tf.errors.InvalidArgumentError


@pytest.fixture
def front(size: int) -> Iterator[hvd.ProcessSet]:
    added = hvd.add_process_set(range(size - 1))
    yield added
    hvd.remove_process_set(added)


@pytest.fixture
def back(size: int) -> Iterator[hvd.ProcessSet]:
    added = hvd.add_process_set(range(1, size))
    yield added
    hvd.remove_process_set(added)


@pytest.fixture(autouse=True)
def all_ranks_work_afterwards(size: int) -> Iterator[None]:
    yield
    assert process_sets.ids_and_ranks() == {0: list(range(size))}
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size


def call(mode: str, function, *arguments):
    return (function if mode == "eager" else tf.function(function))(*arguments)


def test_who_is_in(front: hvd.ProcessSet, rank: int, size: int) -> None:
    assert front.ranks == list(range(size - 1))
    assert (front.size(), front.included()) == (size - 1, rank < size - 1)
    assert hvd.allgather_object(front.process_set_id) == [front.process_set_id] * size
    if front.included():
        assert front.rank() == rank


@pytest.mark.parametrize("mode", MODES)
def test_every_collective(mode: str, back: hvd.ProcessSet, rank: int, size: int) -> None:
    """The last rank of the job is the root, so that global and own numbers differ."""
    if not back.included():
        return
    members = range(1, size)
    count = size - 1

    def everything(x: tf.Tensor):
        return {
            "sum": hvd.allreduce(x, op=hvd.Sum, process_set=back),
            "average": hvd.allreduce(x, process_set=back),
            "group": hvd.grouped_allreduce([x, 2.0 * x], op=hvd.Max, process_set=back),
            "gather": hvd.allgather(x, process_set=back),
            "gathers": hvd.grouped_allgather([x, x[:1]], process_set=back),
            "broadcast": hvd.broadcast(x, size - 1, process_set=back),
            "scatter": hvd.reducescatter(x, op=hvd.Sum, process_set=back),
            "scatters": hvd.grouped_reducescatter([x, x], process_set=back),
            "turned": hvd.alltoall(x, process_set=back),
        }

    results = call(mode, everything, tf.fill([count], float(rank)))
    total, mean = float(sum(members)), sum(members) / count
    expected = {
        "sum": [np.full(count, total)],
        "average": [np.full(count, mean)],
        "group": [np.full(count, size - 1), np.full(count, 2 * (size - 1))],
        "gather": [np.repeat(members, count)],
        "gathers": [np.repeat(members, count), np.array(members)],
        "broadcast": [np.full(count, size - 1)],
        "scatter": [[total]],
        "scatters": [[mean], [mean]],
        "turned": [np.array(members)],
    }
    assert results.keys() == expected.keys()
    for name, result in results.items():
        for own, right in zip(tf.nest.flatten(result), expected[name], strict=True):
            np.testing.assert_allclose(own, right, rtol=1e-6, err_msg=name)


def test_objects_and_variables(back: hvd.ProcessSet, rank: int, size: int) -> None:
    if not back.included():
        return
    assert hvd.broadcast_object(rank, size - 1, process_set=back) == size - 1
    assert hvd.allgather_object(rank, process_set=back) == list(range(1, size))
    variables = [tf.Variable(float(rank)), keras.Variable([rank])]
    hvd.broadcast_variables(variables, size - 1, process_set=back)
    values = hvd.broadcast_(variables, size - 1, process_set=back)
    for v in (*variables, *values):
        np.testing.assert_array_equal(v, np.full(v.shape, size - 1))
    hvd.barrier(process_set=back)


@pytest.mark.parametrize("mode", MODES)
def test_two_sets_at_the_same_time(
    mode: str, front: hvd.ProcessSet, back: hvd.ProcessSet, rank: int, size: int
) -> None:
    """Ranks that are in both call both, all call for all ranks in between."""

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        results = [hvd.allreduce(x, op=hvd.Sum, process_set=front)] if front.included() else []
        results.append(hvd.allreduce(x, op=hvd.Sum))
        if back.included():
            results.append(hvd.allreduce(x, op=hvd.Sum, process_set=back))
        return results

    function = step if mode == "eager" else tf.function(step)
    totals = [size * (size + 1) / 2 - size] if front.included() else []
    totals.append(size * (size + 1) / 2)
    totals += [size * (size + 1) / 2 - 1] if back.included() else []
    for _ in range(20):
        assert [float(r) for r in function(tf.constant(rank + 1.0))] == totals


@pytest.mark.ranks(4)
def test_halves_do_not_wait_for_each_other(rank: int) -> None:
    """Each half runs a different number of collectives, then all meet."""
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    own = sets[rank // 2]
    for i in range(10 if rank < 2 else 3):
        assert float(hvd.allreduce(rank + i, process_set=own, op=hvd.Sum)) == 2 * i + (
            1 if rank < 2 else 5
        )
    hvd.barrier()
    for added in sets:
        assert hvd.remove_process_set(added)


def test_set_of_one(rank: int, size: int) -> None:
    own = hvd.add_process_set([size - 1])
    if own.included():
        assert float(hvd.allreduce(rank, process_set=own)) == rank
        assert hvd.allgather_object("a", process_set=own) == ["a"]
    hvd.remove_process_set(own)


COLLECTIVES = {
    "allreduce": lambda s: hvd.allreduce(1.0, process_set=s),
    "grouped_allreduce": lambda s: hvd.grouped_allreduce([1.0], process_set=s),
    "slices": lambda s: hvd.allreduce(tf.IndexedSlices([[1.0]], [0]), process_set=s),
    "allgather": lambda s: hvd.allgather([1.0], process_set=s),
    "grouped_allgather": lambda s: hvd.grouped_allgather([[1.0]], process_set=s),
    "broadcast": lambda s: hvd.broadcast(1.0, 0, process_set=s),
    "broadcast_": lambda s: hvd.broadcast_([tf.Variable(1.0)], 0, process_set=s),
    "broadcast_variables": lambda s: hvd.broadcast_variables([tf.Variable(1.0)], 0, process_set=s),
    "broadcast_object": lambda s: hvd.broadcast_object(1, process_set=s),
    "allgather_object": lambda s: hvd.allgather_object(1, process_set=s),
    "reducescatter": lambda s: hvd.reducescatter([1.0], process_set=s),
    "grouped_reducescatter": lambda s: hvd.grouped_reducescatter([[1.0]], process_set=s),
    "alltoall": lambda s: hvd.alltoall([1.0] * 12, process_set=s),
    "barrier": lambda s: hvd.barrier(process_set=s),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_rank_outside_is_told_at_once(name: str, front: hvd.ProcessSet) -> None:
    """And its call does not disturb the members, which make the same one."""
    if front.included():
        COLLECTIVES[name](front)
    else:
        with pytest.raises(Invalid, match="must hold the rank that calls"):
            COLLECTIVES[name](front)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_set_that_is_not_registered(name: str, size: int) -> None:
    with pytest.raises(ValueError, match="must be registered"):
        COLLECTIVES[name](hvd.ProcessSet(range(size)))


def test_root_outside_of_the_set(front: hvd.ProcessSet, size: int) -> None:
    if front.included():
        for call in (hvd.broadcast, hvd.broadcast_object):
            with pytest.raises(Invalid, match=f"`root_rank` must be a rank .*={size - 1}"):
                call(1.0, size - 1, process_set=front)


@pytest.mark.parametrize("ranks", ["beyond", "all", "twice"])
def test_ranks_that_cannot_be_a_set(ranks: str, front: hvd.ProcessSet, size: int) -> None:
    wrong = {"beyond": [0, size], "all": range(size), "twice": range(size - 1)}[ranks]
    with pytest.raises(ValueError, match="Received: process_set=ProcessSet"):
        hvd.add_process_set(wrong)


@pytest.mark.parametrize("ranks", ["beyond", "all"])
def test_ranks_of_one_rank_alone_that_cannot_be_a_set(ranks: str, rank: int, size: int) -> None:
    wrong = {"beyond": [0, size], "all": range(size)}[ranks]
    with pytest.raises(ValueError, match=f"rank {size}|already|rank 1: ") as error:
        hvd.add_process_set(wrong if rank == 1 else [0])
    assert ("add_process_set: rank 1: " in str(error.value)) == (rank != 1)


def test_ranks_that_disagree_about_a_set(rank: int) -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match="rank"):
        hvd.add_process_set([0] if rank == 0 else [1])


@pytest.mark.parametrize("wrong", [[-1], [0, 0], "all", None, [], hvd.global_process_set], ids=str)
def test_lists_of_one_rank_alone_that_are_no_set(wrong: object, rank: int, size: int) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        hvd.add_process_set(wrong if rank == size - 1 else [0])
    assert rank == size - 1 or f"rank {size - 1}: " in str(error.value)


def test_removal_of_one_rank_alone_that_is_wrong(front: hvd.ProcessSet, rank: int) -> None:
    kind = TypeError if rank == 0 else ValueError
    with pytest.raises(kind, match="`process_set` must be a tfring.ProcessSet"):
        hvd.remove_process_set("front" if rank == 0 else front)


def test_ids_are_used_again(size: int) -> None:
    first, second = hvd.add_process_set([0]), hvd.add_process_set([1])
    ids = first.process_set_id, second.process_set_id
    assert hvd.remove_process_set(first) is True
    assert hvd.remove_process_set(first) is False
    assert hvd.add_process_set(first) is first
    assert (first.process_set_id, second.process_set_id) == ids
    assert all(hvd.remove_process_set(s) for s in (second, first))
    assert hvd.remove_process_set(hvd.global_process_set) is False


def test_function_of_a_removed_set(rank: int, size: int) -> None:
    added = hvd.add_process_set(range(1, size))
    function = tf.function(lambda x: hvd.allreduce(x, process_set=added))
    if added.included():
        assert float(function(tf.constant(1.0))) == 1.0
    hvd.remove_process_set(added)
    if rank >= 1:
        with pytest.raises(Invalid, match="process set"):
            function(tf.constant(1.0))
    # Another set with the same id, and the same ranks again: still not what was traced.
    for ranks in ([0, 1], range(1, size)):
        other = hvd.add_process_set(ranks) if len(ranks) < size else None
        if rank == 1:
            with pytest.raises(Invalid, match="process set"):
                function(tf.constant(1.0))
        if other is not None:
            hvd.remove_process_set(other)


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode: str, back: hvd.ProcessSet, rank: int, size: int) -> None:
    if not back.included():
        return
    count = size - 1

    def compute(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            losses = [
                tf.reduce_sum(rank * hvd.allreduce(x, op=hvd.Sum, process_set=back)),
                tf.reduce_sum(rank * hvd.allgather(x, process_set=back)),
                tf.reduce_sum(rank * hvd.broadcast(x, size - 1, process_set=back)),
                tf.reduce_sum(rank * hvd.reducescatter(x, process_set=back)),
                tf.reduce_sum(rank * hvd.alltoall(x, process_set=back)),
                tf.reduce_sum(rank * hvd.allreduce(x, op=hvd.Product, process_set=back)),
            ]
        return [tape.gradient(loss, x) for loss in losses]

    total = sum(range(1, size))
    mean = total / count
    expected = [
        np.full(count, total),
        np.full(count, mean),
        np.full(count, mean if rank == size - 1 else 0),
        np.arange(1, size),
        np.arange(1, size),
        np.full(count, total),
    ]
    for result, value in zip(call(mode, compute, tf.ones([count])), expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_questions_at_run_time(mode: str, front: hvd.ProcessSet, rank: int, size: int) -> None:
    def ask() -> list[tf.Tensor]:
        return [
            hvd.size_op(),
            hvd.rank_op(),
            hvd.local_size_op(),
            hvd.local_rank_op(),
            hvd.size_op(front.process_set_id),
            hvd.process_set_included_op(),
            hvd.process_set_included_op(front.process_set_id),
        ]

    answers = call(mode, ask)
    assert all(answer.dtype == tf.int32 for answer in answers)
    expected = [size, rank, hvd.local_size(), hvd.local_rank(), size - 1, 1, rank < size - 1]
    assert [int(answer) for answer in answers] == expected
    for question in (hvd.size_op, hvd.process_set_included_op):
        for number in (77, -1, None):
            with pytest.raises(Invalid):
                call(mode, lambda ask=question, number=number: ask(number))
