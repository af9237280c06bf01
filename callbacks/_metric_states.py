"""Metrics whose state adds up: the state of all samples is the sum of the ranks' states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _keras

# What a metric of one's own may have, True or False, to say so itself.
OPT_IN = "states_add_up"

# Keras' metrics whose variables are counts or sums over samples, and how many they have. A
# subclass with more variables than these may hold anything.
_VARIABLES = {
    "Sum": 1,
    "Mean": 2,  # and all that wrap a function, RootMeanSquaredError
    "FalseNegatives": 1,
    "FalsePositives": 1,
    "TrueNegatives": 1,
    "TruePositives": 1,
    "Precision": 2,
    "Recall": 2,
    "AUC": 4,
    "PrecisionAtRecall": 4,
    "RecallAtPrecision": 4,
    "SensitivityAtSpecificity": 4,
    "SpecificityAtSensitivity": 4,
    "IoU": 1,  # and BinaryIoU, MeanIoU, OneHotIoU, OneHotMeanIoU
    "FBetaScore": 4,  # and F1Score
    "R2Score": 5,
}


def adds_up(metric: Any) -> bool:
    """Whether the metric on all samples comes of the sum of the ranks' variables."""
    own = getattr(metric, OPT_IN, None)
    if own is not None:
        return bool(own) and bool(metric.variables)
    known = _keras.of(metric).metrics
    return any(
        isinstance(metric, cls) and len(metric.variables) == count
        for cls, count in ((getattr(known, name, ()), n) for name, n in _VARIABLES.items())
    )


def metrics(model: Any) -> list[Any]:
    """Returns the metrics of a model, those inside of others instead of these."""
    # In Keras 2 they are in one list, and each is a layer with `metrics` of its own.
    return list(model.metrics if _keras.is_legacy(model) else _leaves(model.metrics))


def _leaves(metrics: Sequence[Any]) -> Iterator[Any]:
    for metric in metrics:
        yield from _leaves(metric.metrics) if hasattr(metric, "metrics") else (metric,)


def state(metric: Any) -> list[np.ndarray]:
    """Returns the values of the metric's variables."""
    return [variable.numpy() for variable in metric.variables]


def total(states: Sequence[list[np.ndarray] | None]) -> list[np.ndarray] | None:
    """Returns the sum of the ranks' states; None where one is missing or of another shape.

    Added in float64 and in rank order: the same bits on every rank.
    """
    present = [state for state in states if state is not None]
    shapes = [[(a.shape, a.dtype) for a in state] for state in present]
    if len(present) < len(states) or any(shape != shapes[0] for shape in shapes):
        return None
    return [_sum(parts) for parts in zip(*present, strict=True)]


def _sum(parts: Sequence[np.ndarray]) -> np.ndarray:
    dtype = np.int64 if parts[0].dtype.kind in "iub" else np.float64
    return np.sum([part.astype(dtype) for part in parts], axis=0)


@contextlib.contextmanager
def replaced(metrics: Sequence[Any], states: Sequence[list[np.ndarray] | None]) -> Iterator[None]:
    """Gives metrics other states for a while, and then back their own; None leaves one alone."""
    pairs = [(m, s) for m, s in zip(metrics, states, strict=True) if s is not None]
    before = [(metric, state(metric)) for metric, _ in pairs]
    try:
        for metric, values in pairs:
            _assign(metric, values)
        yield
    finally:
        for metric, values in before:
            _assign(metric, values)


def _assign(metric: Any, values: list[np.ndarray]) -> None:
    for variable, value in zip(metric.variables, values, strict=True):
        variable.assign(value.astype(tf.as_dtype(variable.dtype).as_numpy_dtype))


def results(model: Any) -> dict[str, Any]:
    """Returns the results of the model's metrics under their names in the logs."""
    return _flat(model.get_metrics_result())


def _flat(logs: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in logs.items():
        flat.update(_flat(value) if isinstance(value, dict) else {name: value})
    return flat


class Mark(float):
    """A metric's result that tells whose it is, until somebody calculates with it."""

    position: int


@contextlib.contextmanager
def marked(metrics: Sequence[Any]) -> Iterator[None]:
    """Lets each metric give a `Mark` with its position in `metrics` as its result.

    Only Keras knows under which names the results of metrics appear in the logs (those of
    several outputs, weighted ones, of equal names). So it is asked where these end up.
    """
    before = [vars(metric).get("result") for metric in metrics]
    try:
        for position, metric in enumerate(metrics):
            object.__setattr__(metric, "result", _marker(metric.result, position))
        yield
    finally:
        for metric, stock in zip(metrics, before, strict=True):
            object.__delattr__(metric, "result")
            if stock is not None:  # Keras 2 has one on each metric
                object.__setattr__(metric, "result", stock)


def _marker(stock: Any, position: int) -> Any:
    mark = Mark(1.0)
    mark.position = position

    def result() -> Any:
        value = stock()
        return dict.fromkeys(value, mark) if isinstance(value, dict) else mark

    return result
