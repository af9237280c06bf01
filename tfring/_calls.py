"""The collective ops on checked tensors: lists in, lists out, one op each.

`process_set` is the handle of the ranks that take part, 0 for all.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _naming, _ops, process_sets, world

# Numbers of tfr_kind in custom_ops/core/tfring.h.
ALLREDUCE = 1
ALLGATHER = 2
BROADCAST = 3
BARRIER = 4
REDUCESCATTER = 5
ALLTOALL = 6
JOIN = 7

# Numbers of Question in custom_ops/tensorflow/query.cc.
SIZE = 0
RANK = 1
LOCAL_SIZE = 2
LOCAL_RANK = 3
INCLUDED = 4


def _functions() -> Any:
    """Returns what has one function per op: TensorFlow's ops, or custom calls for XLA."""
    if tf.executing_eagerly():
        return _ops.library()
    # Not above: gradients of custom calls are made of the functions here.
    from tfring import _xla, _xla_calls

    return _ops.library() if _xla.context() is None else _xla_calls


@functools.cache
def to_bits(factor: float) -> int:
    """Returns the bit pattern of a float64 as a signed integer."""
    return struct.unpack("<q", struct.pack("<d", factor))[0]


def from_bits(bits: int) -> float:
    """Returns the float64 of a bit pattern."""
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def allreduce(
    tensors: Sequence[Any],
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    process_set: int = 0,
    wire_dtype: int = 0,
) -> list[Any]:
    """Reduces each tensor over all ranks; dtypes may differ.

    `wire_dtype`, an enum, is what wide floats travel in; 0: as they are.
    """
    world.require_usable()
    return _naming.emit(
        lambda key, eager: _functions().tfring_allreduce(
            tensors=tensors,
            tensor_name=key,
            reduce_op=op,
            prescale_bits=to_bits(prescale),
            postscale_bits=to_bits(postscale),
            process_set=process_set,
            eager=eager,
            wire_dtype=wire_dtype,
        ),
        name,
        process_set=process_set,
    )


def allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: int = 0
) -> tuple[list[Any], Any]:
    """Concatenates each tensor over all ranks, in rank order.

    Returns:
        The gathered tensors, and the row counts: int64, shape (size, number of tensors). The
        counts travel in the same collective; the gradient needs them.
    """
    world.require_usable()
    counts = tf.stack([_rows(tensor) for tensor in tensors])[tf.newaxis]
    inputs = [*tensors, counts]
    results = _naming.emit(
        lambda key, eager: _functions().tfring_allgather(
            tensors=inputs, tensor_name=key, process_set=process_set, eager=eager
        ),
        name,
        process_set=process_set,
    )
    _set_rows(results, tensors, [None] * len(tensors))
    results[-1].set_shape([len(process_sets.ranks_of(process_set)), len(tensors)])
    return list(results[:-1]), results[-1]


def reducescatter(
    tensors: Sequence[Any],
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    process_set: int = 0,
) -> list[Any]:
    """Reduces each tensor over all ranks; each rank keeps its part of the rows."""
    world.require_usable()
    results = _naming.emit(
        lambda key, eager: _functions().tfring_reducescatter(
            tensors=tensors,
            tensor_name=key,
            reduce_op=op,
            prescale_bits=to_bits(prescale),
            postscale_bits=to_bits(postscale),
            process_set=process_set,
            eager=eager,
        ),
        name,
        process_set=process_set,
    )
    _set_rows(results, tensors, [own_rows(tensor, process_set) for tensor in tensors])
    return list(results)


def alltoall(
    tensors: Sequence[Any], splits: Any, name: str | None = None, process_set: int = 0
) -> tuple[list[Any], Any]:
    """Sends parts of each tensor's rows to each rank.

    Args:
        tensors: what is sent; dtypes may differ.
        splits: rows for each rank, int64 of shape (number of tensors, size); or empty, for equal
            parts.
        name: the user's name, or None.
        process_set: handle of the ranks that take part.

    Returns:
        What was received, in rank order, and how many rows came from each rank: int64 of shape
        (number of tensors, size).
    """
    world.require_usable()

    def create(key: str, eager: bool) -> list[Any]:
        received, rows = _functions().tfring_alltoall(
            tensors=tensors, splits=splits, tensor_name=key, process_set=process_set, eager=eager
        )
        return [*received, rows]

    results = _naming.emit(create, name, process_set=process_set)
    _set_rows(results, tensors, [None] * len(tensors))
    results[-1].set_shape([len(tensors), len(process_sets.ranks_of(process_set))])
    return results[:-1], results[-1]


