"""Adasum for optimizers: each rank takes its own step, and the steps are combined.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv:2006.02924: what
Adasum combines are the changes that each rank's optimizer makes to the weights. So moments and
other state of the optimizer are those of the rank's own gradients, and gradients never travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring._options import unwrapped


def check(optimizer: Any) -> None:
    """Raises ValueError for an optimizer whose step cannot be combined."""
    if getattr(optimizer, "use_ema", False):
        raise ValueError(
            "`op=tfring.Adasum` cannot be used with `use_ema=True`: the average would be that of "
            "weights before ranks are combined. Received: "
            f"optimizer={optimizer!r}"
        )


def apply(
    optimizer: Any,
    variables: Sequence[Any],
    local_step: Callable[[], None],
    reduce: Callable[[list[Any]], list[Any]],
    combined: Sequence[bool],
) -> None:
    """Takes the local step; then sets weights to their start plus the combined change.

    Args:
        optimizer: The one that makes the update, not one that scales its loss.
        variables: The variables that ranks share.
        local_step: Updates all variables from this rank's gradients.
        reduce: Takes one change per variable, or None, and returns them combined.
        combined: Which of the variables are to be combined.
    """
    chosen = [v for v, is_combined in zip(variables, combined, strict=True) if is_combined]
    starts = [tf.identity(unwrapped(variable)) for variable in chosen]
    is_update = _is_update(optimizer)
    local_step()

    def combine() -> None:
        own = iter(
            unwrapped(variable) - start for variable, start in zip(chosen, starts, strict=True)
        )
        changes = reduce([next(own) if is_combined else None for is_combined in combined])
        total = [change for change, is_it in zip(changes, combined, strict=True) if is_it]
        for variable, start, change in zip(chosen, starts, total, strict=True):
            variable.assign(_constrained(variable, start + change))

    if is_update is None:
        combine()
    else:
        tf.cond(is_update, combine, lambda: None)


def _is_update(optimizer: Any) -> Any:
    """Whether the coming call ends an accumulation; None where each call is an update."""
    steps = getattr(optimizer, "gradient_accumulation_steps", None)  # Keras 2 has none
    if not steps:
        return None
    # The same on all ranks: ranks count calls alike.
    return tf.equal((tf.cast(unwrapped(optimizer._iterations), tf.int64) + 1) % steps, 0)


def _constrained(variable: Any, value: Any) -> Any:
    constraint = getattr(variable, "constraint", None)
    return value if constraint is None else constraint(value)
