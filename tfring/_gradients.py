"""Gradients of the collective ops, registered when this module is imported.

Each rank's loss counts: the gradient is that of the sum of all ranks' losses, up to the scale
that Horovod's users know (allgather and broadcast average; reducescatter has the number of ranks
as a factor). All are made of the same ops, through the same process set, so that they can be
differentiated again.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring import _calls, _naming, process_sets, world
from tfring.constants import Average, Max, Min, Product, Sum

_WORLD = 0  # the process set of all ranks


@tf.RegisterGradient("TfringAllreduce")
def _allreduce_gradient(op: Any, *cotangents: Any) -> list[Any]:
    reduce_op = int(op.get_attr("reduce_op"))
    positions, tensors = _floating(cotangents)
    name, group = _name(op), _group(op)
    if not tensors:
        return [None] * len(cotangents)
    inputs = [op.inputs[i] for i in positions]
    if reduce_op in (Average, Sum):
        results = _calls.allreduce(tensors, reduce_op, *_factors(op), name, group, _wire(op))
    elif reduce_op in (Min, Max):
        inputs = _as_sent(inputs, _wire(op))
        outputs = [op.outputs[i] for i in positions]
        results = _extremum_gradient(inputs, outputs, tensors, name, group)
    elif reduce_op == Product:
        results = _product_gradient(_as_sent(inputs, _wire(op)), tensors, name, group)
    else:
        raise LookupError(
            "allreduce with op=Adasum has no gradient: its result depends on the directions of all "
            "ranks' tensors. Apply it to gradients, after the tape, or use tf.stop_gradient."
        )
    return _spread(results, positions, len(cotangents))


def _extremum_gradient(
    inputs: list[Any], outputs: list[Any], cotangents: list[Any], name: str | None, group: int
) -> list[Any]:
    """Min and Max: to the ranks that hold the extremum, in equal parts, as `tf.reduce_max` does."""
    chosen = [
        tf.cast(tf.equal(x, y), g.dtype)
        for x, y, g in zip(inputs, outputs, cotangents, strict=True)
    ]
    reduced = _calls.allreduce(cotangents + chosen, Sum, name=name, process_set=group)
    sums, holders = reduced[: len(chosen)], reduced[len(chosen) :]
    return [c * s / h for c, s, h in zip(chosen, sums, holders, strict=True)]


def _product_gradient(
    inputs: list[Any], cotangents: list[Any], name: str | None, group: int
) -> list[Any]:
    """Product: the product of all other ranks' inputs, so zeros need no division."""
    place = _place(group)
    rows = [x[tf.newaxis] for x in inputs]
    gathered, _ = _calls.allgather(rows, _suffixed(name, "inputs"), group)
    sums = _calls.allreduce(cotangents, Sum, name=name, process_set=group)
    below = [tf.math.cumprod(x, exclusive=True)[place] for x in gathered]
    above = [tf.math.cumprod(x, exclusive=True, reverse=True)[place] for x in gathered]
    return [s * b * a for s, b, a in zip(sums, below, above, strict=True)]


@tf.RegisterGradient("TfringAllgather")
def _allgather_gradient(op: Any, *cotangents: Any) -> list[Any]:
    # The last input and output are the row counts, see _calls.allgather.
    positions, tensors = _floating(cotangents[:-1])
    if not tensors:
        return [None] * len(cotangents)
    group = _group(op)
    counts, place = op.outputs[-1], _place(group)
    averages = _calls.allreduce(tensors, Average, name=_name(op), process_set=group)
    results = []
    for i, average in zip(positions, averages, strict=True):
        first = tf.reduce_sum(counts[:place, i])
        own = average[first : first + counts[place, i]]
        own.set_shape(op.inputs[i].shape)
        results.append(own)
    return _spread(results, positions, len(cotangents))


@tf.RegisterGradient("TfringBroadcast")
def _broadcast_gradient(op: Any, *cotangents: Any) -> list[Any]:
    positions, tensors = _floating(cotangents)
    if not tensors:
        return [None] * len(cotangents)
    averages = _calls.allreduce(tensors, Average, name=_name(op), process_set=_group(op))
    is_root = tf.equal(_place(_WORLD), int(op.get_attr("root")))
    # Not zeros alone: differentiated again, every rank must come to the allreduce's gradient.
    results = [tf.where(is_root, average, tf.zeros_like(average)) for average in averages]
    return _spread(results, positions, len(cotangents))


