"""Keras callbacks for training on several processes."""

from __future__ import annotations

from typing import Any

from tfring import _absent, _keras, optimizer
from tfring.callbacks.best_model_checkpoint import BestModelCheckpoint
from tfring.callbacks.broadcast_global_variables import BroadcastGlobalVariablesCallback
from tfring.callbacks.drift import DriftCallback
from tfring.callbacks.join import JoinCallback
from tfring.callbacks.learning_rate_schedule import LearningRateScheduleCallback
from tfring.callbacks.learning_rate_warmup import LearningRateWarmupCallback
from tfring.callbacks.metric_average import MetricAverageCallback
from tfring.callbacks.root_only import RootOnly
from tfring.callbacks.training_checkpoint import TrainingCheckpoint

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DriftCallback",
    "JoinCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "RootOnly",
    "TrainingCheckpoint",
]

optimizer.install_hooks(_keras.module())


def __getattr__(name: str) -> Any:
    raise _absent.error("tfring.callbacks", name)
