"""`DriftCallback`: are the weights of all ranks still the same?"""

from __future__ import annotations

from typing import Any

from tfring import _drift, _keras, drift
from tfring.process_sets import ProcessSet


class DriftCallback(_keras.Callback):
    """Compares weights and optimizer state over ranks every so many steps, bit for bit.

    `fit` with a distributed optimizer compares them at the end of each epoch by itself (setting
    `TFRING_DRIFT`); use this to find a difference sooner, with another action, or with another
    optimizer. What is compared, and what it costs, tells `tfring.check_drift`. Use it on
    every rank; all ranks must run the same number of steps. Where a step of Keras holds
    several batches (`steps_per_execution`), it looks after the first step that reaches the number.

    Args:
        every: Steps between two looks. Default None: at the end of each epoch.
        action: "raise", "warn" or "resync", see `tfring.check_drift`.
        process_set: The ranks to compare. Default: those of the model's optimizer.
        non_trainable: Also the weights that are not trained, such as moving statistics.

    Raises:
        ValueError: When an argument makes no sense.
        tf.errors.FailedPreconditionError: During training, on all ranks, when variables differ
            and `action` is "raise".
        tf.errors.AbortedError: During training, when a peer is lost.

    Example:

    >>> import tfring as hvd
    >>> callbacks = [hvd.callbacks.DriftCallback(every=100, action="warn")]
    """

    def __init__(
        self,
        every: int | None = None,
        action: str = "raise",
        process_set: ProcessSet | None = None,
        non_trainable: bool = False,
    ) -> None:
        super().__init__()
        if every is not None and (
            isinstance(every, bool) or not isinstance(every, int) or every < 1
        ):
            raise ValueError(
                "`every` must be a positive number of steps, or None for the end of each epoch. "
                f"Received: every={every!r}"
            )
        _drift.check_action(action)
        self._every = every
        self._action = action
        self._process_set = process_set
        self._non_trainable = non_trainable
        self._epoch = 0
        self._batches = 0  # finished in this epoch
        self._steps = 0  # since the last look

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts batches anew."""
        self._epoch, self._batches = epoch, 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares after every so many steps."""
        self._steps += batch + 1 - self._batches
        self._batches = batch + 1
        if self._every is not None and self._steps >= self._every:
            self._steps = 0
            self._look(f"after batch {batch} of epoch {self._epoch}")

    def before_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares at the end of an epoch, before any callback may change weights."""
        if self._every is None:
            self._look(f"at the end of epoch {epoch}")

    def _look(self, when: str) -> None:
        drift.check_drift(
            self.model,
            self._action,
            self._process_set,
            non_trainable=self._non_trainable,
            when=when,
        )
