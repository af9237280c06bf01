"""Keras' own `gradient_accumulation_steps`: one reduction per update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf


def apply_deferred(
    optimizer: Any,
    stock: Callable[..., None],
    gradients: list[Any],
    variables: list[Any],
    reduce: Callable[[Sequence[Any]], list[Any]],
) -> None:
    """Lets Keras add up gradients and reduces the total where Keras clips it.

    Args:
        optimizer: The one that accumulates.
        stock: Its own `apply`.
        gradients: One per variable, or None.
        variables: What they are the gradients of.
        reduce: Takes a list like `gradients` and returns it reduced.
    """
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    stock_clip = optimizer._clip_gradients
    clipped = False

    def reduce_and_clip(totals: Sequence[Any]) -> Any:
        nonlocal clipped
        clipped = True
        complete: list[Any] = [None] * len(gradients)
        for i, total in zip(present, totals, strict=True):
            complete[i] = total
        complete = reduce(complete)
        return stock_clip([complete[i] for i in present])

    object.__setattr__(optimizer, "_clip_gradients", reduce_and_clip)
    try:
        stock(gradients, variables)
    finally:
        object.__delattr__(optimizer, "_clip_gradients")
    must = not tf.executing_eagerly() or (
        int(optimizer._iterations) % optimizer.gradient_accumulation_steps == 0
    )
    if must and not clipped:
        raise RuntimeError(
            f"Keras {keras.__version__} updates without clipping first, so tfring cannot "
            "reduce accumulated gradients. Use backward_passes_per_step instead of "
            "gradient_accumulation_steps."
        )
