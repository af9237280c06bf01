"""What the learning rate callbacks share: checks, and setting the rate."""

from __future__ import annotations

from typing import Any

from tfring import _keras, _legacy_keras, _loss_scale


def check_rate(initial_lr: Any) -> float:
    """Returns `initial_lr` as a float, or raises ValueError."""
    if isinstance(initial_lr, bool) or not isinstance(initial_lr, (int, float)) or initial_lr <= 0:
        raise ValueError(
            "`initial_lr` must be a positive number: the learning rate at full speed, already "
            f"scaled for the number of ranks. Received: initial_lr={initial_lr!r}"
        )
    return float(initial_lr)


def steps_per_epoch(given: int | None, params: dict[str, Any] | None) -> int:
    """Returns the number of steps of an epoch, from the user or from `fit`."""
    steps = given if given is not None else (params or {}).get("steps")
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(
            "`steps_per_epoch` must be given to the callback as a positive integer, because "
            f"fit does not know it for this data. Received: steps_per_epoch={steps!r}"
        )
    return steps


def get_rate(optimizer: Any) -> float:
    """Returns the learning rate now."""
    rate = optimizer.learning_rate
    return _keras.number(rate(optimizer.iterations) if callable(rate) else rate)


def set_rate(optimizer: Any, rate: float, momentum_correction: bool) -> None:
    """Sets the learning rate, and rescales velocities that contain the old one.

    Raises:
        ValueError: When the optimizer was made with a schedule.
    """
    is_legacy = _keras.is_legacy(optimizer)
    inner = (_legacy_keras if is_legacy else _loss_scale).innermost(optimizer)
    if _legacy_keras.has_schedule(inner) if is_legacy else callable(inner._learning_rate):
        raise ValueError(
            "The optimizer was made with a learning rate schedule, which this callback cannot "
            "change. Make it with a number, or leave the callback out. "
            f"Received: learning_rate={getattr(inner, '_learning_rate', inner.learning_rate)!r}"
        )
    old = get_rate(inner)
    if rate == old:
        return
    inner.learning_rate = rate
    if momentum_correction and old > 0:
        for velocity in _legacy_keras.velocities(inner) if is_legacy else _velocities(inner):
            velocity.assign(velocity * (rate / old))


def _velocities(optimizer: Any) -> list[Any]:
    # SGD and RMSprop keep v = momentum * v - rate * step. Scaling v once equals using
    # momentum * rate / old for one step (Goyal et al., arXiv:1706.02677, section 2.1), and
    # works although Keras fixes `momentum` when it traces the training step.
    optimizers = _keras.of(optimizer).optimizers
    if isinstance(optimizer, optimizers.SGD):
        slots = getattr(optimizer, "momentums", [])
    elif isinstance(optimizer, optimizers.RMSprop):
        slots = getattr(optimizer, "_momentums", [])
    else:
        slots = []
    return [slot for slot in slots if slot is not None]
