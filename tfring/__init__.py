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
from tfring.constants import Average, Max, Min, Product, Sum
from tfring.errors import CommunicationError, NotInitializedError
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

    from tfring.collectives import allgather, allreduce, barrier, broadcast, grouped_allreduce
    from tfring.compression import Compression
    from tfring.launch.function import run
    from tfring.objects import allgather_object, broadcast_object, broadcast_variables
    from tfring.optimizer import DistributedOptimizer
    from tfring.sync_batch_norm import SyncBatchNormalization
    from tfring.tape import DistributedGradientTape

    callbacks: ModuleType
    keras: ModuleType

__all__ = [
    "Average",
    "CommunicationError",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "NotInitializedError",
    "Product",
    "Stats",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "keras",
    "local_rank",
    "local_size",
    "rank",
    "run",
    "shutdown",
    "size",
    "stats",
]

# Names that would load TensorFlow, or that few programs use, and the modules that hold them.
_LAZY = {
    "Compression": "tfring.compression",
    "DistributedGradientTape": "tfring.tape",
    "DistributedOptimizer": "tfring.optimizer",
    "allgather": "tfring.collectives",
    "allgather_object": "tfring.objects",
    "allreduce": "tfring.collectives",
    "barrier": "tfring.collectives",
    "broadcast": "tfring.collectives",
    "broadcast_object": "tfring.objects",
    "broadcast_variables": "tfring.objects",
    "SyncBatchNormalization": "tfring.sync_batch_norm",
    "grouped_allreduce": "tfring.collectives",
    "run": "tfring.launch.function",
}
_LAZY_MODULES = ("callbacks", "keras")


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
