"""Which GPUs are the same one, whatever processes call them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

_DRIVER = "libcuda.so.1"
_UUID_BYTES = 16


def identities(count: int) -> list[str]:
    """Returns the UUIDs of the GPUs that this process sees, of MIG those of the instances.

    From NVIDIA's driver, in the order of `CUDA_VISIBLE_DEVICES`, without a context on any.

    Args:
        count: how many there are, by TensorFlow.

    Returns:
        `count` texts; none where the driver is missing, too old (before 11.4), or sees others.
    """
    try:
        return _identities(ctypes.CDLL(_DRIVER), count)
    except (OSError, AttributeError):
        return []


def _identities(driver: Any, count: int) -> list[str]:
    seen = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(seen)) != 0:
        return []
    found = []
    for i in range(count if seen.value == count else 0):
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * _UUID_BYTES)()
        if driver.cuDeviceGet(ctypes.byref(device), i) != 0:
            return []
        if driver.cuDeviceGetUuid_v2(ctypes.byref(uuid), device) != 0:
            return []
        found.append(bytes(uuid).hex())
    return found


def listed(visible: str | None, count: int) -> list[str]:
    """Returns what `CUDA_VISIBLE_DEVICES` calls each of the GPUs that a process sees.

    Args:
        visible: the variable, None where it is not set: then all are seen, in order.
        count: how many the process sees; CUDA stops at the first entry that is none.
    """
    names = [] if visible is None else [name.strip() for name in visible.split(",")]
    return names[:count] if len(names) >= count else [str(i) for i in range(count)]


def assign(seen: Sequence[Sequence[Any]]) -> list[int | None]:
    """Gives each rank one of the GPUs that it sees, and none to two as long as that can be.

    Ranks take the first free one in their order. Where there is none, an earlier rank that sees
    another free one moves there, or makes another one move (Kuhn's algorithm for matchings).
    Ranks that are left share what fewest have.

    Args:
        seen: by rank, what identifies the GPUs that it sees.

    Returns:
        By rank, the index among them; None where it sees none.
    """
    holders: dict[Any, int] = {}
    for rank in range(len(seen)):
        _place(rank, seen, holders, set())
    taken: list[int | None] = [None] * len(seen)
    counts: dict[Any, int] = {}
    for gpu, rank in holders.items():
        taken[rank], counts[gpu] = list(seen[rank]).index(gpu), 1
    for rank, gpus in enumerate(seen):
        if gpus and taken[rank] is None:
            least = min(range(len(gpus)), key=lambda i: counts[gpus[i]])
            taken[rank] = least
            counts[gpus[least]] += 1
    return taken


def _place(
    rank: int, seen: Sequence[Sequence[Any]], holders: dict[Any, int], tried: set[Any]
) -> bool:
    for gpu in seen[rank]:
        if gpu not in holders:
            holders[gpu] = rank
            return True
    for gpu in seen[rank]:
        if gpu not in tried:
            tried.add(gpu)
            if _place(holders[gpu], seen, holders, tried):
                holders[gpu] = rank
                return True
    return False