@tf.RegisterGradient("TfringReducescatter")
def _reducescatter_gradient(op: Any, *cotangents: Any) -> list[Any]:
    positions, tensors = _floating(cotangents)
    if not tensors:
        return [None] * len(cotangents)
    group = _group(op)
    prescale, postscale = _factors(op)
    is_sum = int(op.get_attr("reduce_op")) == Sum
    factor = prescale * postscale * (len(process_sets.ranks_of(group)) if is_sum else 1)
    scaled = [_calls.scaled(tensor, factor) for tensor in tensors]
    results, _ = _calls.allgather(scaled, _name(op), group)
    for i, result in zip(positions, results, strict=True):
        result.set_shape(op.inputs[i].shape)
    return _spread(results, positions, len(cotangents))


@tf.RegisterGradient("TfringAlltoall")
def _alltoall_gradient(op: Any, *cotangents: Any) -> list[Any]:
    # The last input is what was sent to each rank, the last output what came from each.
    positions, tensors = _floating(cotangents[:-1])
    if not tensors:
        return [None] * len(cotangents)
    received = tf.gather(op.outputs[-1], positions)
    results, _ = _calls.alltoall(tensors, received, _name(op), _group(op))
    padded = [_padded(result, op.inputs[i]) for i, result in zip(positions, results, strict=True)]
    return _spread(padded, positions, len(cotangents))


def _padded(rows: Any, like: Any) -> Any:
    """Appends zeros for the rows that alltoall was told not to send."""
    missing = tf.shape(like)[0] - tf.shape(rows)[0]
    width = tf.scatter_nd([[0, 1]], [missing], [tf.rank(rows), 2])
    result = tf.pad(rows, width)
    result.set_shape(like.shape)
    return result


tf.no_gradient("TfringBarrier")
tf.no_gradient("TfringJoin")
tf.no_gradient("TfringQuery")


def _floating(cotangents: Any) -> tuple[list[int], list[Any]]:
    """Returns the positions of floating cotangents, and these as dense tensors."""
    positions = [i for i, g in enumerate(cotangents) if g is not None and g.dtype.is_floating]
    return positions, [tf.convert_to_tensor(cotangents[i]) for i in positions]


def _spread(results: list[Any], positions: list[int], count: int) -> list[Any]:
    """Puts results at their positions among `count`, with None elsewhere."""
    spread: list[Any] = [None] * count
    for i, result in zip(positions, results, strict=True):
        spread[i] = result
    return spread


def _group(op: Any) -> int:
    return int(op.get_attr("process_set"))


def _wire(op: Any) -> int:
    return int(op.get_attr("wire_dtype"))


def _as_sent(tensors: list[Any], wire: int) -> list[Any]:
    """Returns tensors rounded as the op has done it that had them as inputs."""
    if not wire:
        return tensors
    narrow = tf.as_dtype(wire)
    return [
        tf.cast(tf.cast(tensor, narrow), tensor.dtype) if tensor.dtype.size > 2 else tensor
        for tensor in tensors
    ]


def _place(group: int) -> Any:
    """Returns this rank's place in the process set.

    A graph asks when it runs: after another `init` the place may be another one.
    """
    if tf.executing_eagerly():
        return process_sets.ranks_of(group).index(world.rank())
    return _calls.query(_calls.RANK, group)


def _factors(op: Any) -> tuple[float, float]:
    prescale, postscale = op.get_attr("prescale_bits"), op.get_attr("postscale_bits")
    return _calls.from_bits(int(prescale)), _calls.from_bits(int(postscale))


def _name(op: Any) -> str | None:
    forward = tf.compat.as_str(op.get_attr("tensor_name"))
    return None if forward == _naming.EAGER else f"{forward}/gradient"


def _suffixed(name: str | None, suffix: str) -> str | None:
    return None if name is None else f"{name}/{suffix}"
