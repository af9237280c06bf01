"""mpi4py, over the MPI library that the benchmark chose."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from tfring.bench.contenders.base import Prepared, UnsupportedError, into, one_by_one, packed
from tfring.bench.problem import ROOT, Problem

_NOT_ADDED_UP = ("float16", "bfloat16")


class Mpi:
    """One rank."""

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.title = library_title(MPI.Get_library_version())

    def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
        """Makes a collective ready, in place where shapes allow."""
        if problem.reduces and problem.dtype in _NOT_ADDED_UP:
            raise UnsupportedError(f"MPI adds up no {problem.dtype}")
        outputs = problem.outputs(inputs)
        if problem.collective == "grouped" and way == "packed":
            return into(outputs, packed(inputs, self._allreduce))
        if problem.collective in ("allreduce", "grouped"):
            calls = [self._allreduce(array) for array in inputs]
            return into(outputs, calls[0] if len(calls) == 1 else one_by_one(calls))
        source, target = _buffer(inputs[0]), _buffer(outputs[0])
        world = self._world
        call = {
            "allgather": partial(world.Allgather, source, target),
            "alltoall": partial(world.Alltoall, source, target),
            "broadcast": partial(world.Bcast, target, ROOT),
            "reducescatter": partial(world.Reduce_scatter_block, source, target, MPI.SUM),
        }[problem.collective]
        return into(outputs, call)

    def close(self) -> None:
        """Leaves MPI."""
        MPI.Finalize()

    def _allreduce(self, array: np.ndarray) -> Callable[[], Any]:
        return partial(self._world.Allreduce, MPI.IN_PLACE, _buffer(array), MPI.SUM)


def _buffer(array: np.ndarray) -> Any:
    # The datatype is given, so that mpi4py need not ask the array for it.
    if array.itemsize == 2:
        array = array.view(np.uint16)
    return [array, MPI.Datatype.fromcode(array.dtype.char)]


def library_title(version: str) -> str:
    """Shortens what the MPI library says of itself."""
    found = re.search(r"(MPICH|Open MPI)\D*([\d.]+)", version)
    return f"{found[1]} {found[2]} (mpi4py)" if found else f"{version.split(',')[0][:30]} (mpi4py)"
