"""The four collective ops on checked tensors: lists in, lists out, one op each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _naming, _ops, world


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
) -> list[Any]:
    """Reduces each tensor over all ranks; dtypes may differ."""
    world.require_usable()
    return _naming.emit(
        lambda key: _ops.library().tfring_allreduce(
            tensors=tensors,
            tensor_name=key,
            reduce_op=op,
            prescale_bits=to_bits(prescale),
            postscale_bits=to_bits(postscale),
        ),
        name,
    )


def allgather(tensors: Sequence[Any], name: str | None = None) -> tuple[list[Any], Any]:
    """Concatenates each tensor over all ranks, in rank order.

    Returns:
        The gathered tensors, and the row counts: int64, shape (size, number of tensors). The
        counts travel in the same collective; the gradient needs them.
    """
    world.require_usable()
    counts = tf.stack([_rows(tensor) for tensor in tensors])[tf.newaxis]
    inputs = [*tensors, counts]
    results = _naming.emit(
        lambda key: _ops.library().tfring_allgather(tensors=inputs, tensor_name=key), name
    )
    for tensor, result in zip(tensors, results, strict=False):
        if tensor.shape.rank is not None:
            result.set_shape([None, *tensor.shape[1:]])
    results[-1].set_shape([world.size(), len(tensors)])
    return list(results[:-1]), results[-1]


def _rows(tensor: Any) -> Any:
    if tensor.shape.rank is not None:
        return tf.shape(tensor, out_type=tf.int64)[0]
    # Known when it runs; without this the slice below says something about slices.
    check = tf.debugging.assert_rank_at_least(
        tensor, 1, "`tensor` must have at least one dimension to be gathered along the first"
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.shape(tensor, out_type=tf.int64)[0]


def broadcast(tensors: Sequence[Any], root: int, name: str | None = None) -> list[Any]:
    """Returns the root's tensors on every rank; dtypes may differ."""
    world.require_usable()
    return _naming.emit(
        lambda key: _ops.library().tfring_broadcast(tensors=tensors, tensor_name=key, root=root),
        name,
    )


def barrier(name: str | None = None) -> Any:
    """Waits until every rank is here; returns the op in a graph, None in eager mode."""
    world.require_usable()
    return _naming.emit(
        lambda key: _ops.library().tfring_barrier(tensor_name=key), name, barrier=True
    )
