"""Local variables: each rank keeps its own, so their gradients are not reduced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._options import Options, key, owner


class LocalVariables:
    """The variables, and the layers whose variables, are this rank's own."""

    def __init__(self) -> None:
        self._variables: dict[int, Any] = {}  # key -> variable, which keeps the key valid
        self._layers: list[Any] = []

    def add(self, variable: Any, argument: str = "var") -> None:
        """Adds a variable of TensorFlow or Keras, or a tensor.

        Raises:
            TypeError: When it is something else.
        """
        if owner(variable) is None and not tf.is_tensor(variable):
            raise TypeError(
                f"`{argument}` must be a tf.Variable or keras.Variable. "
                f"Received: {argument}={variable!r} of type {type(variable).__name__}. For a "
                "layer, use a Partial... class with `local_layers`."
            )
        self._variables[key(variable)] = variable

    def add_layers(self, layers: Iterable[Any]) -> None:
        """Adds the trainable weights of layers, also those that they will make later."""
        self._layers.extend(layers)

    def split(self, variables: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Returns which of `variables` are shared by all ranks, and which are local."""
        local = set(self._variables)
        for layer in self._layers:
            local.update(map(key, layer.trainable_weights))
        places: tuple[list[int], list[int]] = ([], [])
        for i, variable in enumerate(variables):
            places[key(variable) in local].append(i)
        return places


def checked_layers(local_layers: Any) -> list[Any]:
    """Returns the `local_layers` argument of a user as a list.

    Raises:
        ValueError: When it is not None, a layer, or a collection of layers.
    """
    if local_layers is None:
        return []
    if _is_layer(local_layers):
        return [local_layers]
    is_collection = isinstance(local_layers, Iterable) and not isinstance(
        local_layers, (str, bytes, dict)
    )
    layers = list(local_layers) if is_collection and not tf.is_tensor(local_layers) else [None]
    for layer in layers:
        if not _is_layer(layer):
            raise ValueError(
                "`local_layers` must be None, a Keras layer, or a collection of Keras layers. "
                f"Received: local_layers={local_layers!r}"
            )
    return layers


def scaled(gradient: Any, options: Options) -> Any:
    """Divides a local gradient by the number of ranks, if it should be."""
    if gradient is None or not (options.scale_local_gradients and options.takes_part()):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(options.size(), gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(options.size(), gradient.dtype)


def _is_layer(value: Any) -> bool:
    # By what it has: the layers of Keras 2 (tf_keras) are of another class.
    return hasattr(type(value), "trainable_weights") and hasattr(type(value), "add_weight")
