"""What the machine's memory allows: every rank's tensor is already shared by all.

Allreduce: rank r reads its share of all tensors, adds it up and writes the sum into all of them,
block by block within the cache. The other collectives: rank r reads what it must from the shared
tensors and writes its own result. Nobody waits for anybody: no library that has to give every rank
its result can be faster, unless it moves fewer bytes than that.

Beside it, a copy: each rank copies the bytes of one tensor from memory of its own to its own. And
a hand-over: the first rank writes a block, the second waits for it and reads it.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from tfring.bench.contenders.base import Prepared
from tfring.bench.problem import ROOT, Problem
from tfring.bench.result import HAND_OVER_BYTES

# At the end of the shared file: a block, and a line for each of the two ranks' words.
HAND_OVER_MEMORY = HAND_OVER_BYTES + 128
_BLOCK_BYTES = 2**17
_PATIENCE_S = 10.0


class MemoryLimit:
    """One rank; the shared tensors lie in a file in memory that the benchmark made."""

    def __init__(self, shared_file: str) -> None:
        self.rank = int(os.environ["TFRING_RANK"])
        self.size = int(os.environ["TFRING_SIZE"])
        self.title = (
            "one pass over tensors that all ranks already share: what memory allows to a library "
            "that waits for nobody; up to about 1 MiB, waiting for each other takes the most time"
        )
        with open(shared_file, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
        """Makes this rank's share of the work ready."""
        if way == "hand over":
            return Prepared(self._hand_over(), lambda: None)
        call = self._copy(problem) if way == "copy" else self._pass(problem)
        return Prepared(call, lambda: None, paced=False)

    def close(self) -> None:
        """The mapping ends with the process: arrays still look into it."""

    def _copy(self, problem: Problem) -> Callable[[], None]:
        source, target = (np.ones(sum(problem.counts), _lanes(problem)) for _ in range(2))
        return partial(np.copyto, target, source)

    def _hand_over(self) -> Callable[[], None]:
        if self.rank > 1:
            return lambda: None
        end = np.frombuffer(self._memory, np.int64)[-(HAND_OVER_MEMORY // 8) :]
        words, block = (end[:1], end[8:9]), end[16:]
        own, other = words[self.rank], words[1 - self.rank]
        private = np.zeros_like(block)

        def first() -> None:
            block.fill(own[0])
            own[0] += 1
            _wait(other, own[0])

        def second() -> None:
            _wait(other, own[0] + 1)
            np.copyto(private, block)
            own[0] += 1

        return (first, second)[self.rank]

    def _pass(self, problem: Problem) -> Callable[[], None]:
        tensors, me = self.tensors(problem), self.rank
        if problem.collective in ("allreduce", "grouped"):
            share = _share(tensors[0].size, me, self.size)
            return partial(_reduce_in_place, _blocks([tensor[share] for tensor in tensors]))
        if problem.collective == "broadcast":
            return partial(
                _copy_all, [] if me == ROOT else [(np.ones_like(tensors[0]), tensors[0])]
            )
        target = np.ones(problem.outputs([])[0].size, tensors[0].dtype)
        part = problem.part
        if problem.collective == "reducescatter":
            mine = [tensor[me * part : (me + 1) * part] for tensor in tensors]
            return partial(_reduce_into, _blocks([target, *mine]))
        # An allgather's tensors are that part, an alltoall's have one for each rank.
        at = me * part if problem.collective == "alltoall" else 0
        parts = [tensor[at : at + part] for tensor in tensors]
        return partial(_copy_all, list(zip(np.split(target, self.size), parts, strict=True)))

    def tensors(self, problem: Problem) -> list[np.ndarray]:
        """Returns the shared inputs of all ranks."""
        count = problem.part if problem.collective == "allgather" else sum(problem.counts)
        flat = np.frombuffer(self._memory, _lanes(problem), count=count * self.size)
        return np.split(flat, self.size)


def _wait(word: np.ndarray, value: int) -> None:
    end = time.monotonic() + _PATIENCE_S
    while word[0] < value:
        os.sched_yield()
        if time.monotonic() > end:
            raise TimeoutError("the other rank of a hand-over does not answer")


def _lanes(problem: Problem) -> type[np.generic]:
    # Memory's limit, not that of NumPy's arithmetic, which is slow for 16-bit floats.
    if problem.dtype in ("float16", "bfloat16"):
        return np.int16
    return np.dtype(problem.dtype).type


def _share(count: int, rank: int, size: int) -> slice:
    return slice(count * rank // size, count * (rank + 1) // size)


def _blocks(arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    step = _BLOCK_BYTES // arrays[0].itemsize
    return [[array[i : i + step] for array in arrays] for i in range(0, arrays[0].size, step)]


def _reduce_in_place(blocks: list[list[np.ndarray]]) -> None:
    for first, *others in blocks:
        for other in others:
            np.add(first, other, out=first)
        for other in others:
            np.copyto(other, first)


def _reduce_into(blocks: list[list[np.ndarray]]) -> None:
    for target, first, *others in blocks:
        np.copyto(target, first)
        for other in others:
            np.add(target, other, out=target)


def _copy_all(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for target, source in pairs:
        np.copyto(target, source)
