"""The model, data and optimizer of a case; nothing here knows of ranks but the data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .case import Case

FEATURES = 3
OUTPUTS = 2
WORDS = 7
# Ratios like g / (sqrt(g * g) + epsilon) are then smooth enough for float32: with the default,
# components that nearly vanish would show the order of additions.
EPSILON = 1e-3
RATE = 0.02
CALLS_PER_EPOCH = 4  # of a warm-up


def dtype_of(case: Case) -> str:
    """The type of variables, losses and data."""
    return "float64" if case.precision == "float64" else "float32"


def data_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, both of shape (ranks, calls, samples, ...).

    A rank takes the first `case.batches[rank]` samples.
    """
    random = np.random.default_rng([case.seed, 1])
    shape = (case.ranks, case.calls, max(case.batches))
    if case.model == "embedding":
        x = random.integers(0, WORDS, (*shape, FEATURES)).astype("int32")
        x[0] //= 2  # words that only other ranks have
    elif case.model == "conv":
        x = random.uniform(-0.5, 0.5, (*shape, 5, 2)).astype("float32")
    else:
        x = random.uniform(-0.5, 0.5, (*shape, FEATURES)).astype("float32")
    y = random.uniform(-0.5, 0.5, (*shape, OUTPUTS)).astype("float32")
    for call, rank in case.overflows:
        y[rank, call, 0] = np.inf
    return (x if case.model == "embedding" else x.astype(dtype_of(case))), y.astype(dtype_of(case))


def model_of(case: Case, rank: int = 0) -> Any:
    """A built model whose weights the seed and the rank tell."""
    kind: dict[str, Any] = {"use_bias": case.bias, "dtype": keras.DTypePolicy(case.precision)}
    dense = keras.layers.Dense
    last = dense(OUTPUTS, **kind)
    if case.model == "embedding":
        inputs = keras.Input((FEATURES,), dtype="int32")
        embedded = keras.layers.Embedding(WORDS, 3, dtype=kind["dtype"])(inputs)
        hidden = keras.layers.Flatten(dtype=kind["dtype"])(embedded)
    elif case.model == "conv":
        inputs = keras.Input((5, 2), dtype=dtype_of(case))
        hidden = keras.layers.Conv1D(3, 2, activation="tanh", **kind)(inputs)
        hidden = keras.layers.Flatten(dtype=kind["dtype"])(hidden)
    else:
        inputs = keras.Input((FEATURES,), dtype=dtype_of(case))
        hidden = inputs
        if case.model == "mlp":
            hidden = dense(5, activation="tanh", **kind)(hidden)
        elif case.model == "shared":
            layer = dense(FEATURES, activation="tanh", **kind)
            hidden = layer(layer(hidden))
    model = keras.Model(inputs, last(hidden))
    model.dtype_policy = keras.DTypePolicy(case.precision)
    random = np.random.default_rng([case.seed, 2, rank])
    model.set_weights([random.uniform(-0.5, 0.5, w.shape) for w in model.get_weights()])
    return model


def extra_of(case: Case, rank: int = 0) -> list[Any]:
    """The variable that some ranks do not use, if the model has it."""
    if case.model != "partial":
        return []
    random = np.random.default_rng([case.seed, 3, rank])
    return [keras.Variable(random.uniform(-0.5, 0.5, (OUTPUTS,)), dtype=dtype_of(case))]


def loss_of(case: Case) -> Any:
    """The mean squared error."""
    return keras.losses.MeanSquaredError(dtype=dtype_of(case))


def losses(case: Case, model: Any, extra: list[Any], x: Any, y: Any, uses: bool) -> Any:
    """The loss of one batch."""
    predicted = tf.cast(model(x, training=True), dtype_of(case))
    if extra and uses:
        predicted = predicted * extra[0]
    return loss_of(case)(y, predicted)


def rate_of(case: Case) -> Any:
    """The learning rate, or its schedule."""
    if case.schedule == "exponential":
        return keras.optimizers.schedules.ExponentialDecay(RATE, 1, 0.8)
    if case.schedule == "cosine":
        return keras.optimizers.schedules.CosineDecay(RATE, 5, alpha=0.1)
    return RATE


def warm_rate(case: Case, call: int) -> float:
    """The learning rate of a call of a warm-up of two epochs."""
    epochs = min(2.0, call / CALLS_PER_EPOCH)
    return RATE * (epochs * (case.ranks - 1) / 2 + 1) / case.ranks


def optimizer_of(case: Case) -> Any:
    """A stock optimizer, which scales no loss."""
    of = keras.optimizers
    smooth = {"epsilon": EPSILON}
    classes: dict[str, tuple[Any, dict[str, Any]]] = {
        "sgd": (of.SGD, {}),
        "momentum": (of.SGD, {"momentum": 0.9}),
        "nesterov": (of.SGD, {"momentum": 0.9, "nesterov": True}),
        "adam": (of.Adam, smooth),
        "amsgrad": (of.Adam, {"amsgrad": True, **smooth}),
        "adamw": (of.AdamW, smooth),
        "adamax": (of.Adamax, smooth),
        "nadam": (of.Nadam, smooth),
        "adagrad": (of.Adagrad, smooth),
        "adadelta": (of.Adadelta, smooth),
        "rmsprop": (of.RMSprop, smooth),
        "centered": (of.RMSprop, {"centered": True, "momentum": 0.5, **smooth}),
        "ftrl": (of.Ftrl, {}),
        "lion": (of.Lion, {}),
    }
    cls, arguments = classes[case.optimizer]
    arguments = dict(arguments)
    if case.ema:
        arguments.update(use_ema=True, ema_momentum=0.8)
        arguments["ema_overwrite_frequency"] = 2 if case.ema == "overwrite" else None
    if case.weight_decay is not None:
        arguments["weight_decay"] = case.weight_decay
    if case.clip:
        arguments[case.clip] = 0.02 if case.clip == "clipvalue" else 0.1
    if case.accumulation > 1:
        arguments["gradient_accumulation_steps"] = case.accumulation
    return cls(rate_of(case), **arguments)


def scaled(case: Case, optimizer: Any) -> Any:
    """The optimizer with its loss scaled as the case has it."""
    if case.precision != "mixed_float16":
        return optimizer
    if case.wrapping == "compile":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return keras.optimizers.LossScaleOptimizer(
        optimizer, initial_scale=2.0**10, dynamic_growth_steps=2
    )
