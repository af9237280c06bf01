"""Keras' own `gradient_accumulation_steps`: one reduction per update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring import _clipping


def apply_deferred(
    optimizer: Any,
    apply: Callable[[], None],
    places: Sequence[int],
    reduce: Callable[[list[Any]], list[Any]],
    clip: _clipping.Clip,
) -> None:
    """Lets Keras add up gradients and reduces the total where Keras clips it.

    Args:
        optimizer: The one that accumulates, not one that scales its loss.
        apply: Hands gradients to the stock optimizer. May leave them out, as it does
            under loss scaling when they are not finite.
        places: The place of each gradient that Keras clips, among those of the call.
        reduce: Takes the totals, a list by place with None elsewhere, and returns it reduced.
        clip: Takes gradients as Keras does, and clips them.
    """
    clipped = False

    def reduce_and_clip(totals: Sequence[Any]) -> Any:
        nonlocal clipped
        clipped = True
        complete: list[Any] = [None] * (max(places) + 1)
        for i, total in zip(places, totals, strict=True):
            complete[i] = total
        complete = reduce(complete)
        return clip([complete[i] for i in places])

    before = _calls_of(optimizer)
    with _clipping.replaced(optimizer, reduce_and_clip):
        apply()
    if places and not clipped and _has_updated(optimizer, before):
        raise RuntimeError(
            f"Keras {keras.__version__} updates without clipping first, so tfring cannot "
            "reduce accumulated gradients. Use backward_passes_per_step instead of "
            "gradient_accumulation_steps."
        )


def _calls_of(optimizer: Any) -> int | None:
    """How many passes Keras has counted; None in a graph, where both branches are traced."""
    return int(optimizer._iterations) if tf.executing_eagerly() else None


def _has_updated(optimizer: Any, before: int | None) -> bool:
    if before is None:
        return True
    now = int(optimizer._iterations)
    return now != before and now % int(optimizer.gradient_accumulation_steps) == 0
