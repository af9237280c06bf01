"""Optimizers of Keras 2 (`tf_keras`)."""

from __future__ import annotations

from typing import Any, NoReturn

from tfring._options import Options


def is_legacy(optimizer: Any) -> bool:
    """Whether `optimizer` is one of Keras 2."""
    return any(base.__module__.startswith("tf_keras.") for base in type(optimizer).__mro__)


def distribute(
    optimizer: Any, name: str | None, options: Options, *, passes: int, average_passes: bool
) -> NoReturn:
    """Makes an optimizer of Keras 2 reduce its gradients."""
    del name, options, passes, average_passes
    raise TypeError(
        "`optimizer` must be a keras.optimizers.Optimizer of Keras 3. "
        f"Received: optimizer={optimizer!r} of type {type(optimizer).__name__}"
    )
