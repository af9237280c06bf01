"""Data-parallel training for TensorFlow and Keras 3, with Horovod's names.

    import tfring as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))

Start it with `tfringrun -np 2 python train.py`. For `compile` and `fit`, `tfring.keras` has the
same names and the callbacks. Importing this module loads neither TensorFlow nor the engine; the
first use of a name that needs them does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfring import _absent, _native
from tfring.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    gpu_available,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from tfring.constants import Adasum, Average, Max, Min, Product, Sum
from tfring.errors import CommunicationError, NotInitializedError
from tfring.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from tfring.util import (
    check_num_rank_power_of_2,
    handle_average_backwards_compatibility,
    is_version_greater_equal_than,
    num_rank_is_power_2,
    split_list,
)
from tfring.version import __version__
from tfring.world import (
    Stats,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    stats,
)

if TYPE_CHECKING:
    from types import ModuleType

    from tfring._graph_mode import BroadcastGlobalVariablesHook, broadcast_global_variables
    from tfring._samples import batch_samples
    from tfring.checkpoints import Checkpoint
    from tfring.collectives import (
        allgather,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        broadcast_,
        grouped_allgather,
        grouped_allreduce,
        grouped_reducescatter,
        join,
        local_rank_op,
        local_size_op,
        process_set_included_op,
        rank_op,
        reducescatter,
        size_op,
    )
    from tfring.compression import Compression
    from tfring.drift import check_drift
    from tfring.gpu import pin_gpu
    from tfring.gpu_build import build_gpu
    from tfring.launch.function import run
    from tfring.objects import (
        allgather_object,
        broadcast_object,
        broadcast_object_fn,
        broadcast_variables,
    )
    from tfring.optimizer import DistributedOptimizer
    from tfring.partial import PartialDistributedGradientTape, PartialDistributedOptimizer
    from tfring.sync_batch_norm import SyncBatchNormalization
    from tfring.tape import DistributedGradientTape
    from tfring.tracing import trace

    callbacks: ModuleType
    data: ModuleType
    keras: ModuleType

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Checkpoint",
    "CommunicationError",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "NotInitializedError",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Stats",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "batch_samples",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "build_gpu",
    "callbacks",
    "ccl_built",
    "check_drift",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "data",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "is_version_greater_equal_than",
    "join",
    "keras",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "pin_gpu",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "stats",
    "trace",
]

# Names that would load TensorFlow, or that few programs use, and the modules that hold them.
_LAZY = {
    "BroadcastGlobalVariablesHook": "tfring._graph_mode",
    "Checkpoint": "tfring.checkpoints",
    "Compression": "tfring.compression",
    "DistributedGradientTape": "tfring.tape",
    "DistributedOptimizer": "tfring.optimizer",
    "PartialDistributedGradientTape": "tfring.partial",
    "PartialDistributedOptimizer": "tfring.partial",
    "SyncBatchNormalization": "tfring.sync_batch_norm",
    "allgather": "tfring.collectives",
    "allgather_object": "tfring.objects",
    "allreduce": "tfring.collectives",
    "alltoall": "tfring.collectives",
    "barrier": "tfring.collectives",
    "batch_samples": "tfring._samples",
    "broadcast": "tfring.collectives",
    "broadcast_": "tfring.collectives",
    "broadcast_global_variables": "tfring._graph_mode",
    "broadcast_object": "tfring.objects",
    "broadcast_object_fn": "tfring.objects",
    "broadcast_variables": "tfring.objects",
    "build_gpu": "tfring.gpu_build",
    "check_drift": "tfring.drift",
    "grouped_allgather": "tfring.collectives",
    "grouped_allreduce": "tfring.collectives",
    "grouped_reducescatter": "tfring.collectives",
    "join": "tfring.collectives",
    "local_rank_op": "tfring.collectives",
    "local_size_op": "tfring.collectives",
    "pin_gpu": "tfring.gpu",
    "process_set_included_op": "tfring.collectives",
    "rank_op": "tfring.collectives",
    "reducescatter": "tfring.collectives",
    "run": "tfring.launch.function",
    "size_op": "tfring.collectives",
    "trace": "tfring.tracing",
}
_LAZY_MODULES = ("callbacks", "data", "keras")


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return _module(f"tfring.{name}")
    if name not in _LAZY:
        raise _absent.error("tfring", name)
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "tfring.callbacks":
            raise
        # In the source tree, callbacks/ is not yet inside tfring/.
        raise ImportError(_native.not_installed(error.name)) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
