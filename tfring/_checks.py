"""Checks of what users pass to a collective, made before anything is sent."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfring import world
from tfring.constants import NAMES, Average, Sum

_DTYPES = (
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
    tf.bool,
)


def dense(value: Any, argument: str = "tensor") -> Any:
    """Returns the value as a dense tensor of a dtype that the engine carries.

    Raises:
        TypeError: it is ragged, sparse, or of another dtype.
    """
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        raise TypeError(
            f"`{argument}` must be a dense tensor. Received: {argument}={_describe(value)}. "
            "Convert it first, for example with `.to_tensor()` or `tf.sparse.to_dense`."
        )
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in _DTYPES:
        names = ", ".join(dtype.name for dtype in _DTYPES)
        raise TypeError(
            f"`{argument}` must have one of the dtypes {names}. "
            f"Received: {argument}={_describe(tensor)}"
        )
    return tensor


def reduce_op(average: bool | None, op: int | None) -> int:
    """Returns the reduce operation that the two arguments name; Average where both are None."""
    if average is not None and op is not None:
        raise ValueError(
            "`average` is the older spelling of `op`; give only one of them. "
            f"Received: average={average!r}, op={op!r}"
        )
    if average is not None:
        return Average if average else Sum
    if op is None:
        return Average
    if op not in NAMES:
        raise ValueError(
            f"`op` must be one of {', '.join(f'tfring.{name}' for name in NAMES.values())}. "
            f"Received: op={op!r}"
        )
    return int(op)


def reducible(tensor: Any, op: int) -> None:
    """Raises ValueError where the operation has no meaning for the tensor's dtype."""
    if tensor.dtype == tf.bool and op in (Average, Sum):
        raise ValueError(
            "`op` must be Min (all ranks), Max (any rank) or Product for a bool tensor. "
            f"Received: op={NAMES[op]}. Cast the tensor to count."
        )


def factor(value: float, argument: str) -> float:
    """Returns a scale factor as a float64."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"`{argument}` must be a finite number. Received: {argument}={value!r}")
    return number


def root(root_rank: int) -> int:
    """Returns the root's rank, which must be one of the world's."""
    size = world.size()
    if isinstance(root_rank, bool) or not 0 <= int(root_rank) < size or root_rank != int(root_rank):
        raise ValueError(
            f"`root_rank` must be a rank of this world, 0 to {size - 1}. "
            f"Received: root_rank={root_rank!r}"
        )
    return int(root_rank)


def name(value: str | None) -> str | None:
    """Returns the user's name of a collective."""
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"`name` must be a non-empty text or None. Received: name={value!r}")
    return value


def has_rows(tensor: Any) -> None:
    """Raises InvalidArgumentError where a tensor is known to be a scalar."""
    if tensor.shape.rank == 0:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "`tensor` must have at least one dimension to be gathered. Received: a scalar of dtype "
            f"{tensor.dtype.name}. Use tf.reshape(tensor, [1]).",
        )


def eager(function: str) -> None:
    """Raises RuntimeError inside a tf.function; a v1 graph is built only once."""
    if hasattr(tf.compat.v1.get_default_graph(), "outer_graph") and not tf.executing_eagerly():
        raise RuntimeError(
            f"`{function}` exchanges Python objects, which a tf.function cannot hold. Call it "
            "outside of the function."
        )


def _describe(value: Any) -> str:
    return f"<{type(value).__name__} shape={tuple(value.shape)} dtype={value.dtype.name}>"
