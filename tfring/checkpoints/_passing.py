"""Passing over the batches that an epoch has had before a job was started again."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tfring.checkpoints import _entries


class Passing:
    """Stands in for a model's training step: takes batches and does nothing with them.

    Args:
        model: a model whose `fit` is about to start an epoch.
        steps: number of batches to pass over.
        metrics: values of the variables of the model's metrics after them, by key.
    """

    def __init__(self, model: Any, steps: int, metrics: dict[str, np.ndarray]) -> None:
        self._model = model
        self._steps = steps
        self._metrics = metrics
        self._stock = model.train_function
        self._passed = 0
        model.train_function = self

    @property
    def done(self) -> bool:
        """Whether the next batch is for training."""
        return self._model.train_function is not self

    def end(self) -> None:
        """Gives the training step its place again."""
        if not self.done:
            self._model.train_function = self._stock

    def __call__(self, iterator: Any) -> Any:
        """Takes the batches of one step; returns its logs."""
        try:
            for _ in range(self._model.steps_per_execution):
                next(iterator)
        except BaseException:
            self.end()
            raise
        self._passed += self._model.steps_per_execution
        if self._passed < self._steps:
            return {}
        self.end()
        self._set_metrics(iterator)
        return self._model.get_metrics_result()

    def _set_metrics(self, iterator: Any) -> None:
        from tfring.callbacks import broadcast_global_variables

        broadcast_global_variables._build(self._model, iterator)
        entries = _entries.metrics(self._model)
        kinds = {key: (value.dtype.name, list(value.shape)) for key, value in self._metrics.items()}
        if kinds != {key: entry.kind() for key, entry in entries.items()}:
            warnings.warn(
                "The model's metrics are not those of the checkpoint, so what they say of this "
                "epoch counts from the step at which it went on.",
                stacklevel=2,
            )
            return
        for key, entry in entries.items():
            entry.value.assign(self._metrics[key])
