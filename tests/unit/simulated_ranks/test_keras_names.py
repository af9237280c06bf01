"""Public names of `tfring.keras` and `tfring.callbacks`: none comes or goes unseen."""

from __future__ import annotations

import tfring
import tfring.callbacks
import tfring.keras


def test_callbacks() -> None:
    assert tfring.callbacks.__all__ == [
        "BroadcastGlobalVariablesCallback",
        "LearningRateScheduleCallback",
        "LearningRateWarmupCallback",
        "MetricAverageCallback",
    ]
    assert tfring.keras.callbacks is tfring.callbacks


def test_keras() -> None:
    assert tfring.keras.__all__ == [
        "Average",
        "Compression",
        "DistributedGradientTape",
        "DistributedOptimizer",
        "Max",
        "Min",
        "PartialDistributedGradientTape",
        "PartialDistributedOptimizer",
        "Product",
        "Sum",
        "SyncBatchNormalization",
        "allgather",
        "allgather_object",
        "allreduce",
        "broadcast",
        "broadcast_global_variables",
        "broadcast_object",
        "broadcast_variables",
        "callbacks",
        "cross_rank",
        "cross_size",
        "init",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "rank",
        "shutdown",
        "size",
    ]
    missing = [name for name in tfring.keras.__all__ if not hasattr(tfring.keras, name)]
    assert missing == []


def test_both_faces_give_the_same_objects() -> None:
    assert tfring.keras.PartialDistributedOptimizer is tfring.PartialDistributedOptimizer
    assert tfring.keras.DistributedGradientTape is tfring.DistributedGradientTape
