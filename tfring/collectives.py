"""Collectives on tensors: every rank calls them alike, eager or inside a `tf.function`.

Calls on different ranks pair by `name`, the n-th use of a name with the n-th use. Without a name,
eager calls pair in the order in which they are made, and calls in a `tf.function` by their place
in it. Inside a `tf.function`, collectives with different names may run at the same time.

When a peer fails or leaves, every call that needs it raises `tf.errors.AbortedError` with the
rank and the cause. When ranks disagree (shape, dtype, operation, root), all of them raise
`tf.errors.FailedPreconditionError` that lists what each rank sent, and the next call works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _calls, _checks, world
from tfring import _gradients as _gradients
from tfring._autograph import as_it_stands
from tfring.compression import Compression, Compressor, checked
from tfring.constants import NAMES, Average, Sum

__all__ = ["allgather", "allreduce", "barrier", "broadcast", "grouped_allreduce"]


@as_it_stands
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks; each rank gets the same result, bit for bit.

    16-bit floats are accumulated in float32. Average on integers truncates towards zero. The
    gradient of Sum and Average is the same allreduce of the cotangent; Min and Max give the summed
    cotangent in equal parts to the ranks that hold the result; Product gives it times the product
    of the other ranks' inputs.

    Args:
        tensor: Tensor, variable or array of float16, bfloat16, float32, float64, int8, int16,
            int32, int64, uint8, uint16 or bool, of any shape, equal on all ranks. Or
            `tf.IndexedSlices`, whose number of rows may differ: rows of all ranks are gathered,
            not merged, and divided by the number of ranks for Average.
        average: older spelling of `op`: True is Average, False is Sum.
        device_dense: accepted for Horovod's scripts; has no effect.
        device_sparse: accepted for Horovod's scripts; has no effect.
        compression: what travels, a member of `Compression`. Default: the tensor as it is.
        op: Average (default), Sum, Min, Max or Product; bool takes Min, Max or Product.
        prescale_factor: each input is multiplied by it before the reduction. Default 1.
        postscale_factor: the result is multiplied by it. Default 1. Scaling is done in float32 or
            wider; integers are truncated.
        name: pairs this call with those of other ranks. Default: by position.
        ignore_name_scope: accepted for Horovod's scripts; scopes are never part of a name.

    Returns:
        A tensor of the input's shape and dtype, or `tf.IndexedSlices`.

    Raises:
        NotInitializedError: before `init`.
        TypeError: the tensor is ragged, sparse or of another dtype; `compression` is no compressor.
        ValueError: an argument breaks its rule.
        NotImplementedError: `tf.IndexedSlices` with Min, Max or Product.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or operation.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> float(hvd.allreduce(2.0)) == 2.0
        True
    """
    return grouped_allreduce(
        [tensor],
        average=average,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        name=name,
    )[0]


