"""Gradients of the collective ops, registered when this module is imported.

Each rank's loss counts: the gradient is that of the sum of all ranks' losses, up to the scale
that Horovod's users know (allgather and broadcast average).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring import _calls, _naming, world
from tfring.constants import Average, Max, Min, Product, Sum


@tf.RegisterGradient("TfringAllreduce")
def _allreduce_gradient(op: Any, *cotangents: Any) -> list[Any]:
    reduce_op = int(op.get_attr("reduce_op"))
    positions, tensors = _floating(cotangents)
    name = _name(op)
    if not tensors:
        return [None] * len(cotangents)
    inputs = [op.inputs[i] for i in positions]
    if reduce_op in (Average, Sum):
        prescale = _calls.from_bits(int(op.get_attr("prescale_bits")))
        postscale = _calls.from_bits(int(op.get_attr("postscale_bits")))
        results = _calls.allreduce(tensors, reduce_op, prescale, postscale, name)
    elif reduce_op in (Min, Max):
        results = _extremum_gradient(inputs, [op.outputs[i] for i in positions], tensors, name)
    elif reduce_op == Product:
        results = _product_gradient(inputs, tensors, name)
    else:
        raise LookupError(f"no gradient is known for reduce operation {reduce_op}")
    return _spread(results, positions, len(cotangents))


def _extremum_gradient(
    inputs: list[Any], outputs: list[Any], cotangents: list[Any], name: str | None
) -> list[Any]:
    """Min and Max: to the ranks that hold the extremum, in equal parts, as `tf.reduce_max` does."""
    chosen = [
        tf.cast(tf.equal(x, y), g.dtype)
        for x, y, g in zip(inputs, outputs, cotangents, strict=True)
    ]
    reduced = _calls.allreduce(cotangents + chosen, Sum, name=name)
    sums, holders = reduced[: len(chosen)], reduced[len(chosen) :]
    return [c * s / h for c, s, h in zip(chosen, sums, holders, strict=True)]


def _product_gradient(inputs: list[Any], cotangents: list[Any], name: str | None) -> list[Any]:
    """Product: the product of all other ranks' inputs, so zeros need no division."""
    rank = world.rank()
    gathered, _ = _calls.allgather([x[tf.newaxis] for x in inputs], _suffixed(name, "inputs"))
    sums = _calls.allreduce(cotangents, Sum, name=name)
    below = [tf.math.cumprod(x, exclusive=True)[rank] for x in gathered]
    above = [tf.math.cumprod(x, exclusive=True, reverse=True)[rank] for x in gathered]
    return [s * b * a for s, b, a in zip(sums, below, above, strict=True)]


@tf.RegisterGradient("TfringAllgather")
def _allgather_gradient(op: Any, *cotangents: Any) -> list[Any]:
    # The last input and output are the row counts, see _calls.allgather.
    positions, tensors = _floating(cotangents[:-1])
    if not tensors:
        return [None] * len(cotangents)
    counts, rank = op.outputs[-1], world.rank()
    averages = _calls.allreduce(tensors, Average, name=_name(op))
    results = []
    for i, average in zip(positions, averages, strict=True):
        first = tf.reduce_sum(counts[:rank, i])
        own = average[first : first + counts[rank, i]]
        own.set_shape(op.inputs[i].shape)
        results.append(own)
    return _spread(results, positions, len(cotangents))


@tf.RegisterGradient("TfringBroadcast")
def _broadcast_gradient(op: Any, *cotangents: Any) -> list[Any]:
    positions, tensors = _floating(cotangents)
    if not tensors:
        return [None] * len(cotangents)
    averages = _calls.allreduce(tensors, Average, name=_name(op))
    if world.rank() != int(op.get_attr("root")):
        averages = [tf.zeros_like(average) for average in averages]
    return _spread(averages, positions, len(cotangents))


tf.no_gradient("TfringBarrier")


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


def _name(op: Any) -> str | None:
    forward = tf.compat.as_str(op.get_attr("tensor_name"))
    return None if forward == _naming.EAGER else f"{forward}/gradient"


def _suffixed(name: str | None, suffix: str) -> str | None:
    return None if name is None else f"{name}/{suffix}"
