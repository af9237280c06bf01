"""The models that are trained, and batches for them, made in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

NAMES = ("cnn", "mlp", "transformer")

_CLASSES = 10
_IMAGE = (96, 96, 3)
_FEATURES = 1024
_WORDS, _LENGTH, _WIDTH, _HEADS, _BLOCKS = 8192, 64, 256, 4, 2


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One model.

    Attributes:
        title: what it is, in a few words.
        batch: examples per rank and step.
        build: makes the Keras model, not compiled; its outputs are logits.
        data: makes (inputs, labels) of a batch from its size and a NumPy generator.
    """

    title: str
    batch: int
    build: Callable[[], Any]
    data: Callable[[int, Any], tuple[Any, Any]]


def recipe(name: str) -> Recipe:
    """Returns the model of that name, one of `NAMES`."""
    return {
        "cnn": Recipe("CNN", 32, _cnn, _images),
        "mlp": Recipe("MLP", 256, _mlp, _features),
        "transformer": Recipe("transformer", 16, _transformer, _sentences),
    }[name]


def _cnn() -> Any:
    """0.7 million parameters."""
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input(_IMAGE)])
    for filters in (32, 64, 128, 256):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(1024, activation="relu"))
    model.add(layers.Dense(_CLASSES))
    return model


def _images(batch: int, random: Any) -> tuple[Any, Any]:
    images = random.random((batch, *_IMAGE), dtype="float32")
    return images, random.integers(_CLASSES, size=batch, dtype="int32")


def _mlp() -> Any:
    """25.1 million parameters."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((_FEATURES,)),
            layers.Dense(4096, activation="relu"),
            layers.Dense(4096, activation="relu"),
            layers.Dense(1000),
        ]
    )


def _features(batch: int, random: Any) -> tuple[Any, Any]:
    features = random.random((batch, _FEATURES), dtype="float32")
    return features, random.integers(1000, size=batch, dtype="int32")


def _transformer() -> Any:
    """5.8 million parameters: it predicts the next word, with tables of words and of places."""
    import keras
    from keras import layers, ops

    words = keras.Input((_LENGTH,), dtype="int32")
    places = layers.Embedding(_LENGTH, _WIDTH)(ops.arange(_LENGTH))
    x = layers.Embedding(_WORDS, _WIDTH)(words) + places
    for _ in range(_BLOCKS):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
        x = x + attention(normal, normal, use_causal_mask=True)
        hidden = layers.Dense(4 * _WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(_WIDTH)(hidden)
    return keras.Model(words, layers.Dense(_WORDS)(layers.LayerNormalization()(x)))


def _sentences(batch: int, random: Any) -> tuple[Any, Any]:
    text = random.integers(_WORDS, size=(batch, _LENGTH + 1), dtype="int32")
    return text[:, :-1], text[:, 1:]
