"""Collectives that carry no tensors: they only wait for other ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring import _calls, _checks, _ways
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
