"""Which Keras this process uses: Keras 3, or Keras 2 where `TF_USE_LEGACY_KERAS` asks for it.

TensorFlow decides by that variable what `tf.keras` is; what tfring offers for Keras must be of
the same kind, or `fit` of the one would get callbacks of the other.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

# As TensorFlow reads it.
IS_LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") in ("true", "True", "1")


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


Callback: Any = module().callbacks.Callback
