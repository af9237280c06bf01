"""Public names of `tfring.keras` and `tfring.callbacks`: none comes or goes unseen."""

from __future__ import annotations

import tfring
import tfring.callbacks
import tfring.keras


def test_callbacks() -> None:
    assert tfring.callbacks.__all__ == [
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
    assert tfring.keras.callbacks is tfring.callbacks


def test_keras() -> None:
    assert tfring.keras.__all__ == [
        "Adasum",
        "Average",
        "Compression",
        "DistributedGradientTape",
        "DistributedOptimizer",
        "Max",
        "Min",
        "PartialDistributedGradientTape",
        "PartialDistributedOptimizer",
        "ProcessSet",
        "Product",
        "Sum",
        "SyncBatchNormalization",
        "add_process_set",
        "allgather",
        "allgather_object",
        "allreduce",
        "batch_samples",
        "broadcast",
        "broadcast_global_variables",
        "broadcast_object",
        "broadcast_variables",
        "callbacks",
        "ccl_built",
        "cross_rank",
        "cross_size",
        "cuda_built",
        "ddl_built",
        "evaluate",
        "global_process_set",
        "gloo_built",
        "gloo_enabled",
        "init",
        "is_homogeneous",
        "is_initialized",
        "load_model",
        "local_rank",
        "local_size",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "pin_gpu",
        "predict",
        "rank",
        "reducescatter",
        "remove_process_set",
        "rocm_built",
        "shutdown",
        "size",
    ]
    missing = [name for name in tfring.keras.__all__ if not hasattr(tfring.keras, name)]
    assert missing == []


def test_both_faces_give_the_same_objects() -> None:
    assert tfring.keras.PartialDistributedOptimizer is tfring.PartialDistributedOptimizer
    assert tfring.keras.DistributedGradientTape is tfring.DistributedGradientTape