def broadcast(
    tensors: Sequence[Any], root: int, name: str | None = None, process_set: int = 0
) -> list[Any]:
    """Returns the root's tensors on every rank; dtypes may differ."""
    world.require_usable()
    return _naming.emit(
        lambda key, eager: _functions().tfring_broadcast(
            tensors=tensors, tensor_name=key, root=root, process_set=process_set, eager=eager
        ),
        name,
        process_set=process_set,
    )


def barrier(name: str | None = None, process_set: int = 0) -> Any:
    """Waits until every rank is here; returns the op in a graph, None in eager mode."""
    world.require_usable()
    return _naming.emit(
        lambda key, eager: _functions().tfring_barrier(
            tensor_name=key, process_set=process_set, eager=eager
        ),
        name,
        process_set=process_set,
        barrier=True,
    )


def join() -> Any:
    """Contributes to no more collectives; returns the last rank to come, when all have."""
    world.require_usable()
    return _naming.emit(
        lambda key, _: _functions().tfring_join(tensor_name=key), "join", barrier=True
    )


def query(question: int, process_set: int = 0, name: str | None = None) -> Any:
    """Returns the answer to a question as an int32 scalar, found when the op runs."""
    return _functions().tfring_query(question=question, process_set=process_set, name=name)


class announced(contextlib.AbstractContextManager[None]):
    """Announces an exception in the body to the peers, in place of the collective.

    Their matching call then fails with InvalidArgumentError instead of waiting for this rank.
    """

    def __init__(self, kind: int, name: str | None, process_set: int) -> None:
        self._call = (kind, name, process_set)

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, Exception):
            kind, name, process_set = self._call
            lines = str(error).splitlines() or [type(error).__name__]
            announce_fault(kind, name, lines[0], process_set)


def announce_fault(kind: int, name: Any, text: str, process_set: int = 0) -> None:
    """Tells the peers that this rank's call of a collective has wrong arguments; returns at once.

    In a graph nothing is sent: the function is not there yet that would call the collective.

    Args:
        kind: of collective, a constant of this module.
        name: what the user gave as its name.
        text: what is wrong.
        process_set: id of a set that this rank is in.
    """
    if not tf.executing_eagerly() or not world.is_initialized() or world.size() == 1:
        return
    key = name if isinstance(name, str) and name else _naming.EAGER
    _ops.announce_fault(kind, key, text, process_set)


def scaled(tensor: Any, factor: float) -> Any:
    """Multiplies in at least float32, integers in float64, and truncates back."""
    if factor == 1.0:
        return tensor
    if tensor.dtype in (tf.float32, tf.float64):
        return tensor * tf.constant(factor, tensor.dtype)
    wide = tf.float32 if tensor.dtype.is_floating else tf.float64
    return tf.cast(tf.cast(tensor, wide) * tf.constant(factor, wide), tensor.dtype)


def _rows(tensor: Any) -> Any:
    shape = tf.shape(tensor, out_type=tf.int64)
    if tensor.shape.rank is not None:
        return shape[0]
    # A scalar has none; the op itself says so, on all ranks.
    return tf.concat([shape, [0]], axis=0)[0]


def _set_rows(results: Sequence[Any], tensors: Sequence[Any], rows: Sequence[int | None]) -> None:
    """Sets the static shapes of results: the inputs' but for the first dimension."""
    for result, tensor, count in zip(results, tensors, rows, strict=False):
        if tensor.shape.rank:
            result.set_shape([count, *tensor.shape[1:]])


def own_rows(tensor: Any, process_set: int) -> int | None:
    """Returns the rows that this rank keeps; the first ranks get those that are over."""
    if not tensor.shape.rank or tensor.shape[0] is None:
        return None
    ranks = process_sets.ranks_of(process_set)
    part, over = divmod(tensor.shape[0], len(ranks))
    return part + (ranks.index(world.rank()) < over)
