"""Collectives on values: a number or NumPy array in, a NumPy array out.

Horovod's functions of these names in its Keras modules. Where `value` is a tensor or a variable,
or the call is inside a `tf.function`, the result is a tensor; otherwise it is NumPy's, with the
dtype that NumPy gives the value (a Python float is float64). They do what `tfring.collectives`
does, with other arguments, and raise the same errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring import collectives
from tfring._autograph import as_it_stands
from tfring.compression import Compression, Compressor
from tfring.constants import Average
from tfring.process_sets import ProcessSet, global_process_set

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


@as_it_stands
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
    *,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a value over all ranks, see `tfring.allreduce`.

    Args:
        value: number, NumPy array, or tensor, of equal shape and dtype on all ranks.
        name: pairs this call with those of other ranks. Default: by position.
        average: older spelling of `op`: True is Average, False is Sum.
        prescale_factor: the value is multiplied by it before the reduction. Default 1.
        postscale_factor: the result is multiplied by it. Default 1.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        compression: what travels, a member of `Compression`.
        process_set: the ranks that take part. Default: all.

    Returns:
        The result: NumPy's, or a tensor where `value` is one.

    Raises:
        NotInitializedError: before `init`.
        TypeError, ValueError: an argument breaks its rule.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or operation.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:

    >>> import tfring.keras as hvd
    >>> hvd.init()
    >>> float(hvd.allreduce(0.1, op=hvd.Sum)) == 0.1 * hvd.size()
    True
    """

    def reduce(tensor: Any) -> Any:
        return collectives.allreduce(
            tensor,
            average=average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
            process_set=process_set,
        )

    return _call(reduce, value)


@as_it_stands
def allgather(
    value: Any, name: str | None = None, *, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenates the arrays of all ranks along the first dimension, see `tfring.allgather`.

    Args:
        value: NumPy array, nested list, or tensor, of at least one dimension.
        name: pairs this call with those of other ranks. Default: by position.
        process_set: the ranks that take part. Default: all.

    Returns:
        The rows of all ranks, in rank order: NumPy's, or a tensor where `value` is one.

    Raises:
        NotInitializedError: before `init`.
        TypeError, ValueError: an argument breaks its rule.
        tf.errors.InvalidArgumentError: the value is a scalar.
        tf.errors.FailedPreconditionError: ranks disagree about dtype or other dimensions.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:

    >>> import tfring.keras as hvd
    >>> hvd.init()
    >>> len(hvd.allgather([hvd.rank()])) == hvd.size()
    True
    """
    return _call(lambda v: collectives.allgather(v, name, process_set=process_set), value)


@as_it_stands
def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's value on every rank, see `tfring.broadcast`.

    Args:
        value: number, NumPy array, or tensor, of equal shape and dtype on all ranks. For other
            objects, and for shapes that only the root knows, use `broadcast_object`.
        root_rank: rank in the job whose value is sent.
        name: pairs this call with those of other ranks. Default: by position.
        process_set: the ranks that take part. Default: all.

    Returns:
        The root's value: NumPy's, or a tensor where `value` is one.

    Raises:
        NotInitializedError: before `init`.
        TypeError, ValueError: an argument breaks its rule.
        tf.errors.InvalidArgumentError: `root_rank` is no rank of the set.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or root.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:

    >>> import tfring.keras as hvd
    >>> hvd.init()
    >>> int(hvd.broadcast(hvd.rank(), root_rank=0))
    0
    """
    return _call(
        lambda v: collectives.broadcast(v, root_rank, name, process_set=process_set), value
    )


@as_it_stands
def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = Average,
    *,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces an array over all ranks and gives each rank its part, see `tfring.reducescatter`.

    Args:
        value: NumPy array, nested list, or tensor, of at least one dimension and of equal shape
            and dtype on all ranks.
        name: pairs this call with those of other ranks. Default: by position.
        op: Average (default) or Sum.
        process_set: the ranks that take part. Default: all.

    Returns:
        This rank's rows, the first ranks having one more where they cannot be equal: NumPy's, or
        a tensor where `value` is one.

    Raises:
        NotInitializedError: before `init`.
        TypeError, ValueError: an argument breaks its rule.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or operation.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:

    >>> import tfring.keras as hvd
    >>> hvd.init()
    >>> hvd.reducescatter([1.0] * hvd.size()).tolist()
    [1.0]
    """
    return _call(
        lambda v: collectives.reducescatter(v, op=op, name=name, process_set=process_set), value
    )


def _call(function: Callable[[Any], Any], value: Any) -> Any:
    is_symbolic = not tf.executing_eagerly()
    if is_symbolic or tf.is_tensor(value) or isinstance(value, (tf.Variable, keras.Variable)):
        return function(value)
    with contextlib.suppress(TypeError, ValueError):
        value = tf.constant(np.asarray(value))
    # What is no array is refused by the collective, which also tells the other ranks.
    return function(value).numpy()
