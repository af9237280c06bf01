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
from tfring.collectives import allgather, allreduce, broadcast
from tfring.compression import Compression
from tfring.constants import Average, Max, Min, Product, Sum
from tfring.keras_optimizer import DistributedOptimizer
from tfring.objects import allgather_object, broadcast_object, broadcast_variables
from tfring.partial import PartialDistributedGradientTape, PartialDistributedOptimizer
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


def __getattr__(name: str) -> Any:
    if name in tfring.__all__:
        raise AttributeError(f"`{name}` is in tfring, not in tfring.keras: use tfring.{name}.")
    raise _absent.error("tfring.keras", name)
