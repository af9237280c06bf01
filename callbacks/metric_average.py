"""`MetricAverageCallback`: epoch metrics of all ranks' samples."""

from __future__ import annotations

from typing import Any

from tfring import _keras, _metric_reports, world

_VALIDATION = 1  # the position of its snapshot


class MetricAverageCallback(_keras.Callback):
    """Replaces each epoch's metrics by those over the samples of all ranks.

    The metrics of training and of validation come out as in one process that sees all samples.
    Losses and Keras' own metrics (means, AUC, precision, recall, confusion matrices, F scores,
    R2, sums) keep counts and sums over samples: these are added over ranks, and the metric
    computes its result from the totals. Its state on each rank stays as it was. Ranks may have
    different numbers of samples; one that has none to validate gets the others' result. Where the
    states of validation are the same on all ranks, all of them validated the same samples, which
    then count once.

    A metric class of your own, or a subclass with variables of its own, says how its states become
    one: `states_add_up = True` where it keeps nothing but counts and sums; a method
    `merge_states(states)` that makes one list of arrays of the ranks' lists of arrays, in rank
    order, for others, say a maximum; or `states_add_up = False`, where its results are to be
    averaged, each rank's counting by its samples (or sample weights). Where it says nothing, its
    variables count as `Metric.add_variable(aggregation=...)` has it, whose default is "sum", if
    they start at zero, and its results are averaged otherwise. A warning says so, once.

    All ranks must have the same metrics; one that only some ranks report is averaged over those
    and added to the others' logs.

    Wherever it stands in the list, it comes before `on_epoch_end` of all others: callbacks that
    read metrics (`ModelCheckpoint`, `EarlyStopping`, `ReduceLROnPlateau`) decide alike on all
    ranks. All ranks must run the same number of epochs.

    In the list of `model.evaluate`, on all ranks, it does so for the results that `evaluate`
    returns. `tfring.keras.evaluate` also divides the data, and tells other ranks of errors.

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
        self._train: _metric_reports.Snapshot | None = None
        self._validation: _metric_reports.Snapshot | None = None
        self._is_in_fit = False
        self._has_validated = False
        self._combined: dict[str, Any] | None = None  # the logs, until `on_epoch_end`

    def set_params(self, params: dict[str, Any]) -> None:
        """Begins a `fit`, or an `evaluate` on its own."""
        super().set_params(params)
        self._is_in_fit = False
        self._forget()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Tells validation from an `evaluate` on its own."""
        self._is_in_fit = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forgets the metrics of the last epoch."""
        self._forget()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the metrics of training, which validation is about to reset."""
        self._train = _metric_reports.snapshot(self.model)
        self._has_validated = True

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps the metrics of validation."""
        self._validation = _metric_reports.snapshot(self.model, "val_")

    def before_test_end(self, logs: dict[str, Any]) -> None:
        """Combines the results of an `evaluate` on its own in place, by one exchange."""
        if self._is_in_fit or world.size() == 1:
            return
        snapshots = [_metric_reports.snapshot(self.model)]
        mine = _metric_reports.report(logs, snapshots)
        reports = _metric_reports.exchange(mine, "metric average of a test")
        logs.update(_metric_reports.combined(self.model, snapshots, reports, whole=[0]))

    def before_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Combines `logs` in place, by one exchange, before other callbacks see them."""
        if logs is None or world.size() == 1:
            return
        if not self._has_validated:
            self._train = _metric_reports.snapshot(self.model)
        snapshots = [self._train, self._validation]
        mine = _metric_reports.report(logs, snapshots)
        reports = _metric_reports.exchange(mine, "metric average")
        logs.update(_metric_reports.combined(self.model, snapshots, reports, whole=[_VALIDATION]))
        self._combined = dict(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages what callbacks before this one have written into the logs since."""
        if logs is None or world.size() == 1:
            return
        if self._combined is None:  # a loop of one's own, without a list of callbacks
            self.before_epoch_end(epoch, logs)
        before = self._combined or {}
        new = {k: v for k, v in logs.items() if k not in before or v is not before[k]}
        mine = _metric_reports.report_of_logs(new, [self._train, self._validation])
        logs.update(
            _metric_reports.averages(_metric_reports.exchange(mine, "metric average, later"))
        )
        self._forget()

    def _forget(self) -> None:
        self._train = self._validation = self._combined = None
        self._has_validated = False
