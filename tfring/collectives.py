"""Collectives on tensors: every rank calls them alike, eager or inside a `tf.function`.

Those that reduce stand here, the others in private modules from which this one takes them.

Calls on different ranks pair by `name`, the n-th use of a name with the n-th use. Without a name,
eager calls pair in the order in which they are made, and calls in a `tf.function` by their place
in it. Inside a `tf.function`, collectives with different names may run at the same time.

When a peer fails or leaves, every call that needs it raises `tf.errors.AbortedError` with the
rank and the cause. When ranks disagree (shape, dtype, operation, root), all of them raise
`tf.errors.FailedPreconditionError` that lists what each rank sent, and the next call works. When
the arguments of one rank alone are wrong in an eager call, that rank raises its own error, and the
others `tf.errors.InvalidArgumentError` with the rank and the text; the next call works.

With `process_set`, "all ranks" are those of the set, and only they may call. A set that is not
registered is a ValueError, a rank outside of it `tf.errors.InvalidArgumentError`, at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _calls, _checks, _eager, _slices, _xla
from tfring import _gradients as _gradients
from tfring._autograph import as_it_stands
from tfring._gathers import (
    allgather,
    broadcast,
    broadcast_,
    gather_with_counts,
    grouped_allgather,
)
from tfring._queries import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from tfring._scatters import alltoall, grouped_reducescatter, reducescatter
from tfring._waits import barrier, join
from tfring.compression import Compression, Compressor, checked, wire_of
from tfring.constants import NAMES, Adasum, Average, Sum
from tfring.process_sets import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "gather_with_counts",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]


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
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks; each rank gets the same result, bit for bit.

    16-bit floats are accumulated in float32. Average on integers truncates towards zero; it divides
    by the ranks that contribute, so not by those that have joined (see `join`). Adasum adds what
    is orthogonal and averages what is parallel, by pairs of ranks, then pairs of pairs, for each
    tensor apart (Maleki et al., arXiv:2006.02924).

    The gradient of Sum and Average is the same allreduce of the cotangent; Min and Max give the
    summed cotangent in equal parts to the ranks that hold the result; Product gives it times the
    product of the other ranks' inputs. Adasum has none: asking for it is a LookupError.

    Args:
        tensor: Tensor, variable or array of float16, bfloat16, float32, float64, int8, int16,
            int32, int64, uint8, uint16 or bool, of any shape, equal on all ranks. Or
            `tf.IndexedSlices`, whose number of rows may differ and may be 0. Rows of one index
            are added up before they travel; then the rows of all ranks are gathered in the order
            of ranks, so an index comes once from each rank that has it, and divided by the number
            of ranks for Average.
        average: older spelling of `op`: True is Average, False is Sum.
        device_dense: accepted for Horovod's scripts; has no effect.
        device_sparse: accepted for Horovod's scripts; has no effect.
        compression: what travels, a member of `Compression`. Default: the tensor as it is.
        op: Average (default), Sum, Adasum, Min, Max or Product. Bool takes Min, Max or Product.
            Adasum takes floats, on 1, 2, 4, ... ranks.
        prescale_factor: each input is multiplied by it before the reduction. Default 1.
        postscale_factor: the result is multiplied by it. Default 1. Scaling is done in float32 or
            wider; integers are truncated.
        name: pairs this call with those of other ranks. Default: by position.
        process_set: the ranks that take part. Default: all.
        ignore_name_scope: accepted for Horovod's scripts; scopes are never part of a name.

    Returns:
        A tensor of the input's shape and dtype, or `tf.IndexedSlices`.

    Raises:
        NotInitializedError: before `init`.
        TypeError: the tensor is ragged, sparse or of another dtype; `compression` is no compressor.
        ValueError: an argument breaks its rule.
        NotImplementedError: `tf.IndexedSlices` with Adasum, Min, Max or Product.
        tf.errors.InvalidArgumentError: this rank is not in the process set, or a peer's arguments
            are wrong.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or operation.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> float(hvd.allreduce(2.0)) == 2.0
        True
    """
    arguments = _eager.Arguments(
        compression, op, average, prescale_factor, postscale_factor, name, process_set
    )
    result = _eager.again(tensor, arguments)
    if result is None:
        result = grouped_allreduce(
            [tensor],
            average=average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            name=name,
        )[0]
        _eager.remember(tensor, arguments, _checks.reduce_op(average, op))
    return result


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
    process_set: ProcessSet = global_process_set,
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
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor: multiplies each input. Default 1.
        postscale_factor: multiplies each result. Default 1.
        process_set: the ranks that take part. Default: all.
        ignore_name_scope: has no effect.
        name: pairs this call with those of other ranks. Default: by position.

    Returns:
        List of the results, in the order of the inputs; empty where `tensors` is.

    Raises:
        NotInitializedError: before `init`.
        TypeError, ValueError, NotImplementedError: as for `allreduce`.
        tf.errors.InvalidArgumentError: this rank is not in the process set, or a peer's arguments
            are wrong.
        tf.errors.FailedPreconditionError: ranks disagree.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> [t.dtype.name for t in hvd.grouped_allreduce([1.0, tf.constant(2)])]
        ['float32', 'int32']
    """
    group = _checks.process_set(process_set)
    with _calls.announced(_calls.ALLREDUCE, name, group):
        _checks.tensor_list(tensors)
        checked(compression)
        reduce_op = _checks.reduce_op(average, op)
        scales = (
            _checks.factor(prescale_factor, "prescale_factor"),
            _checks.factor(postscale_factor, "postscale_factor"),
        )
        name = _checks.name(name)
        # Everything is checked before anything is sent.
        ready = [_checked(tensor, reduce_op, group) for tensor in tensors]
    slices = [tensor for tensor in ready if isinstance(tensor, tf.IndexedSlices)]
    if not slices:
        return _reduce_dense(ready, compression, reduce_op, scales, name, group)
    dense = [tensor for tensor in ready if not isinstance(tensor, tf.IndexedSlices)]
    results = iter(_reduce_dense(dense, compression, reduce_op, scales, name, group))
    name = f"{name}/sparse" if name and dense else name
    sparse = iter(_reduce_slices(slices, compression, reduce_op, scales, name, group))
    return [next(sparse if isinstance(t, tf.IndexedSlices) else results) for t in ready]


def _checked(tensor: Any, op: int, group: int) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        return _checked_slices(tensor, op, group)
    tensor = _checks.dense(tensor)
    _checks.reducible(tensor, op, group)
    return tensor


def _checked_slices(slices: Any, op: int, group: int) -> Any:
    if op not in (Average, Sum):
        raise NotImplementedError(
            "`op` must be Average or Sum for tf.IndexedSlices. "
            f"Received: op={NAMES[op]}. Convert with tf.convert_to_tensor first."
        )
    values, indices = _checks.rows(slices.values), _checks.rows(slices.indices)
    _checks.reducible(values, op, group)
    checked = tf.IndexedSlices(values, indices, slices.dense_shape)
    # How many indices differ is not known when XLA compiles: there, all rows travel.
    return checked if _xla.context() is not None else _slices.merge_duplicates(checked)


def _reduce_dense(
    tensors: list[Any],
    compression: type[Compressor],
    op: int,
    scales: tuple[float, float],
    name: str | None,
    group: int,
) -> list[Any]:
    if not tensors:
        return []
    wire = wire_of(compression, op)
    if wire:
        return _reduce(tensors, op, scales, name, group, wire)
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    results = _reduce(sent, op, scales, name, group)
    return [compression.decompress(*pair) for pair in zip(results, contexts, strict=True)]


def _reduce(
    tensors: Sequence[Any],
    op: int,
    scales: tuple[float, float],
    name: str | None,
    group: int,
    wire: int = 0,
) -> list[Any]:
    if op in (Average, Sum, Adasum):
        return _calls.allreduce(tensors, op, *scales, name, group, wire)
    # Apart from the op, so that its gradient can compare inputs with outputs.
    scaled = [_calls.scaled(tensor, scales[0]) for tensor in tensors]
    reduced = _calls.allreduce(scaled, op, 1.0, 1.0, name, group, wire)
    return [_calls.scaled(tensor, scales[1]) for tensor in reduced]


def _reduce_slices(
    slices: list[Any],
    compression: type[Compressor],
    op: int,
    scales: tuple[float, float],
    name: str | None,
    group: int,
) -> list[Any]:
    if not slices:
        return []
    scale = scales[0] * scales[1] / (_checks.size_of(group) if op == Average else 1)
    sent, contexts = zip(*(compression.compress(s.values) for s in slices), strict=True)
    indices = [s.indices for s in slices]
    gathered, _ = _calls.allgather([*sent, *indices], name, group)
    results = []
    for i, (old, context) in enumerate(zip(slices, contexts, strict=True)):
        values = _calls.scaled(compression.decompress(gathered[i], context), scale)
        results.append(tf.IndexedSlices(values, gathered[len(slices) + i], old.dense_shape))
    return results
