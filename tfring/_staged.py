"""Says which ways of reducing gradients NCCL does not know, so that they leave the GPU."""

from __future__ import annotations

import functools
import logging

import tensorflow as tf

from tfring import gpu_build, world
from tfring.compression import Compressor, wire_of
from tfring.constants import Adasum

_log = logging.getLogger("tfring")


def tell(compression: type[Compressor], op: int) -> None:
    """Warns, on rank 0 and once per process, where gradients of GPUs will leave them.

    Only where they would stay otherwise: a GPU is visible and the kernels for it are built.

    Args:
        compression: how gradients travel.
        op: how they are reduced.
    """
    if op == Adasum:
        what, way = "op=tfring.Adasum has", "op=tfring.Average"
    elif wire_of(compression, op):
        what, way = f"compression={compression.__name__} has", "compression=tfring.Compression.none"
    else:
        return
    if world.is_initialized() and world.rank() == 0 and _stay_on_gpus():
        _warn(what, way)


def _stay_on_gpus() -> bool:
    return bool(tf.config.get_visible_devices("GPU")) and gpu_build.is_built(tf)


@functools.cache
def _warn(what: str, way: str) -> None:
    _log.warning(
        "gradients of GPUs travel through host memory, not by NCCL: %s no counterpart there. Use "
        "%s where NCCL's network is fast; see docs/gpu.md",
        what,
        way,
    )
