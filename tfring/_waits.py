"""Collectives that carry no tensors, and questions that wait for nobody."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring import _calls, _checks, _ways, world
from tfring._autograph import as_it_stands
from tfring.process_sets import ProcessSet, global_process_set


@as_it_stands
def barrier(name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Waits until every rank has called it.

    Inside a `tf.function` it runs after all collectives created before it in that function, and
    before all created after it.

    Args:
        name: pairs this call with those of other ranks. Default: by position.
        process_set: the ranks that wait for each other. Default: all.

    Returns:
        None in eager mode, the operation in a graph.

    Raises:
        NotInitializedError: before `init`.
        ValueError: the process set is not registered, or the name is empty.
        tf.errors.InvalidArgumentError: this rank is not in the process set.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.barrier()
    """
    group = _checks.process_set(process_set)
    with _calls.announced(_calls.BARRIER, name, group):
        name = _checks.name(name)
    return _calls.barrier(name, group)


@as_it_stands
def join() -> Any:
    """Tells that this rank has no more data, and waits until every rank has called it.

    Until then allreduce of other ranks goes on without this one: Sum, Min, Max and Product are over
    the ranks that are still active, Adasum takes this rank's part as zeros, and **Average divides
    by the number of ranks that are still active**, so it stays the average over the data there is.
    (Horovod divides by the number of all ranks.) All other collectives, allreduce of
    `tf.IndexedSlices` that are gathered included, fail with `tf.errors.FailedPreconditionError` on
    the active ranks. When all have joined, collectives work again as before.

    It is for all ranks of the job, not for process sets. Inside a `tf.function` it runs after all
    collectives created before it, and before all created after it.

    Returns:
        The rank that called it last: an int32 scalar.

    Raises:
        NotInitializedError: before `init`.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> 0 <= int(hvd.join()) < hvd.size()
        True
    """
    last = _calls.join()
    with tf.control_dependencies([last]):
        # A rank that had joined has missed what the others chose meanwhile.
        _ways.start_over()
    return last


@as_it_stands
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of ranks, found when the op runs, not when the graph is made.

    Args:
        process_set_id: `ProcessSet.process_set_id` of the ranks to count. Default: all.
        name: of the op.

    Returns:
        An int32 scalar.

    Raises:
        NotInitializedError: before `init`, in eager mode and when a function is traced.
        tf.errors.InvalidArgumentError: there is no such process set.
        tf.errors.FailedPreconditionError: when a graph runs after `shutdown`.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> int(hvd.size_op()) == hvd.size()
        True
    """
    return _ask(_calls.SIZE, name, process_set_id)


@as_it_stands
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 where this rank is in the process set, else 0, found when the op runs.

    Args:
        process_set_id: `ProcessSet.process_set_id`. Default: all ranks.
        name: of the op.

    Returns:
        An int32 scalar.

    Raises:
        NotInitializedError, tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError: as
            for `size_op`.
    """
    return _ask(_calls.INCLUDED, name, process_set_id)


@as_it_stands
def rank_op(name: str | None = None) -> Any:
    """Returns this rank's number as an int32 scalar, found when the op runs; see `size_op`."""
    return _ask(_calls.RANK, name)


@as_it_stands
def local_size_op(name: str | None = None) -> Any:
    """Returns the number of ranks on this host as an int32 scalar; see `size_op`."""
    return _ask(_calls.LOCAL_SIZE, name)


@as_it_stands
def local_rank_op(name: str | None = None) -> Any:
    """Returns this rank's number on its host as an int32 scalar; see `size_op`."""
    return _ask(_calls.LOCAL_RANK, name)


def _ask(question: int, name: str | None, process_set_id: int = 0) -> Any:
    world.require_usable()
    return _calls.query(question, _checks.set_id(process_set_id), name)
