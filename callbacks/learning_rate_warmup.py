"""`LearningRateWarmupCallback`: from one rank's learning rate to that of all."""

from __future__ import annotations

from typing import Any

from tfring import _keras, world
from tfring.callbacks import _learning_rate


class LearningRateWarmupCallback(_keras.Callback):
    """Raises the learning rate from `initial_lr / size()` to `initial_lr`, batch by batch.

    Large batches, which several ranks make together, train badly at their full rate in the
    first epochs (Goyal et al., arXiv:1706.02677). The rate grows linearly, from
    `initial_lr / size()` at the first update to exactly `initial_lr` at the first update
    after `warmup_epochs`; training that starts later (`initial_epoch`) gets `initial_lr` at
    once. From then on the rate is left to others. Use the same one on every rank.

    Momentum correction is as in `LearningRateScheduleCallback`.

    Args:
        initial_lr: The rate at full speed, already scaled for the number of ranks.
        warmup_epochs: Epochs until full speed, may be fractional. Default 5.
        momentum_correction: Rescale velocities when the rate changes.
        steps_per_epoch: Batches of an epoch, where `fit` does not know it.
        verbose: 1 prints on rank 0 when the warm-up is over.

    Raises:
        ValueError: When an argument is missing or makes no sense; at the first batch, when the
            optimizer has a schedule of its own.

    Example:

    >>> import tfring as hvd
    >>> hvd.init()
    >>> warmup = hvd.keras.callbacks.LearningRateWarmupCallback(0.1 * hvd.size())
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        self._initial_lr = _learning_rate.check_rate(initial_lr)
        if not warmup_epochs >= 0:
            raise ValueError(
                "`warmup_epochs` must be a number of epochs, 0 or more. "
                f"Received: warmup_epochs={warmup_epochs}"
            )
        self._warmup_epochs = warmup_epochs
        self._momentum_correction = momentum_correction
        self._steps_per_epoch = steps_per_epoch
        self._verbose = verbose
        self._epoch = 0
        self._done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts over."""
        self._done = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the rate of the next update."""
        if self._done:
            return
        epoch: float = self._epoch
        if epoch < self._warmup_epochs:
            steps = _learning_rate.steps_per_epoch(self._steps_per_epoch, self.params)
            epoch += batch / steps
        if epoch >= self._warmup_epochs:
            self._finish()
            return
        size = world.size()
        factor = (epoch * (size - 1) / self._warmup_epochs + 1) / size
        self._set(self._initial_lr * factor)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the rate into the logs."""
        if logs is not None:
            logs["lr"] = _learning_rate.get_rate(self.model.optimizer)

    def _finish(self) -> None:
        self._done = True
        self._set(self._initial_lr)
        if self._verbose > 0 and world.rank() == 0:
            print(f"Warm-up is over; the learning rate is {self._initial_lr:g}.")

    def _set(self, rate: float) -> None:
        _learning_rate.set_rate(self.model.optimizer, rate, self._momentum_correction)
