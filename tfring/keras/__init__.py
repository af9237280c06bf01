"""tfring for `compile` and `fit`: everything a Keras script needs, under one name.

Progress bars on rank 0 only: `model.fit(..., verbose="auto" if hvd.rank() == 0 else 0)`.

Example:

>>> import keras, numpy as np, tfring.keras as hvd
>>> hvd.init()
>>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
>>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), "mse")
>>> x = np.ones((8, 2), "float32")
>>> first = hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0)
>>> history = model.fit(x, x[:, :1], callbacks=[first], verbose=0)
"""

from __future__ import annotations

from typing import Any

import tfring
from tfring import _absent, callbacks
from tfring._graph_mode import broadcast_global_variables
from tfring._samples import batch_samples
from tfring.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from tfring.compression import Compression
from tfring.constants import Adasum, Average, Max, Min, Product, Sum
from tfring.gpu import pin_gpu
from tfring.keras.evaluation import evaluate, predict
from tfring.keras.values import allgather, allreduce, broadcast, reducescatter
from tfring.keras_optimizer import DistributedOptimizer
from tfring.objects import allgather_object, broadcast_object, broadcast_variables
from tfring.partial import PartialDistributedGradientTape, PartialDistributedOptimizer
from tfring.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from tfring.saved_models import load_model
from tfring.sync_batch_norm import SyncBatchNormalization
from tfring.tape import DistributedGradientTape
from tfring.world import (
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
)

__all__ = [
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


def __getattr__(name: str) -> Any:
    if name in tfring.__all__:
        raise AttributeError(f"`{name}` is in tfring, not in tfring.keras: use tfring.{name}.")
    raise _absent.error("tfring.keras", name)
