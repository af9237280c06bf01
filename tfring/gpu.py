"""One GPU for each rank."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from tfring import _native, _ops, world

__all__ = ["pin_gpu"]

_log = logging.getLogger("tfring")


def pin_gpu(memory_growth: bool = True) -> Any:
    """Lets TensorFlow see one GPU only: that of this rank among the ranks of its host.

    To be called on every rank right after `init` and before anything runs on a GPU; it is a
    collective of all ranks, which tell each other what they see. Ranks of one host that have the
    same `CUDA_VISIBLE_DEVICES` (or none) see the same GPUs and take them in turn, in the order of
    their ranks. Ranks whose `CUDA_VISIBLE_DEVICES` differs have been given GPUs of their own, and
    take the first one. So it is right whether a scheduler sets the variable for each process or
    for the host. With more ranks than GPUs, some share one, and a warning says which.

    Args:
        memory_growth: let TensorFlow take the GPU's memory as it needs it instead of all at once;
            ranks that share a GPU must. Default True.

    Returns:
        The `tf.config.PhysicalDevice` that is visible from now on, or None where TensorFlow sees
        no GPU: then nothing is changed.

    Raises:
        NotInitializedError: before `init`.
        RuntimeError: TensorFlow has used its GPUs already, so that it is too late.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.pin_gpu()  # None on a machine without GPUs
    """
    rank = world.rank()
    tf = _ops.tensorflow()
    gpus = tf.config.list_physical_devices("GPU")
    from tfring import _exchange  # loads TensorFlow

    mine = View(
        host=_hosts()[rank],
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        gpus=[gpu.name for gpu in gpus],
    )
    texts = _exchange.allgather(json.dumps(dataclasses.asdict(mine)).encode(), "pin_gpu")
    views = [View(**json.loads(text)) for text in texts]
    index = choose(views, rank)
    if index is None:
        return None
    sharing = sharers(views, rank)
    if sharing and sharing[0] == rank:
        _log.warning(_sharing_text(views[rank], index, sharing))
    _show_only(tf, gpus[index], memory_growth)
    return gpus[index]


@dataclasses.dataclass(frozen=True)
class View:
    """What one rank sees.

    Attributes:
        host: the number of its host.
        visible: its `CUDA_VISIBLE_DEVICES`, None where it is not set.
        gpus: the names of the GPUs that TensorFlow sees.
    """

    host: int
    visible: str | None
    gpus: list[str]


def choose(views: Sequence[View], rank: int) -> int | None:
    """Returns which of the GPUs that a rank sees it takes, or None where it sees none.

    Args:
        views: what each rank sees, in rank order.
        rank: the rank.

    Example:
        >>> both = View(0, None, ["GPU:0", "GPU:1"])
        >>> [choose([both, both, both], rank) for rank in range(3)]
        [0, 1, 0]
    """
    mine = views[rank]
    if not mine.gpus:
        return None
    before = sum(_alike(mine, view) for view in views[:rank])
    return before % len(mine.gpus)


def sharers(views: Sequence[View], rank: int) -> list[int]:
    """Returns the ranks that take the same GPU as a rank, itself included; empty if none does.

    Ranks with different `CUDA_VISIBLE_DEVICES` are taken to have different GPUs.
    """
    index = choose(views, rank)
    same = [
        other
        for other, view in enumerate(views)
        if _alike(views[rank], view) and choose(views, other) == index
    ]
    return same if len(same) > 1 else []


def _hosts() -> list[int]:
    """The number of each rank's host, by rank."""
    hosts = (ctypes.c_int32 * world.size())()
    world.with_engine(lambda handle: _native.engine().tfr_world_hosts(handle, hosts))
    return list(hosts)


def _alike(one: View, other: View) -> bool:
    return one == other


def _sharing_text(view: View, index: int, ranks: Sequence[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks)
    return (
        f"pin_gpu: ranks {listed} of one host share {view.gpus[index]}: there are "
        f"{len(view.gpus)} GPUs and more ranks. Start as many ranks per host as it has GPUs; or "
        "set NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 or later), else collectives of GPU tensors "
        "go through host memory"
    )


def _show_only(tf: Any, gpu: Any, memory_growth: bool) -> None:
    """Makes one GPU the only visible one."""
    try:
        tf.config.set_visible_devices(gpu, "GPU")
        if memory_growth:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        seen = [device.name for device in tf.config.list_logical_devices("GPU")]
        raise RuntimeError(
            f"pin_gpu() came too late to choose {gpu.name}: TensorFlow has started with "
            f"{len(seen)} GPUs ({', '.join(seen)}), and cannot change that. Call it right after "
            "tfring.init(), before any tensor, model or dataset is made; or set "
            "CUDA_VISIBLE_DEVICES before Python starts."
        ) from error
