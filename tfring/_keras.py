"""Which Keras this process uses: Keras 3, or Keras 2 where `TF_USE_LEGACY_KERAS` asks for it.

TensorFlow decides by that variable what `tf.keras` is; what tfring offers for Keras must be of
the same kind, or `fit` of the one would get callbacks of the other.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _xla_keras

# As TensorFlow reads it.
_VARIABLE = "TF_USE_LEGACY_KERAS"
IS_LEGACY = os.environ.get(_VARIABLE) in ("true", "True", "1")


def module() -> ModuleType:
    """Returns the Keras in use.

    Raises:
        ImportError: `TF_USE_LEGACY_KERAS` is set and there is no Keras 2.
    """
    if not IS_LEGACY:
        import keras

        return keras
    try:
        import tf_keras
    except ModuleNotFoundError as error:
        raise ImportError(
            "TF_USE_LEGACY_KERAS is set, so Keras 2 is needed, and it is not installed. Run `pip "
            "install tf_keras`, in the version of TensorFlow, or unset the variable."
        ) from error
    return tf_keras


def is_legacy(thing: Any) -> bool:
    """Whether an object, say an optimizer or a model, is of Keras 2."""
    return any(base.__module__.startswith("tf_keras.") for base in type(thing).__mro__)


def of(thing: Any) -> ModuleType:
    """Returns the Keras that an object is of, whatever is in use otherwise."""
    return importlib.import_module("tf_keras" if is_legacy(thing) else "keras")


def optimizer_classes() -> tuple[type, ...]:
    """Returns the base classes of optimizers of the Keras in use."""
    optimizers = module().optimizers
    legacy = (optimizers.legacy.Optimizer,) if IS_LEGACY else ()
    return (optimizers.Optimizer, *legacy)


def number(value: Any) -> float:
    """Returns the value of a scalar variable or tensor of any Keras."""
    return float(np.asarray(tf.convert_to_tensor(value)))


def steps_per_execution(model: Any) -> int:
    """Returns how many batches one call of a compiled model's step function reads."""
    # Keras 2 keeps it in a private variable.
    value = getattr(model, "_steps_per_execution" if is_legacy(model) else "steps_per_execution", 1)
    return 1 if value is None else int(value)


def require_3(name: str) -> None:
    """Raises NotImplementedError where Keras 2 is in use.

    Args:
        name: what there is for Keras 3 only.
    """
    if IS_LEGACY:
        raise NotImplementedError(
            f"`{name}` is for Keras 3 only. Received: TF_USE_LEGACY_KERAS="
            f"{os.environ.get(_VARIABLE)!r}. Unset it, or leave `{name}` out."
        )


# Bases of tfring's callbacks.
Callback: Any = module().callbacks.Callback
ModelCheckpoint: Any = module().callbacks.ModelCheckpoint

# What uses this module may bring collectives into a model.
_xla_keras.install(module())
