"""Exchange of Python objects, and of variables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import tensorflow as tf

from tfring import _calls, _checks, _exchange, _gathers, world
from tfring._autograph import as_it_stands
from tfring.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]


@as_it_stands
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's Python object on every rank.

    Two collectives: its pickled size, then its bytes. Only objects of this job's own ranks are
    unpickled. Works in eager mode and, at once, while a v1 graph is built.

    Args:
        obj: anything that cloudpickle can pickle; counts on the root only, so its type may differ
            between ranks.
        root_rank: rank whose object is sent: its number in the job, also with a process set.
            Default 0.
        session: accepted for Horovod's scripts; has no effect, the bytes do not go through
            TensorFlow.
        name: pairs this call with those of other ranks. Default `"broadcast_object"`.
        process_set: the ranks that take part. Default: all.

    Returns:
        `obj` itself on the root, a copy elsewhere.

    Raises:
        NotInitializedError: before `init`.
        RuntimeError: inside a `tf.function`.
        TypeError: on all ranks, when an object that is sent cannot be pickled.
        ValueError: the process set is not registered, or the name is empty.
        tf.errors.InvalidArgumentError: `root_rank` is no rank of the process set; this rank is not
            in the process set; or a peer's arguments are wrong.
        tf.errors.FailedPreconditionError: ranks disagree about the root.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    group = _checks.process_set(process_set)
    _checks.eager("broadcast_object")
    key = _checks.name(name) or "broadcast_object"
    with _calls.announced(_calls.BROADCAST, f"{key}/size", group):
        root = _checks.root(root_rank, group)
    is_root = world.rank() == root
    sent, failed = _pickled(obj, "broadcast_object") if is_root else (b"", False)
    received = _exchange.broadcast(sent, root, key, group)
    return obj if is_root and not failed else _unpickled([received])[0]


@as_it_stands
def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function of one object that does what `broadcast_object` does.

    Args:
        root_rank: as for `broadcast_object`, and so are all other arguments.
        session: has no effect.
        name: pairs the calls with those of other ranks. Default `"broadcast_object"`.
        process_set: the ranks that take part. Default: all.

    Returns:
        A function that takes this rank's object and returns the root's.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.broadcast_object_fn(root_rank=0)([1, 2])
        [1, 2]
    """
    return functools.partial(
        broadcast_object, root_rank=root_rank, session=session, name=name, process_set=process_set
    )


@as_it_stands
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the Python objects of all ranks, in rank order.

    One collective. Only objects of this job's own ranks are unpickled. Works in eager mode and,
    at once, while a v1 graph is built.

    Args:
        obj: anything that cloudpickle can pickle.
        session: has no effect, as for `broadcast_object`.
        name: pairs this call with those of other ranks. Default `"allgather_object"`.
        process_set: the ranks that take part. Default: all.

    Returns:
        List with one object of each rank.

    Raises:
        NotInitializedError: before `init`.
        RuntimeError: inside a `tf.function`.
        TypeError: on all ranks, when an object that is sent cannot be pickled.
        ValueError: the process set is not registered, or the name is empty.
        tf.errors.InvalidArgumentError: this rank is not in the process set.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
        True
    """
    group = _checks.process_set(process_set)
    _checks.eager("allgather_object")
    key = _checks.name(name) or "allgather_object"
    payload, _ = _pickled(obj, "allgather_object")
    return _unpickled(_exchange.allgather(payload, key, group))


@as_it_stands
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns the root's values to the variables of every rank, in one collective.

    Works in eager mode, inside a `tf.function`, and in graphs of `tf.compat.v1`.

    Args:
        variables: list of `tf.Variable` and `keras.Variable`, with equal number, order, shapes and
            dtypes on all ranks; dtypes may differ within the list.
        root_rank: rank whose values are sent: its number in the job, also with a process set.
        process_set: the ranks that take part. Default: all.
        inplace: accepted for Horovod's scripts; has no effect.

    Returns:
        None in eager mode; the operation in a graph, which a v1 session must run.

    Raises:
        NotInitializedError: before `init`.
        TypeError: a variable has a dtype that cannot be sent, or is none.
        ValueError: the process set is not registered.
        tf.errors.InvalidArgumentError: `root_rank` is no rank of the process set; this rank is not
            in the process set; or a peer's arguments are wrong.
        tf.errors.FailedPreconditionError: ranks disagree about the variables or the root.
        tf.errors.AbortedError: a peer failed, left, or did not come in time; the variables
            keep their values.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> v = tf.Variable([1.0, 2.0])
        >>> hvd.broadcast_variables([v], root_rank=0)
    """
    values = _gathers.broadcast_(list(variables), root_rank, process_set=process_set)
    return None if tf.executing_eagerly() else tf.group(*values)


@dataclasses.dataclass(frozen=True)
class _Unpicklable:
    """Travels in place of an object, so that no rank waits for one that cannot come."""

    reason: str


def _pickled(obj: Any, function: str) -> tuple[bytes, bool]:
    """Returns the object's bytes, or those of what says why there are none, and whether so."""
    failed = False
    try:
        data = cloudpickle.dumps(obj)
    except Exception as error:  # pickling runs code of the object, which may raise anything
        failed = True
        kind = type(obj).__name__
        data = cloudpickle.dumps(
            _Unpicklable(
                f"{function}: the object of rank {world.rank()} cannot be pickled: {error}. "
                f"Received: an object of type {kind}"
            )
        )
    return data, failed


def _unpickled(parts: Sequence[bytes]) -> list[Any]:
    objects = [cloudpickle.loads(part) for part in parts]
    for received in objects:
        if isinstance(received, _Unpicklable):
            raise TypeError(received.reason)
    return objects
