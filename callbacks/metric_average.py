"""`MetricAverageCallback`: epoch metrics of all ranks' samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfring import _keras, objects, world
from tfring.callbacks import _metric_states


class MetricAverageCallback(_keras.Callback):
    """Replaces each epoch's metrics by those over the samples of all ranks.

    The metrics of training and of validation come out as in one process that sees all samples.
    Losses and Keras' own metrics (means, AUC, precision, recall, confusion matrices, F scores,
    R2, sums) keep counts and sums over samples: these are added over ranks, and the metric
    computes its result from the totals. Its state on each rank stays as it was.

    Of other metrics, only values are known: these are averaged, each rank's counting by its samples
    (or sample weights), which is exact for means only. A metric class of your own that keeps
    nothing but counts and sums says so by `states_add_up = True`, and is then added up too. A
    subclass of one of Keras' metrics needs that if it has more variables, and may refuse by
    `states_add_up = False`. All ranks must have the same metrics; one that only some ranks report
    is averaged over those and added to the others' logs.

    Wherever it stands in the list, it comes before `on_epoch_end` of all others: callbacks that
    read metrics (`ModelCheckpoint`, `EarlyStopping`, `ReduceLROnPlateau`) decide alike on all
    ranks. All ranks must run the same number of epochs. `evaluate` on its own is not averaged.

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
        self._train: _Snapshot | None = None
        self._validation: _Snapshot | None = None
        self._combined: dict[str, Any] | None = None  # the logs, until `on_epoch_end`

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forgets the metrics of the last epoch."""
        self._train = self._validation = self._combined = None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the metrics of training, which validation is about to reset."""
        self._train = _Snapshot(self.model)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the metrics of validation."""
        self._validation = _Snapshot(self.model)

    def before_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Combines `logs` in place, by one exchange, before other callbacks see them."""
        if logs is None or world.size() == 1:
            return
        snapshots = self._snapshots()
        entries = {name: _entry(name, value, snapshots) for name, value in logs.items()}
        mine = _Report(
            {name: entry for name, entry in entries.items() if entry is not None},
            [snapshot.states for snapshot in snapshots],
        )
        reports = objects.allgather_object(mine, name="metric average")
        logs.update(_averages([report.entries for report in reports]))
        logs.update(_combined(self.model, snapshots, reports))
        self._combined = dict(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages what callbacks before this one have written into the logs since."""
        if logs is None or world.size() == 1:
            return
        if self._combined is None:  # a loop of one's own, without a list of callbacks
            self.before_epoch_end(epoch, logs)
        before, self._combined = self._combined or {}, None
        new = [name for name in logs if name not in before or logs[name] is not before[name]]
        snapshots = self._snapshots()
        entries = {name: _entry(name, logs[name], snapshots) for name in new}
        mine = {name: entry for name, entry in entries.items() if entry is not None}
        logs.update(_averages(objects.allgather_object(mine, name="metric average, later")))
        self._train = self._validation = None

    def _snapshots(self) -> list[_Snapshot]:
        self._train = self._train or _Snapshot(self.model)
        return [self._train] if self._validation is None else [self._train, self._validation]


class _Entry(NamedTuple):
    """What a rank says about one value of its logs."""

    value: float | None  # None: no number
    weight: float
    source: tuple[int, int | None] | None  # snapshot, and metric (None: all); None: unknown


class _Report(NamedTuple):
    """What a rank sends at the end of an epoch."""

    entries: dict[str, _Entry]
    states: list[list[list[np.ndarray] | None]]  # by snapshot and metric; None: does not add up


class _Snapshot:
    """The metrics of a model at the end of training or validation."""

    def __init__(self, model: Any) -> None:
        self.metrics = _metric_states.metrics(model)
        self.states = [
            _metric_states.state(metric) if _metric_states.adds_up(metric) else None
            for metric in self.metrics
        ]
        self.results = _metric_states.results(model)
        self._owners = _owners(model, self.metrics)
        self._counts = [_count(metric) for metric in self.metrics]

    def source(self, name: str, value: Any) -> int | None:
        """Returns the position of the metric behind a log, None where it is of several.

        Raises:
            LookupError: it is no result of a metric.
        """
        result = self.results.get(name)
        if result is None or not np.allclose(value, result, rtol=1e-5, equal_nan=True):
            raise LookupError(name)
        return self._owners.get(name)

    def weight(self, name: str) -> float:
        """Returns the sum of sample weights behind a log; where unknown, that behind the loss."""
        for each in (name, "loss"):
            position = self._owners.get(each)
            count = None if position is None else self._counts[position]
            if count is not None:
                return count
        return 1.0


def _entry(name: str, value: Any, snapshots: Sequence[_Snapshot]) -> _Entry | None:
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        return None
    which = 0
    if name.startswith("val_") and len(snapshots) > 1:
        name, which = name.removeprefix("val_"), 1
    try:
        source = (which, snapshots[which].source(name, array))
    except LookupError:
        source = None
    number = float(array) if array.ndim == 0 else None
    return _Entry(number, snapshots[which].weight(name), source)


def _averages(reports: Sequence[dict[str, _Entry]]) -> dict[str, float]:
    """Weighted means in float64, added in rank order: the same bits on every rank."""
    names = sorted(set().union(*reports))
    result = {}
    for name in names:
        entries = [report[name] for report in reports if name in report]
        parts = [(e.value, e.weight) for e in entries if e.value is not None]
        total = math.fsum(weight for _, weight in parts)
        if total > 0:
            # A rank without samples may report NaN.
            result[name] = math.fsum(value * w for value, w in parts if w > 0) / total
        elif parts:
            result[name] = math.fsum(value for value, _ in parts) / len(parts)
    return result


def _combined(
    model: Any, snapshots: Sequence[_Snapshot], reports: Sequence[_Report]
) -> dict[str, Any]:
    """Returns the logs whose metrics add up on all ranks; the names are the same on all."""
    result: dict[str, Any] = {}
    if any(len(report.states) != len(snapshots) for report in reports):
        return result
    for which, snapshot in enumerate(snapshots):
        states = [report.states[which] for report in reports]
        if any(len(of_rank) != len(snapshot.metrics) for of_rank in states):
            continue
        totals = [_metric_states.total(ranks) for ranks in zip(*states, strict=True)]
        with _metric_states.replaced(snapshot.metrics, totals):
            values = _metric_states.results(model)
        for name in _known_alike(reports, which, totals):
            result[name] = _plain(values[name.removeprefix("val_") if which else name])
    return result


def _known_alike(reports: Sequence[_Report], which: int, totals: Sequence[Any]) -> list[str]:
    """Returns the logs of a snapshot that all ranks have of the same metrics, which add up."""
    names = []
    for name, entry in reports[0].entries.items():
        source = entry.source
        if source is None or source[0] != which:
            continue
        needed = totals if source[1] is None else [totals[source[1]]]
        others = (report.entries.get(name) for report in reports)
        alike = all(other is not None and other.source == source for other in others)
        if alike and all(total is not None for total in needed):
            names.append(name)
    return names


def _owners(model: Any, metrics: Sequence[Any]) -> dict[str, int]:
    """Returns the position of the metric behind each log that is one metric's result."""
    try:
        with _metric_states.marked(metrics):
            logs = _metric_states.results(model)
    except (AttributeError, TypeError, ValueError):
        return {}  # a user's own function that needs tensors
    marks = {k: v for k, v in logs.items() if isinstance(v, _metric_states.Mark)}
    return {name: mark.position for name, mark in marks.items()}


def _count(metric: Any) -> float | None:
    is_mean = isinstance(metric, _keras.of(metric).metrics.Mean)
    return _keras.number(metric.count) if is_mean else None


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array
