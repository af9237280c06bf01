"""Exchange of Python objects, and of variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import cloudpickle
import tensorflow as tf

from tfring import _calls, _checks, _exchange, world
from tfring._autograph import as_it_stands

__all__ = ["allgather_object", "broadcast_object", "broadcast_variables"]

# Dtypes that the engine does not carry travel as one of the same width.
_CARRIERS = {
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.int64,
}


@as_it_stands
def broadcast_object(
    obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None
) -> Any:
    """Returns the root's Python object on every rank.

    Two collectives: its pickled size, then its bytes. Only objects of this job's own ranks are
    unpickled. Works in eager mode and, at once, while a v1 graph is built.

    Args:
        obj: anything that cloudpickle can pickle; counts on the root only, so its type may differ
            between ranks.
        root_rank: rank whose object is sent. Default 0.
        session: accepted for Horovod's scripts; has no effect, the bytes do not go through
            TensorFlow.
        name: pairs this call with those of other ranks. Default `"broadcast_object"`.

    Returns:
        `obj` itself on the root, a copy elsewhere.

    Raises:
        NotInitializedError: before `init`.
        RuntimeError: inside a `tf.function`.
        TypeError: on all ranks, when an object that is sent cannot be pickled.
        ValueError: `root_rank` is no rank of this world.
        tf.errors.FailedPreconditionError: ranks disagree about the root.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    world.require_usable()
    _checks.eager("broadcast_object")
    root = _checks.root(root_rank)
    key = _checks.name(name) or "broadcast_object"
    is_root = world.rank() == root
    sent, failed = _pickled(obj, "broadcast_object") if is_root else (b"", False)
    received = _exchange.broadcast(sent, root, key)
    return obj if is_root and not failed else _unpickled([received])[0]


@as_it_stands
def allgather_object(obj: Any, session: Any = None, name: str | None = None) -> list[Any]:
    """Returns the Python objects of all ranks, in rank order.

    One collective. Only objects of this job's own ranks are unpickled. Works in eager mode and,
    at once, while a v1 graph is built.

    Args:
        obj: anything that cloudpickle can pickle.
        session: accepted for Horovod's scripts; has no effect, the bytes do not go through
            TensorFlow.
        name: pairs this call with those of other ranks. Default `"allgather_object"`.

    Returns:
        List of length `size()`.

    Raises:
        NotInitializedError: before `init`.
        RuntimeError: inside a `tf.function`.
        TypeError: on all ranks, when an object that is sent cannot be pickled.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
        True
    """
    world.require_usable()
    _checks.eager("allgather_object")
    key = _checks.name(name) or "allgather_object"
    payload, _ = _pickled(obj, "allgather_object")
    return _unpickled(_exchange.allgather(payload, key))


@as_it_stands
def broadcast_variables(variables: Sequence[Any], root_rank: int, inplace: bool = False) -> Any:
    """Assigns the root's values to the variables of every rank, in one collective.

    Works in eager mode, inside a `tf.function` and in v1 graphs.

    Args:
        variables: list of `tf.Variable` and `keras.Variable`, with equal number, order, shapes and
            dtypes on all ranks; dtypes may differ within the list.
        root_rank: rank whose values are sent.
        inplace: accepted for Horovod's scripts; has no effect.

    Returns:
        None in eager mode; the operation in a graph, which a v1 session must run.

    Raises:
        NotInitializedError: before `init`.
        TypeError: a variable has a dtype that cannot be sent.
        ValueError: `root_rank` is no rank of this world.
        tf.errors.FailedPreconditionError: ranks disagree about the variables.
        tf.errors.AbortedError: a peer failed, left, or did not come in time; the variables
            keep their values.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> v = tf.Variable([1.0, 2.0])
        >>> hvd.broadcast_variables([v], root_rank=0)
    """
    world.require_usable()
    root = _checks.root(root_rank)
    variables = list(variables)
    eager = tf.executing_eagerly()
    if not variables:
        return None if eager else tf.no_op()
    values = [_carried(tf.convert_to_tensor(variable)) for variable in variables]
    results = _calls.broadcast(values, root, None)
    if world.rank() != root:
        results = [_assign(*pair) for pair in zip(variables, results, strict=True)]
    return None if eager else tf.group(*results)


def _assign(variable: Any, result: Any) -> Any:
    dtype = tf.as_dtype(variable.dtype)
    return variable.assign(tf.bitcast(result, dtype) if dtype in _CARRIERS else result)


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


def _carried(tensor: Any) -> Any:
    carrier = _CARRIERS.get(tensor.dtype)
    if carrier is not None:
        return tf.bitcast(tensor, carrier)
    return _checks.dense(tensor, "variables")
