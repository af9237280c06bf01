"""Checks of what users pass to a collective, made before anything is sent."""

from __future__ import annotations

import math
import operator
from typing import Any

import tensorflow as tf

from tfring import process_sets, world
from tfring.constants import NAMES, Adasum, Average, Sum

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
_KNOWN_DTYPES = frozenset(_DTYPES)

# What eager calls need not convert; None where TensorFlow does not tell it.
EagerTensor: Any = getattr(tf.__internal__, "EagerTensor", None)


def dense(value: Any, argument: str = "tensor") -> Any:
    """Returns the value as a dense tensor of a dtype that the engine carries.

    Raises:
        TypeError: it is ragged, sparse, or of another dtype.
    """
    is_ready = type(value) is EagerTensor and tf.executing_eagerly()
    tensor = value if is_ready else _converted(value, argument)
    if tensor.dtype not in _KNOWN_DTYPES:
        names = ", ".join(dtype.name for dtype in _DTYPES)
        raise TypeError(
            f"`{argument}` must have one of the dtypes {names}. "
            f"Received: {argument}={_describe(tensor)}"
        )
    return tensor


def _converted(value: Any, argument: str) -> Any:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        raise TypeError(
            f"`{argument}` must be a dense tensor. Received: {argument}={_describe(value)}. "
            "Convert it first, for example with `.to_tensor()` or `tf.sparse.to_dense`."
        )
    return tf.convert_to_tensor(value)


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


def reducible(tensor: Any, op: int, process_set: int = 0) -> None:
    """Raises ValueError where the operation has no meaning for the tensor or the set's size."""
    if tensor.dtype == tf.bool and op in (Average, Sum):
        raise ValueError(
            "`op` must be Min (all ranks), Max (any rank) or Product for a bool tensor. "
            f"Received: op={NAMES[op]}. Cast the tensor to count."
        )
    if op != Adasum:
        return
    if not tensor.dtype.is_floating:
        raise ValueError(
            "`op` Adasum needs floating-point tensors. "
            f"Received: op=Adasum for a tensor of dtype {tensor.dtype.name}"
        )
    size = size_of(process_set)
    if size & (size - 1):
        raise ValueError(
            f"`op` Adasum needs a power of two of ranks. Received: op=Adasum for {size} ranks. "
            "Use op=Average, or a process set of 1, 2, 4, ... ranks."
        )


def scatter_op(op: int) -> int:
    """Returns the reduce operation of a reducescatter."""
    if op not in (Average, Sum):
        raise ValueError(f"`op` must be tfring.Average or tfring.Sum. Received: op={op!r}")
    return int(op)


def tensor_list(tensors: Any) -> None:
    """Raises TypeError unless it is a list or tuple."""
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(f"`tensors` must be a list or tuple. Received: {type(tensors).__name__}")


def factor(value: float, argument: str) -> float:
    """Returns a scale factor as a float64."""
    text = f"`{argument}` must be a finite number. Received: {argument}={value!r}"
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise type(error)(text) from None
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def process_set(value: Any) -> int:
    """Returns the handle of a process set that this rank may use.

    Raises:
        TypeError: it is no `ProcessSet`.
        ValueError: it is not registered.
        InvalidArgumentError: this rank is not in it.
    """
    world.require_usable()
    if not isinstance(value, process_sets.ProcessSet):
        raise TypeError(
            "`process_set` must be a tfring.ProcessSet. "
            f"Received: process_set={value!r}. Make one with tfring.ProcessSet(ranks)."
        )
    if value.handle is None:
        raise ValueError(
            f"`process_set` must be registered. Received: process_set={value}. Give it to "
            "init(process_sets=[...]) or to add_process_set."
        )
    if value.ranks is not None and world.rank() not in value.ranks:
        raise invalid(
            f"`process_set` must hold the rank that calls, {world.rank()}. "
            f"Received: process_set={value}. Ask `process_set.included()` first.",
        )
    return value.handle


def root(root_rank: Any, process_set: int = 0) -> int:
    """Returns the root's global rank, which must be in the process set with this handle.

    Raises:
        InvalidArgumentError: it is no whole number, or not in the set.
    """
    ranks = process_sets.ranks_of(process_set)
    try:
        number = operator.index(root_rank)
    except TypeError:
        number = -1
    if isinstance(root_rank, bool) or number not in ranks:
        raise invalid(
            f"`root_rank` must be a rank of the job that is in the process set, one of {ranks}. "
            f"Received: root_rank={root_rank!r}",
        )
    return number


def name(value: str | None) -> str | None:
    """Returns the user's name of a collective."""
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"`name` must be a non-empty text or None. Received: name={value!r}")
    return value


def rows(value: Any) -> Any:
    """Returns the value as `dense` does.

    Raises:
        TypeError: as `dense`.
        InvalidArgumentError: it is known to be a scalar.
    """
    tensor = dense(value)
    if tensor.shape.rank == 0:
        raise invalid(
            "`tensor` must have at least one dimension, whose rows are gathered or split. "
            f"Received: a scalar of dtype {tensor.dtype.name}. Use tf.reshape(tensor, [1])."
        )
    return tensor


def eager(function: str) -> None:
    """Raises RuntimeError inside a tf.function; a v1 graph is built only once."""
    if hasattr(tf.compat.v1.get_default_graph(), "outer_graph") and not tf.executing_eagerly():
        raise RuntimeError(
            f"`{function}` exchanges Python objects, which a tf.function cannot hold. Call it "
            "outside of the function."
        )


def splits(value: Any, process_set: int) -> Any:
    """Returns alltoall's splits as int64 of shape (1, size), checked as far as is known.

    Raises:
        TypeError: they are no whole numbers.
        InvalidArgumentError: there is not one for each rank of the set.
    """
    tensor = tf.convert_to_tensor(value)
    size = size_of(process_set)
    if not tensor.shape.is_compatible_with([size]):
        raise invalid(
            f"`splits` must hold one number of rows for each rank of the process set, {size}. "
            f"Received: splits of shape {tuple(tensor.shape)}"
        )
    if not tensor.dtype.is_integer:
        raise TypeError(f"`splits` must be whole numbers. Received: splits={_describe(tensor)}")
    # Not by slicing: so its value stays known where it is constant.
    return tf.stack([tf.cast(tensor, tf.int64)])


def size_of(process_set: int) -> int:
    """Returns the number of ranks of the process set with this handle."""
    return len(process_sets.ranks_of(process_set))


def set_handle(value: Any) -> int:
    """Returns the handle of the process set with an id, which need not be in use.

    Raises:
        InvalidArgumentError: it can be none.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 31:
        raise invalid(
            "`process_set_id` must be the id of a process set. "
            f"Received: process_set_id={value!r}. Give `process_set.process_set_id` of one that is "
            "registered."
        )
    return process_sets.handle_of(number)


def invalid(text: str) -> tf.errors.InvalidArgumentError:
    """Returns TensorFlow's error for an argument that is wrong."""
    return tf.errors.InvalidArgumentError(None, None, text)


def _describe(value: Any) -> str:
    shape = "unknown" if value.shape.rank is None else tuple(value.shape)
    return f"<{type(value).__name__} shape={shape} dtype={value.dtype.name}>"
