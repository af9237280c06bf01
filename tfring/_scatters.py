"""Collectives that leave a part of the rows on each rank: see `tfring.collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _calls, _checks
from tfring._autograph import as_it_stands
from tfring.compression import Compression, Compressor, checked
from tfring.constants import Average
from tfring.process_sets import ProcessSet, global_process_set


@as_it_stands
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over all ranks and leaves each rank its part of the rows.

    With n ranks and d rows, the first d mod n ranks get one row more than the others. 16-bit floats
    are accumulated in float32. The gradient is the allgather of the cotangents, times both factors,
    and times the number of ranks for Sum: Horovod's scale.

    Args:
        tensor: Tensor, variable or array of a dtype that `allreduce` takes but bool, with at least
            one dimension; shape and dtype must be equal on all ranks.
        device_dense: accepted for Horovod's scripts; has no effect.
        compression: what travels, a member of `Compression`. Default: the tensor as it is.
        op: Average (default) or Sum.
        name: pairs this call with those of other ranks. Default: by position.
        process_set: the ranks that take part. Default: all.
        ignore_name_scope: accepted for Horovod's scripts; scopes are never part of a name.
        prescale_factor: each input is multiplied by it before the reduction. Default 1.
        postscale_factor: the result is multiplied by it. Default 1.

    Returns:
        A tensor of the input's dtype, of shape (own rows, other dimensions...).

    Raises:
        NotInitializedError: before `init`.
        TypeError: the tensor is ragged, sparse or of another dtype; `compression` is no compressor.
        ValueError: an argument breaks its rule, or the process set is not registered.
        tf.errors.InvalidArgumentError: the tensor is a scalar; this rank is not in the process
            set; or a peer's arguments are wrong.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or operation.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> part = hvd.reducescatter(tf.ones([2 * hvd.size(), 3]), op=hvd.Sum)
        >>> part.shape == (2, 3) and float(part[0, 0]) == hvd.size()
        True
    """
    group = _checks.process_set(process_set)
    factors = (prescale_factor, postscale_factor)
    return _reducescatter([tensor], compression, op, name, group, factors)[0]


@as_it_stands
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Reduces and scatters several tensors in one collective.

    Args:
        tensors: list or tuple of what `reducescatter` takes; dtypes and shapes may differ.
        device_dense: has no effect.
        compression: a member of `Compression`.
        op: Average (default) or Sum.
        process_set: the ranks that take part. Default: all.
        prescale_factor: multiplies each input. Default 1.
        postscale_factor: multiplies each result. Default 1.
        name: pairs this call with those of other ranks. Default: by position.

    Returns:
        List of the results, in the order of the inputs; empty where `tensors` is.

    Raises:
        NotInitializedError, TypeError, ValueError, tf.errors.InvalidArgumentError,
        tf.errors.FailedPreconditionError, tf.errors.AbortedError: as for `reducescatter`.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> parts = hvd.grouped_reducescatter([tf.ones([hvd.size()]), tf.ones([hvd.size(), 2])])
        >>> [tuple(part.shape) for part in parts]
        [(1,), (1, 2)]
    """
    group = _checks.process_set(process_set)
    factors = (prescale_factor, postscale_factor)
    return _reducescatter(tensors, compression, op, name, group, factors)


@as_it_stands
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends a part of the rows to each rank, and receives one from each.

    Rank r gets the r-th part of every rank's tensor, in rank order. The gradient sends the rows of
    the cotangent back to where they came from.

    Args:
        tensor: Tensor, variable or array of a dtype that `allreduce` takes, with at least one
            dimension; dtype and all dimensions but the first must be equal on all ranks.
        splits: number of rows for each rank, in rank order: whole numbers of shape (size,), which
            may be 0 and add up to at most the first dimension; rows beyond are not sent. Default:
            equal parts, and the first dimension must divide.
        name: pairs this call with those of other ranks. Default: by position.
        ignore_name_scope: accepted for Horovod's scripts; scopes are never part of a name.
        process_set: the ranks that take part. Default: all.

    Returns:
        A tensor of shape (rows received, other dimensions...) where `splits` is None. Otherwise a
        pair of it and the number of rows that came from each rank: int32 of shape (size,).

    Raises:
        NotInitializedError: before `init`.
        TypeError: the tensor is ragged, sparse or of another dtype; `splits` are no whole numbers.
        ValueError: the process set is not registered, or the name is empty.
        tf.errors.InvalidArgumentError: the tensor is a scalar; `splits` break their rule; this rank
            is not in the process set; or a peer's arguments are wrong.
        tf.errors.FailedPreconditionError: ranks disagree about dtype or other dimensions.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> rows, counts = hvd.alltoall(tf.range(hvd.size()), splits=[1] * hvd.size())
        >>> rows.shape[0] == hvd.size() and counts.numpy().tolist() == [1] * hvd.size()
        True
    """
    group = _checks.process_set(process_set)
    with _calls.announced(_calls.ALLTOALL, name, group):
        sent = _checks.rows(tensor)
        rows = tf.zeros([0], tf.int64) if splits is None else _checks.splits(splits, group)
        name = _checks.name(name)
    (received,), counts = _calls.alltoall([sent], rows, name, group)
    return received if splits is None else (received, tf.cast(counts[0], tf.int32))


def _reducescatter(
    tensors: Sequence[Any],
    compression: type[Compressor],
    op: int,
    name: str | None,
    group: int,
    factors: tuple[float, float],
) -> list[Any]:
    with _calls.announced(_calls.REDUCESCATTER, name, group):
        _checks.tensor_list(tensors)
        checked(compression)
        op = _checks.scatter_op(op)
        prescale = _checks.factor(factors[0], "prescale_factor")
        postscale = _checks.factor(factors[1], "postscale_factor")
        ready = [_checks.rows(tensor) for tensor in tensors]
        for tensor in ready:
            _checks.reducible(tensor, op)
        name = _checks.name(name)
    if not ready:
        return []
    sent, contexts = zip(*map(compression.compress, ready), strict=True)
    results = _calls.reducescatter(sent, op, prescale, postscale, name, group)
    return [compression.decompress(*pair) for pair in zip(results, contexts, strict=True)]
