"""One GPU for each rank."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from tfring import _gpu_devices, _native, _ops, world

__all__ = ["pin_gpu"]

_log = logging.getLogger("tfring")


def pin_gpu(memory_growth: bool = True) -> Any:
    """Lets TensorFlow see one GPU only: that of this rank among the ranks of its host.

    To be called on every rank right after `init` and before anything runs on a GPU; it is a
    collective of all ranks, which tell each other what they see: the UUIDs of GPUs, or of MIG
    instances. Ranks take the first that is free, in the order of the ranks; one that sees others
    leaves it to one that does not. So it is right whether a scheduler sets `CUDA_VISIBLE_DEVICES`
    for each process, for the host or not at all, and where it shows each process only its own GPU,
    under whatever number. With more ranks than GPUs, some share one, and a warning says which.

    Args:
        memory_growth: let TensorFlow take the GPU's memory as it needs it instead of all at once;
            ranks that share a GPU must. Default True.

    Returns:
        The `tf.config.PhysicalDevice` that is visible from now on, or None where TensorFlow sees
        no GPU: then nothing is changed.

    Raises:
        NotInitializedError: before `init`.
        RuntimeError: TensorFlow has used its GPUs already, and sees others than this one.
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
        identities=_gpu_devices.identities(len(gpus)) if gpus else [],
    )
    texts = _exchange.allgather(json.dumps(dataclasses.asdict(mine)).encode(), "pin_gpu")
    views = [View(**json.loads(text)) for text in texts]
    index = choose(views)[rank]
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
        identities: what tells them from others on any host; empty where that is not known.
    """

    host: int
    visible: str | None
    gpus: list[str]
    identities: list[str] = dataclasses.field(default_factory=list)


def choose(views: Sequence[View]) -> list[int | None]:
    """Returns, by rank, which of the GPUs that a rank sees it takes; None where it sees none.

    Args:
        views: what each rank sees, in rank order.

    Example:
        >>> both = View(0, None, ["GPU:0", "GPU:1"])
        >>> choose([both, both, both])
        [0, 1, 0]
    """
    return _gpu_devices.assign(_seen(views))


def sharers(views: Sequence[View], rank: int) -> list[int]:
    """Returns the ranks that take the same GPU as a rank, itself included; empty if none does."""
    seen = _seen(views)
    taken = [
        None if index is None else seen[other][index] for other, index in enumerate(choose(views))
    ]
    same = [other for other, gpu in enumerate(taken) if gpu is not None and gpu == taken[rank]]
    return same if len(same) > 1 else []


def _seen(views: Sequence[View]) -> list[list[tuple[Any, ...]]]:
    """What identifies the GPUs that each rank sees."""
    known = {view.host: True for view in views}
    single = dict(known)
    for view in views:
        known[view.host] &= len(view.identities) == len(view.gpus)
        single[view.host] &= len(view.gpus) <= 1
    return [
        _keys(view, known[view.host], rank if single[view.host] else None)
        for rank, view in enumerate(views)
    ]


def _keys(view: View, known: bool, only: int | None) -> list[tuple[Any, ...]]:
    """What identifies the GPUs that a rank sees.

    Args:
        view: the rank's.
        known: Whether all ranks of the host know identities.
        only: The rank, where each of its host sees but one GPU.
    """
    if known:
        return [(view.host, name) for name in view.identities]
    # Each process may have been shown its own, all by the same number: nothing is known of that.
    names = _gpu_devices.listed(view.visible, len(view.gpus))
    return [(view.host, only, name) for name in names]


def _hosts() -> list[int]:
    """The number of each rank's host, by rank."""
    hosts = (ctypes.c_int32 * world.size())()
    world.with_engine(lambda handle: _native.engine().tfr_world_hosts(handle, hosts))
    return list(hosts)


def _sharing_text(view: View, index: int, ranks: Sequence[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks)
    return (
        f"pin_gpu: ranks {listed} of one host share {view.gpus[index]}: there are not enough GPUs "
        "that they see. Start as many ranks per host as it has GPUs, and look at "
        "CUDA_VISIBLE_DEVICES of each; or set NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 or later), "
        "else collectives of GPU tensors go through host memory"
    )


def _show_only(tf: Any, gpu: Any, memory_growth: bool) -> None:
    """Makes one GPU the only visible one."""
    try:
        if tf.config.get_visible_devices("GPU") != [gpu]:
            tf.config.set_visible_devices(gpu, "GPU")
    except RuntimeError as error:
        seen = [device.name for device in tf.config.list_logical_devices("GPU")]
        raise RuntimeError(
            f"pin_gpu() came too late to choose {gpu.name}: TensorFlow has started with "
            f"{len(seen)} GPUs ({', '.join(seen)}), and cannot change that. Call it right after "
            "tfring.init(), before any tensor, model or dataset is made; or set "
            "CUDA_VISIBLE_DEVICES before Python starts."
        ) from error
    # Logical devices have their memory told by who made them.
    if memory_growth and tf.config.get_logical_device_configuration(gpu) is None:
        _let_grow(tf, gpu)


def _let_grow(tf: Any, gpu: Any) -> None:
    try:
        tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        _log.warning(
            "pin_gpu: TensorFlow has started already, so that the memory of %s cannot be let grow "
            "as needed any more. Call pin_gpu right after tfring.init(), or set "
            "TF_FORCE_GPU_ALLOW_GROWTH=true",
            gpu.name,
        )
