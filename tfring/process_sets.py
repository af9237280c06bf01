"""Process sets: groups of ranks with collectives of their own.

    even = hvd.ProcessSet(range(0, 4, 2))
    hvd.init(process_sets=[even])
    if even.included():
        hvd.allreduce(x, process_set=even)

Collectives of different sets run at the same time. This module does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from tfring import errors, world

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

_FAULTS_S = 2.0
# Numbers of tfr_kind in custom_ops/core/tfring.h.
_ADD = 101
_REMOVE = 102
_ID_MASK = (1 << 32) - 1
_NO_COMMUNICATORS = (
    "there is no MPI, so `{0}` cannot be an mpi4py communicator; give the list of its ranks. "
    "Received: {0}={1!r}"
)


class ProcessSet:
    """A group of ranks; collectives with `process_set=` run among them only.

    A set takes part in collectives once it is registered, by `init` or `add_process_set`; sets
    are equal only to themselves.

    Args:
        ranks_or_comm: ranks of the set, each once; they are sorted.

    Attributes:
        process_set_id: number of the set, equal on all ranks; None while it is not registered.
        ranks: its ranks, ascending.
        mpi_comm: always None; Horovod's scripts print it.

    Raises:
        TypeError: it is no sequence of whole numbers.
        ValueError: a rank is negative or given twice, there is none, or it is a communicator.

    Example:
        >>> import tfring as hvd
        >>> print(hvd.ProcessSet([2, 0]))
        ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)
    """

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        self.process_set_id: int | None = None
        self._handle: int | None = None
        self.ranks: list[int] | None = _checked_ranks(ranks_or_comm)
        self.mpi_comm: Any = None

    def size(self) -> int | None:
        """Returns the number of ranks, or None while the set is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return len(self.ranks)

    def rank(self) -> int | None:
        """Returns this rank's place in the set, or None while the set is not registered.

        Raises:
            ValueError: this rank is not in the set.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        if world.rank() not in self.ranks:
            raise ValueError(f"rank {world.rank()} is not in {self}; ask `included()` first")
        return self.ranks.index(world.rank())

    def included(self) -> bool | None:
        """Returns whether this rank is in the set, or None while the set is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return world.rank() in self.ranks

    @property
    def handle(self) -> int | None:
        """What the ops know the set by, see `_registered`; None while it is not registered."""
        return self._handle

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


# The sets that can be used now, by handle: what the engine and the ops know a set by. Its low 32
# bits are the id, which is used again; a removed set's handle never means another set.
_registered: dict[int, ProcessSet] = {}


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set; every rank of the job must call it, member or not.

    All ranks must make their calls of `add_process_set` and `remove_process_set` in the same
    order. It needs the dynamic mode: `init(process_sets="dynamic")` or the environment variable
    TFRING_DYNAMIC_PROCESS_SETS=1. Ids of removed sets are used again, in the order
    in which they were removed.

    Args:
        process_set: a `ProcessSet` that is not registered, or a sequence of ranks.

    Returns:
        The registered `ProcessSet`: the one given, or a new one.

    Raises:
        NotInitializedError: before `init`.
        TypeError: it is neither a `ProcessSet` nor a sequence of ranks.
        ValueError: the dynamic mode is off; a rank is not in the job; these ranks, or all ranks
            of the job, are a set already. What is wrong on one rank only, all others hear, too.
        tf.errors.FailedPreconditionError: on every rank, when ranks gave different ranks.
        CommunicationError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init(process_sets="dynamic")
        >>> if hvd.size() > 2:
        ...     pair = hvd.add_process_set([0, 1])
    """
    world.require_usable()
    with _announced(_ADD):
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        _require_dynamic("add_process_set")
        if process_set.process_set_id is not None:
            raise ValueError(
                "`process_set` must not be registered already. Received: process_set="
                f"{process_set}. Remove it first, or make another of other ranks."
            )
    _add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a registered process set; every rank of the job must call it, member or not.

    Afterwards the object's id is None, and it may be added again. A `tf.function` that was traced
    with the set fails with InvalidArgumentError from then on, also when another set, or this one,
    has got the id.

    Args:
        process_set: the set.

    Returns:
        True; False for `global_process_set` and for a set that is not registered, where nothing
        is done.

    Raises:
        NotInitializedError: before `init`.
        TypeError: it is no `ProcessSet`.
        ValueError: the dynamic mode is off, see `add_process_set`; or the call of another rank
            was wrong.
        tf.errors.FailedPreconditionError: on every rank, when ranks gave different sets, or
            collectives of the set are not finished.
        CommunicationError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init(process_sets="dynamic")
        >>> hvd.remove_process_set(hvd.global_process_set)
        False
    """
    from tfring import _ops

    world.require_usable()
    with _announced(_REMOVE):
        if not isinstance(process_set, ProcessSet):
            raise TypeError(
                f"`process_set` must be a tfring.ProcessSet. Received: process_set={process_set!r}"
            )
    handle = process_set._handle
    if not handle:
        return False
    _require_dynamic("remove_process_set")
    # Calls with wrong arguments have raised, but the peers may be on their way to them.
    _ops.wait_for_faults(_FAULTS_S)
    with _engine_errors(process_set):
        world.call("tfr_process_set_remove", handle)
    del _registered[handle]
    process_set.process_set_id = process_set._handle = None
    return True


