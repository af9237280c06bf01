"""Optimizers of `tf.compat.v1.train`."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from tfring._options import Options


def is_v1_optimizer(optimizer: Any) -> bool:
    """Whether `optimizer` is one of `tf.compat.v1.train`."""
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def distribute(
    optimizer: Any,
    name: str | None,
    options: Options,
    *,
    passes: int,
    average_passes: bool,
    use_locking: bool,
) -> NoReturn:
    """Makes a v1 optimizer reduce its gradients."""
    del name, options, passes, average_passes, use_locking
    raise TypeError(
        "`optimizer` must be a keras.optimizers.Optimizer of Keras 3. "
        f"Received: optimizer={optimizer!r} of type {type(optimizer).__name__}"
    )
