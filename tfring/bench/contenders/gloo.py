"""torch.distributed with gloo, in place."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from tfring.bench.contenders.base import Prepared


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

    def prepare(self, way: str, array: np.ndarray) -> Prepared:
        """Makes an in-place allreduce ready."""
        tensor = torch.from_numpy(array)

        def check() -> np.ndarray:
            dist.all_reduce(tensor)
            return array

        return Prepared(partial(dist.all_reduce, tensor), check)

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()
