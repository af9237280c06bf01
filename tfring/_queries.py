"""Questions about ranks that are answered when a graph runs, not when it is made."""

from __future__ import annotations

from typing import Any

from tfring import _calls, _checks, world
from tfring._autograph import as_it_stands


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
    return _calls.query(question, _checks.set_handle(process_set_id), name)