@as_it_stands
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors over all ranks in one collective.

    Args:
        tensors: list or tuple of what `allreduce` takes; dtypes may differ. All dense ones are one
            collective, all `tf.IndexedSlices` another.
        average: as for `allreduce`, and so are all other arguments.
        device_dense: has no effect.
        device_sparse: has no effect.
        compression: a member of `Compression`.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: multiplies each input. Default 1.
        postscale_factor: multiplies each result. Default 1.
        ignore_name_scope: has no effect.
        name: pairs this call with those of other ranks. Default: by position.

    Returns:
        List of the results, in the order of the inputs; empty where `tensors` is.

    Raises:
        NotInitializedError: before `init`.
        TypeError, ValueError, NotImplementedError: as for `allreduce`, before anything is sent.
        tf.errors.FailedPreconditionError: ranks disagree.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> [t.dtype.name for t in hvd.grouped_allreduce([1.0, tf.constant(2)])]
        ['float32', 'int32']
    """
    world.require_usable()
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(f"`tensors` must be a list or tuple. Received: {type(tensors).__name__}")
    checked(compression)
    reduce_op = _checks.reduce_op(average, op)
    scales = (
        _checks.factor(prescale_factor, "prescale_factor"),
        _checks.factor(postscale_factor, "postscale_factor"),
    )
    name = _checks.name(name)
    is_sparse = [isinstance(tensor, tf.IndexedSlices) for tensor in tensors]
    # Everything is checked before anything is sent.
    slices = [_checked_slices(t, reduce_op) for t, s in zip(tensors, is_sparse, strict=True) if s]
    dense = [_checked_dense(t, reduce_op) for t, s in zip(tensors, is_sparse, strict=True) if not s]
    dense_results = iter(_reduce_dense(dense, compression, reduce_op, scales, name))
    sparse_name = f"{name}/sparse" if name and dense else name
    sparse_results = iter(_reduce_slices(slices, compression, reduce_op, scales, sparse_name))
    return [next(sparse_results if sparse else dense_results) for sparse in is_sparse]


@as_it_stands
def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False) -> Any:
    """Concatenates the tensors of all ranks along the first dimension, in rank order.

    Its gradient is the average of all ranks' cotangents, of which each rank keeps its own rows.

    Args:
        tensor: Tensor, variable or array of a dtype that `allreduce` takes, with at least one
            dimension. The first dimension may differ between ranks and may be 0; the others and
            the dtype must be equal.
        name: pairs this call with those of other ranks. Default: by position.
        ignore_name_scope: accepted for Horovod's scripts; scopes are never part of a name.

    Returns:
        A tensor of shape (sum of first dimensions, other dimensions...).

    Raises:
        NotInitializedError: before `init`.
        TypeError: the tensor is ragged, sparse or of another dtype.
        tf.errors.InvalidArgumentError: the tensor is a scalar.
        tf.errors.FailedPreconditionError: ranks disagree about dtype or other dimensions.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.allgather([[1, 2]]).shape[0] == hvd.size()
        True
    """
    return gather_with_counts([tensor], name)[0][0]


@as_it_stands
def gather_with_counts(tensors: Sequence[Any], name: str | None = None) -> tuple[list[Any], Any]:
    """Gathers several tensors in one collective, see `allgather`.

    Returns:
        The gathered tensors, and the number of rows of each tensor by rank: int64 of shape
        (size, number of tensors).
    """
    world.require_usable()
    checked = [_checks.dense(tensor) for tensor in tensors]
    for tensor in checked:
        _checks.has_rows(tensor)
    return _calls.allgather(checked, _checks.name(name))


@as_it_stands
def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False
) -> Any:
    """Returns the root's tensor on every rank.

    Its gradient is the average of all ranks' cotangents on the root, and zero elsewhere.

    Args:
        tensor: Tensor, variable or array of a dtype that `allreduce` takes; shape and dtype must
            be equal on all ranks, values count on the root only.
        root_rank: rank whose values are sent.
        name: pairs this call with those of other ranks. Default: by position.
        ignore_name_scope: accepted for Horovod's scripts; scopes are never part of a name.

    Returns:
        A tensor of the input's shape and dtype.

    Raises:
        NotInitializedError: before `init`.
        TypeError: the tensor is ragged, sparse or of another dtype.
        ValueError: `root_rank` is no rank of this world.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or root.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> int(hvd.broadcast(hvd.rank(), root_rank=0))
        0
    """
    world.require_usable()
    root = _checks.root(root_rank)
    return _calls.broadcast([_checks.dense(tensor)], root, _checks.name(name))[0]


@as_it_stands
def barrier(name: str | None = None) -> Any:
    """Waits until every rank has called it.

    Inside a `tf.function` it runs after all collectives created before it in that function, and
    before all created after it.

    Args:
        name: pairs this call with those of other ranks. Default: by position.

    Returns:
        None in eager mode, the operation in a graph.

    Raises:
        NotInitializedError: before `init`.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.barrier()
    """
    return _calls.barrier(_checks.name(name))


def _checked_dense(tensor: Any, op: int) -> Any:
    tensor = _checks.dense(tensor)
    _checks.reducible(tensor, op)
    return tensor


def _checked_slices(slices: Any, op: int) -> Any:
    if op not in (Average, Sum):
        raise NotImplementedError(
            "`op` must be Average or Sum for tf.IndexedSlices. "
            f"Received: op={NAMES[op]}. Convert with tf.convert_to_tensor first."
        )
    for part in (slices.values, slices.indices):
        _checks.dense(part)
    return slices


def _reduce_dense(
    tensors: list[Any],
    compression: type[Compressor],
    op: int,
    scales: tuple[float, float],
    name: str | None,
) -> list[Any]:
    if not tensors:
        return []
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    if op in (Average, Sum):
        results = _calls.allreduce(sent, op, *scales, name=name)
    else:
        # Apart from the op, so that its gradient can compare inputs with outputs.
        scaled = [_scaled(tensor, scales[0]) for tensor in sent]
        results = [_scaled(tensor, scales[1]) for tensor in _calls.allreduce(scaled, op, name=name)]
    return [compression.decompress(*pair) for pair in zip(results, contexts, strict=True)]


def _reduce_slices(
    slices: list[Any],
    compression: type[Compressor],
    op: int,
    scales: tuple[float, float],
    name: str | None,
) -> list[Any]:
    if not slices:
        return []
    scale = scales[0] * scales[1] / (world.size() if op == Average else 1)
    sent, contexts = zip(*(compression.compress(s.values) for s in slices), strict=True)
    indices = [s.indices for s in slices]
    gathered, _ = _calls.allgather([*sent, *indices], name)
    results = []
    for i, (old, context) in enumerate(zip(slices, contexts, strict=True)):
        values = _scaled(compression.decompress(gathered[i], context), scale)
        results.append(tf.IndexedSlices(values, gathered[len(slices) + i], old.dense_shape))
    return results


def _scaled(tensor: Any, factor: float) -> Any:
    """Multiplies in at least float32, integers in float64, and truncates back."""
    if factor == 1.0:
        return tensor
    if tensor.dtype in (tf.float32, tf.float64):
        return tensor * tf.constant(factor, tensor.dtype)
    wide = tf.float32 if tensor.dtype.is_floating else tf.float64
    return tf.cast(tf.cast(tensor, wide) * tf.constant(factor, wide), tensor.dtype)
