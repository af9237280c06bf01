"""mpi4py, over whichever MPI it finds, in place."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import re
from functools import partial

import numpy as np
from mpi4py import MPI

from tfring.bench.contenders.base import Prepared, UnsupportedError


class Mpi:
    """One rank."""

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.title = library_title(MPI.Get_library_version())

    def prepare(self, way: str, array: np.ndarray) -> Prepared:
        """Makes an in-place allreduce ready."""
        if array.dtype.name == "float16":
            raise UnsupportedError("MPI has no float16")
        # The datatype is given, so that mpi4py need not ask the array for it.
        datatype = MPI.Datatype.fromcode(array.dtype.char)
        call = partial(self._world.Allreduce, MPI.IN_PLACE, [array, array.size, datatype], MPI.SUM)

        def check() -> np.ndarray:
            call()
            return array

        return Prepared(call, check)

    def close(self) -> None:
        """Leaves MPI."""
        MPI.Finalize()


def library_title(version: str) -> str:
    """Shortens what the MPI library says of itself."""
    found = re.search(r"(MPICH|Open MPI)\D*([\d.]+)", version)
    return f"{found[1]} {found[2]} (mpi4py)" if found else f"{version.split(',')[0][:30]} (mpi4py)"