def requested(process_sets: Any, size: int) -> list[ProcessSet]:
    """Returns the sets that `init` was asked for, checked as far as one rank can.

    Args:
        process_sets: what `init` takes: None, "dynamic", or a sequence of `ProcessSet`.
        size: number of ranks of the job.

    Raises:
        TypeError: it is something else.
        ValueError: another text, a rank that is not in the job, or ranks that are given twice.
    """
    if process_sets is None or process_sets == "dynamic":
        return []
    if isinstance(process_sets, (str, ProcessSet)) or not isinstance(process_sets, Sequence):
        kind: type[Exception] = ValueError if isinstance(process_sets, str) else TypeError
        raise kind(
            '`process_sets` must be a list of tfring.ProcessSet, "dynamic" or None. '
            f"Received: process_sets={process_sets!r}"
        )
    seen = [list(range(size))]
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet):
            raise TypeError(
                "`process_sets` must hold tfring.ProcessSet objects only. "
                f"Received: {process_set!r} in process_sets"
            )
        _check_new(process_set, size, seen)
        seen.append(process_set.ranks or [])
    return list(process_sets)


def _setup(process_sets: Sequence[ProcessSet]) -> None:
    """Registers the global set and those that `init` was asked for; `init` calls it."""
    _teardown()
    global_process_set.ranks = list(range(world.size()))
    _registered[0] = global_process_set
    for process_set in process_sets:
        _add(process_set)


def _teardown() -> None:
    """Makes every set unusable; `shutdown` calls it."""
    for handle, process_set in _registered.items():
        if handle:
            process_set.process_set_id = process_set._handle = None
    global_process_set.ranks = None
    _registered.clear()


def handle_of(number: int) -> int:
    """Returns the handle of the set that has this id now; where none has, that of the first one."""
    return next((h for h, s in _registered.items() if s.process_set_id == number), number)


def ranks_of(handle: int) -> list[int]:
    """Returns the ranks of the set with this handle.

    Raises:
        ValueError: there is none.
    """
    if handle == 0:
        return list(range(world.size()))
    if handle not in _registered:
        number = handle & _ID_MASK
        raise ValueError(
            f"there is no process set with id {number}; it was removed, or never added. "
            f"Registered: {', '.join(map(str, _registered.values())) or 'none'}"
        )
    return list(_registered[handle].ranks or [])


def of_ranks(ranks: Sequence[int]) -> ProcessSet:
    """Returns the registered set of these ranks, or a new one that is not registered."""
    process_set = ProcessSet(ranks)
    same = (known for known in _registered.values() if known.ranks == process_set.ranks)
    return next(same, process_set)


def ids_and_ranks() -> dict[int, list[int]]:
    """Returns the ranks of every registered set by its id."""
    by_id = ((s.process_set_id or 0, list(s.ranks or [])) for s in _registered.values())
    return dict(sorted(by_id))


def _add(process_set: ProcessSet) -> None:
    ranks = process_set.ranks or []
    numbers = (ctypes.c_int32 * len(ranks))(*ranks)
    handle = ctypes.c_int64()
    with _engine_errors(process_set):
        world.call("tfr_process_set_add", numbers, len(ranks), ctypes.byref(handle))
    process_set.process_set_id = handle.value & _ID_MASK
    process_set._handle = handle.value
    _registered[handle.value] = process_set


@contextlib.contextmanager
def _announced(kind: int) -> Iterator[None]:
    """Announces an exception in the body to the peers, whose calls then fail, too."""
    try:
        yield
    except Exception as error:
        from tfring import _ops

        _ops.announce_fault(kind, "process_set", str(error).splitlines()[0], 0)
        raise


@contextlib.contextmanager
def _engine_errors(process_set: ProcessSet) -> Iterator[None]:
    """Raises the engine's errors as the kinds that this module promises."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, errors.NotInitializedError):
            raise
        raise ValueError(f"{error}. Received: process_set={process_set}") from None
    except errors.CommunicationError:
        raise
    except RuntimeError as error:
        import tensorflow as tf

        raise tf.errors.FailedPreconditionError(None, None, str(error)) from None


def _require_dynamic(function: str) -> None:
    if not world.settings().dynamic_process_sets:
        raise ValueError(
            f"`{function}` after init needs the dynamic mode, and the init that has run did not "
            'ask for it. Make that first call init(process_sets="dynamic") (a second one does '
            "nothing without shutdown()), set TFRING_DYNAMIC_PROCESS_SETS=1, or give all sets to "
            "init(process_sets=[...])."
        )


def _check_new(process_set: ProcessSet, size: int, seen: Sequence[list[int]]) -> None:
    ranks = process_set.ranks or []
    if process_set.process_set_id is not None or ranks in seen:
        raise ValueError(
            "`process_sets` must not hold ranks twice, nor all ranks of the job, which are "
            f"tfring.global_process_set. Received: {process_set} in a job of size {size}"
        )
    if ranks[-1] >= size:
        raise ValueError(
            f"`process_sets` must hold ranks of this job, 0 to {size - 1}. Received: {process_set}"
        )


def _checked_ranks(ranks: Any) -> list[int]:
    if hasattr(ranks, "Get_rank"):
        raise ValueError(_NO_COMMUNICATORS.format("ranks_or_comm", ranks))
    try:
        numbers = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        raise TypeError(
            f"`ranks_or_comm` must be a sequence of ranks. Received: ranks_or_comm={ranks!r}"
        ) from None
    if not numbers or numbers[0] < 0 or len(set(numbers)) != len(numbers):
        raise ValueError(
            "`ranks_or_comm` must hold at least one rank, each once and none negative. "
            f"Received: ranks_or_comm={ranks!r}"
        )
    return numbers


def _global() -> ProcessSet:
    process_set = ProcessSet([0])
    process_set.process_set_id = process_set._handle = 0
    process_set.ranks = None  # known after init
    return process_set


global_process_set = _global()
