"""`BestModelCheckpoint`: rank 0 keeps the best model of the training in a file."""

from __future__ import annotations

import os
from typing import Any

from tfring import _keras, _root, world


class BestModelCheckpoint(_keras.ModelCheckpoint):
    """Saves the model on rank 0 whenever the monitored metric is better than before.

    Give it to `fit` on every rank, or on rank 0: only rank 0 writes, and nobody waits; `RootOnly`
    with a `ModelCheckpoint` lets the others wait until the file is there. The file appears whole:
    the former one stays until then. Set the attribute
    `filepath` before `fit`; it is no argument because Horovod's scripts leave it to whoever starts
    the training. It may hold fields such as `{epoch}`, and ends in ".weights.h5" with
    `save_weights_only`, else in ".keras" (or ".h5").

    With a `MetricAverageCallback` in the list it decides by the metric over all ranks' samples.
    Without that callback, or with a number as `save_freq`, it decides by rank 0's own. What it
    saves is like any other model's, and loads without tfring.

    Args:
        monitor: name of the metric in the epoch's logs. Default "val_loss".
        verbose: 1 prints on rank 0 what is saved. Default 0.
        save_weights_only: save the weights, not the whole model.
        mode: "min", "max", or "auto", which tells from the metric.
        save_freq: "epoch", or a number of batches.

    Raises:
        ValueError: by `fit`, on every rank, when `filepath` is not set or has the wrong ending;
            `save_freq` is neither.

    Example:

    >>> import tfring.keras as hvd
    >>> best = hvd.callbacks.BestModelCheckpoint(monitor="val_accuracy", mode="max")
    >>> best.filepath = "best.keras"
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            "later.weights.h5" if save_weights_only else "later.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | os.PathLike[str] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks `filepath`, alike on all ranks."""
        if self.filepath is None:
            raise ValueError(
                "`filepath` must be set before fit: `callback.filepath = 'best.keras'`. "
                "Received: filepath=None"
            )
        self.filepath = os.fspath(self.filepath)
        # The endings that this version of Keras allows.
        _keras.ModelCheckpoint(self.filepath, save_weights_only=self.save_weights_only)
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves on rank 0, where `save_freq` is a number."""
        if world.rank() != 0:
            return
        if self.save_freq != "epoch" and self.monitor_op is None:
            self._set_monitor_op()  # Keras does so at the end of an epoch only, and fails before
        with _root.whole_saves(self.model):
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves on rank 0, where `save_freq` is "epoch"."""
        if world.rank() == 0:
            with _root.whole_saves(self.model):
                super().on_epoch_end(epoch, logs)
