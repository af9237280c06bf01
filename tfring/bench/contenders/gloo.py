"""torch.distributed with gloo."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tfring.bench.contenders.base import Prepared, into, one_by_one, packed
from tfring.bench.problem import ROOT, Problem


class Gloo:
    """One rank; who it is comes from tfring's launcher, where ranks meet is a file."""

    def __init__(self, meeting_file: str) -> None:
        torch.set_num_threads(1)
        self.rank = int(os.environ["TFRING_RANK"])
        self.size = int(os.environ["TFRING_SIZE"])
        self.title = f"gloo (torch {torch.__version__.partition('+')[0]})"
        # All ranks are on this machine, whose own name may not resolve.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting_file}", rank=self.rank, world_size=self.size
        )

    def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
        """Makes a collective ready, in place where shapes allow."""
        outputs = problem.outputs(inputs)
        if problem.collective == "grouped" and way == "packed":
            return into(outputs, packed(inputs, _allreduce))
        if problem.collective in ("allreduce", "grouped"):
            calls = [_allreduce(array) for array in inputs]
            return into(outputs, calls[0] if len(calls) == 1 else one_by_one(calls))
        source, target = _tensor(inputs[0]), _tensor(outputs[0])
        call = {
            "allgather": partial(dist.all_gather_into_tensor, target, source),
            "alltoall": partial(dist.all_to_all_single, target, source),
            "broadcast": partial(dist.broadcast, target, ROOT),
            "reducescatter": partial(dist.reduce_scatter_tensor, target, source),
        }[problem.collective]
        return into(outputs, call)

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()


def _allreduce(array: np.ndarray) -> Callable[[], Any]:
    return partial(dist.all_reduce, _tensor(array))


def _tensor(array: np.ndarray) -> torch.Tensor:
    # torch does not know the bfloat16 of ml_dtypes.
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
