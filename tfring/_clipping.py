"""Hooks into Keras where it clips: after its accumulation, before decay and update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

Clip = Callable[[Sequence[Any]], Any]


@contextlib.contextmanager
def replaced(optimizer: Any, clip: Clip) -> Iterator[None]:
    """Lets a Keras optimizer clip by `clip` for a while."""
    object.__setattr__(optimizer, "_clip_gradients", clip)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "_clip_gradients")


def with_common_norm(
    clip: Clip, places: Sequence[int], own: Sequence[int], sum_over_ranks: Callable[[Any], Any]
) -> Clip:
    """Makes a clip by the global norm the same on ranks that have variables of their own.

    The norm is that of one process with all ranks' variables. By a norm of this rank's
    alone, ranks would scale the gradients that they share differently, and so part.

    Args:
        clip: The stock one.
        places: The place of each gradient that it will be given, among the call's.
        own: Places of this rank's own.
        sum_over_ranks: Sums a scalar over all ranks; every rank must call it.
    """

    def common(gradients: Sequence[Any]) -> list[Any]:
        pairs = list(zip(places, gradients, strict=True))
        mine = [gradient for i, gradient in pairs if i in own]
        squares = [tf.reduce_sum(tf.square(tf.cast(_dense(g), tf.float32))) for g in mine]
        norm = tf.sqrt(sum_over_ranks(tf.add_n([tf.constant(0.0), *squares])))
        *clipped, clipped_norm = clip([*(g for i, g in pairs if i not in own), norm])
        # Not finite stays so: Keras makes all gradients NaN then.
        factor = tf.where(tf.equal(norm, 0.0), tf.constant(1.0), clipped_norm / norm)
        shared = iter(clipped)
        return [_scaled(g, factor) if i in own else next(shared) for i, g in pairs]

    return common


def _dense(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _scaled(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
