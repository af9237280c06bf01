"""`LearningRateScheduleCallback`: the learning rate as a function of the epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfring import _keras
from tfring.callbacks import _learning_rate


class LearningRateScheduleCallback(_keras.Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` in a range of epochs.

    A number as `multiplier` means exponential decay: `multiplier ** (epoch - start_epoch)`.
    Outside the range the rate stays as it is, so several of these can follow each other.
    Writes the rate into the epoch's logs as "lr". Use the same one on every rank.

    Momentum correction rescales the velocities of `SGD` and `RMSprop` by the ratio of new to
    old rate, so that past steps keep their length (Goyal et al., arXiv:1706.02677); other
    optimizers' state does not contain the rate and is left alone.

    Args:
        initial_lr: The rate that is multiplied, usually scaled for the number of ranks.
        multiplier: Function of the epoch (a float where `staircase=False`), or a number.
        start_epoch: First epoch of the range.
        end_epoch: First epoch after the range. Default None: no end.
        staircase: Change the rate at the first batch of an epoch only. False: at every batch,
            with `epoch + batch / steps_per_epoch`.
        momentum_correction: Rescale velocities when the rate changes.
        steps_per_epoch: Batches of an epoch, needed for `staircase=False` where `fit` does
            not know it.

    Raises:
        ValueError: When an argument is missing or makes no sense; at the first batch, when the
            optimizer has a schedule of its own.

    Example:

    >>> import tfring as hvd
    >>> decay = hvd.keras.callbacks.LearningRateScheduleCallback(
    ...     initial_lr=0.1, multiplier=lambda epoch: 0.1 ** (epoch // 30))
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        multiplier: Callable[[float], float] | float | None = None,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._initial_lr = _learning_rate.check_rate(initial_lr)
        if not callable(multiplier) and not isinstance(multiplier, (int, float)):
            raise ValueError(
                "`multiplier` must be a function of the epoch or a number. "
                f"Received: multiplier={multiplier!r}"
            )
        if end_epoch is not None and end_epoch < start_epoch:
            raise ValueError(
                "`end_epoch` must not be before `start_epoch`. "
                f"Received: start_epoch={start_epoch}, end_epoch={end_epoch}"
            )
        self._multiplier = multiplier
        self._start_epoch = start_epoch
        self._end_epoch = end_epoch
        self._staircase = staircase
        self._momentum_correction = momentum_correction
        self._steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the rate where it is due."""
        ended = self._end_epoch is not None and self._epoch >= self._end_epoch
        if self._epoch < self._start_epoch or ended or (self._staircase and batch > 0):
            return
        epoch: float = self._epoch
        if not self._staircase:
            steps = _learning_rate.steps_per_epoch(self._steps_per_epoch, self.params)
            epoch += batch / steps
        rate = self._initial_lr * self._factor(epoch)
        _learning_rate.set_rate(self.model.optimizer, rate, self._momentum_correction)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the rate into the logs."""
        if logs is not None:
            logs["lr"] = _learning_rate.get_rate(self.model.optimizer)

    def _factor(self, epoch: float) -> float:
        if callable(self._multiplier):
            return float(self._multiplier(epoch))
        return float(self._multiplier or 0.0) ** (epoch - self._start_epoch)
