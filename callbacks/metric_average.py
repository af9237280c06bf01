"""`MetricAverageCallback`: epoch metrics of all ranks' samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfring import _keras, objects, world

_Weights = dict[str, float]


class MetricAverageCallback(_keras.Callback):
    """Replaces each epoch's metrics by those over the samples of all ranks.

    Each rank's value counts by the samples (or sample weights) that it was made of, as
    Keras itself weights batches, so losses and mean metrics come out as in one process that
    sees all data; validation metrics too. Metrics that are no means (AUC, precision) are
    averaged by samples, which is not their value on all data.

    Put it before callbacks that read metrics (`ModelCheckpoint`, `EarlyStopping`,
    `ReduceLROnPlateau`): they then decide alike on all ranks. All ranks must run the same
    number of epochs. A metric that only some ranks report is averaged over those and
    added to the others' logs. `evaluate` on its own is not averaged.

    Args:
        device: No effect.

    Raises:
        tf.errors.AbortedError: At the end of an epoch, when a peer is lost.

    Example:

    >>> import tfring as hvd
    >>> callbacks = [hvd.keras.callbacks.MetricAverageCallback()]
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device
        self._train: _Weights | None = None
        self._validation: _Weights | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forgets the weights of the last epoch."""
        self._train = self._validation = None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the weights of training, which validation is about to reset."""
        self._train = _weights(self.model)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the weights of validation."""
        self._validation = _weights(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages `logs` in place, by one exchange."""
        if logs is None or world.size() == 1:
            return
        train = _weights(self.model) if self._train is None else self._train
        validation = self._validation or {}
        mine = {
            name: (float(value), _weight(name, train, validation))
            for name, value in logs.items()
            if _is_number(value)
        }
        logs.update(_average(objects.allgather_object(mine, name="metric average")))


def _average(reports: list[dict[str, tuple[float, float]]]) -> dict[str, float]:
    """Weighted means in float64, added in rank order: the same bits on every rank."""
    names = sorted(set().union(*reports))
    result = {}
    for name in names:
        parts = [report[name] for report in reports if name in report]
        total = math.fsum(weight for _, weight in parts)
        if total > 0:
            # A rank without samples may report NaN.
            result[name] = math.fsum(value * w for value, w in parts if w > 0) / total
        else:
            result[name] = math.fsum(value for value, _ in parts) / len(parts)
    return result


def _weight(name: str, train: _Weights, validation: _Weights) -> float:
    weights = train
    if name.startswith("val_") and validation:
        name, weights = name.removeprefix("val_"), validation
    return weights.get(name, weights.get("loss", 1.0))


def _weights(model: Any) -> _Weights:
    """The sum of sample weights behind each mean metric, by name."""
    return {
        metric.name: _keras.number(metric.count)
        for metric in _metrics(model)
        if isinstance(metric, _keras.of(model).metrics.Mean)
    }


def _metrics(model: Any) -> list[Any]:
    # In Keras 2 they are in one list, and each is a layer with `metrics` of its own.
    return list(model.metrics if _keras.is_legacy(model) else _leaves(model.metrics))


def _leaves(metrics: list[Any]) -> Iterator[Any]:
    for metric in metrics:
        yield from _leaves(metric.metrics) if hasattr(metric, "metrics") else (metric,)


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "fiub"
