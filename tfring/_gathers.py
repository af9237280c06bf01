"""Collectives that bring tensors of some ranks to all, unchanged: see `tfring.collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _calls, _checks, world
from tfring._autograph import as_it_stands
from tfring.process_sets import ProcessSet, global_process_set

# Dtypes that the engine does not carry travel as one of the same width.
_CARRIERS = {
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.int64,
}


@as_it_stands
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the tensors of all ranks along the first dimension, in rank order.

    Its gradient is the average of all ranks' cotangents, of which each rank keeps its own rows.

    Args:
        tensor: Tensor, variable or array of a dtype that `allreduce` takes, with at least one
            dimension. The first dimension may differ between ranks and may be 0; the others and
            the dtype must be equal.
        name: pairs this call with those of other ranks. Default: by position.
        ignore_name_scope: accepted for Horovod's scripts; scopes are never part of a name.
        process_set: the ranks that take part. Default: all.

    Returns:
        A tensor of shape (sum of first dimensions, other dimensions...).

    Raises:
        NotInitializedError: before `init`.
        TypeError: the tensor is ragged, sparse or of another dtype.
        ValueError: the process set is not registered, or the name is empty.
        tf.errors.InvalidArgumentError: the tensor is a scalar; this rank is not in the process
            set; or a peer's arguments are wrong.
        tf.errors.FailedPreconditionError: ranks disagree about dtype or other dimensions.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.allgather([[1, 2]]).shape[0] == hvd.size()
        True
    """
    return gather_with_counts([tensor], name, process_set)[0][0]


@as_it_stands
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gathers several tensors in one collective.

    Args:
        tensors: list or tuple of what `allgather` takes; dtypes and shapes may differ.
        name: pairs this call with those of other ranks. Default: by position.
        ignore_name_scope: has no effect.
        process_set: the ranks that take part. Default: all.

    Returns:
        List of the results, in the order of the inputs; empty where `tensors` is.

    Raises:
        NotInitializedError, TypeError, ValueError, tf.errors.InvalidArgumentError,
        tf.errors.FailedPreconditionError, tf.errors.AbortedError: as for `allgather`.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> [t.dtype.name for t in hvd.grouped_allgather([[1.0], tf.constant([2])])]
        ['float32', 'int32']
    """
    return gather_with_counts(tensors, name, process_set)[0]


@as_it_stands
def gather_with_counts(
    tensors: Sequence[Any],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[list[Any], Any]:
    """Gathers several tensors in one collective, see `allgather`.

    Returns:
        The gathered tensors, and the number of rows of each tensor by rank: int64 of shape
        (size, number of tensors).
    """
    group = _checks.process_set(process_set)
    with _calls.announced(_calls.ALLGATHER, name, group):
        _checks.tensor_list(tensors)
        checked = [_checks.rows(tensor) for tensor in tensors]
        name = _checks.name(name)
    if not checked:
        return [], tf.zeros([_checks.size_of(group), 0], tf.int64)
    return _calls.allgather(checked, name, group)


@as_it_stands
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's tensor on every rank.

    Its gradient is the average of all ranks' cotangents on the root, and zero elsewhere.

    Args:
        tensor: Tensor, variable or array of a dtype that `allreduce` takes; shape and dtype must
            be equal on all ranks, values count on the root only.
        root_rank: rank whose values are sent: its number in the job, also with a process set.
        name: pairs this call with those of other ranks. Default: by position.
        ignore_name_scope: accepted for Horovod's scripts; scopes are never part of a name.
        process_set: the ranks that take part. Default: all.

    Returns:
        A tensor of the input's shape and dtype.

    Raises:
        NotInitializedError: before `init`.
        TypeError: the tensor is ragged, sparse or of another dtype.
        ValueError: the process set is not registered, or the name is empty.
        tf.errors.InvalidArgumentError: `root_rank` is no rank of the process set; this rank is not
            in the process set; or a peer's arguments are wrong.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or root.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> int(hvd.broadcast(hvd.rank(), root_rank=0))
        0
    """
    group = _checks.process_set(process_set)
    with _calls.announced(_calls.BROADCAST, name, group):
        root = _checks.root(root_rank, group)
        checked = _checks.dense(tensor)
        name = _checks.name(name)
    return _calls.broadcast([checked], root, name, group)[0]


@as_it_stands
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assigns the root's values to the variables of every rank, in one collective.

    Works in eager mode, inside a `tf.function`, and in graphs of `tf.compat.v1`, where running one
    of the results assigns it.

    Args:
        variables: list or tuple of `tf.Variable` and `keras.Variable`, with equal number, order,
            shapes and dtypes on all ranks; dtypes may differ within the list.
        root_rank: rank whose values are sent: its number in the job, also with a process set.
        name: pairs this call with those of other ranks. Default: by position.
        process_set: the ranks that take part. Default: all.

    Returns:
        List of the variables' new values, as tensors.

    Raises:
        NotInitializedError: before `init`.
        TypeError: a variable has a dtype that cannot be sent, or is none.
        ValueError: the process set is not registered, or the name is empty.
        tf.errors.InvalidArgumentError: `root_rank` is no rank of the process set; this rank is not
            in the process set; or a peer's arguments are wrong.
        tf.errors.FailedPreconditionError: ranks disagree about the variables or the root.
        tf.errors.AbortedError: a peer failed, left, or did not come in time; the variables keep
            their values.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> v = tf.Variable([1.0, 2.0])
        >>> hvd.broadcast_([v], root_rank=0)[0].numpy().tolist()
        [1.0, 2.0]
    """
    group = _checks.process_set(process_set)
    with _calls.announced(_calls.BROADCAST, name, group):
        root = _checks.root(root_rank, group)
        values = [_carried(variable) for variable in variables]
        name = _checks.name(name)
    if not values:
        return []
    results = _calls.broadcast(values, root, name, group)
    return [_assigned(*pair, root) for pair in zip(variables, results, strict=True)]


def _carried(variable: Any) -> Any:
    if not hasattr(variable, "assign"):
        raise TypeError(
            "`variables` must hold tf.Variable or keras.Variable objects only. "
            f"Received: a {type(variable).__name__}"
        )
    tensor = tf.convert_to_tensor(variable)
    carrier = _CARRIERS.get(tensor.dtype)
    if carrier is not None:
        return tf.bitcast(tensor, carrier)
    return _checks.dense(tensor, "variables")


def _assigned(variable: Any, result: Any, root: int) -> Any:
    """Assigns a value that was received, and returns it as it stands in the variable."""
    dtype = tf.as_dtype(variable.dtype).base_dtype
    value = tf.bitcast(result, dtype) if dtype in _CARRIERS else result
    if world.rank() == root:
        return value
    assigned = variable.assign(value)
    if tf.executing_eagerly():
        return value
    done = getattr(assigned, "op", None)
    with tf.control_dependencies([] if done is None else [done]):
        return tf.identity(value)
