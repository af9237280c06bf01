"""What one rank puts into a collective, and what must come out of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

ROOT = 0
_REDUCING = ("allreduce", "grouped", "reducescatter")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A collective, seen from one rank.

    Attributes:
        collective: see `tfring.bench.options.COLLECTIVES`.
        dtype: name of the element type.
        counts: elements of each tensor: of the input, or of the output where that is longer.
        rank: this rank.
        size: number of ranks.
        wire: the type that floats travel as; "" for their own. Only tfring knows of it.
    """

    collective: str
    dtype: str
    counts: tuple[int, ...]
    rank: int
    size: int
    wire: str = ""

    @property
    def reduces(self) -> bool:
        """Whether anything is added up."""
        return self.collective in _REDUCING

    @property
    def in_place(self) -> bool:
        """Whether the output has the input's shape and may take its place."""
        return self.collective in ("allreduce", "grouped", "broadcast")

    @property
    def part(self) -> int:
        """Elements of one of `size` equal parts of the only tensor."""
        return self.counts[0] // self.size

    def flat(self) -> Problem:
        """Returns the same with one tensor of as many elements."""
        return dataclasses.replace(self, counts=(sum(self.counts),))

    def inputs(self) -> list[np.ndarray]:
        """Returns this rank's tensors; small numbers that each type holds exactly."""
        me, ranks = self.rank, range(self.size)
        if self.collective == "allgather":
            return [self._steps(7 * me, self.part)]
        if self.collective == "alltoall":
            return [np.concatenate([self._steps(7 * me + 3 * to, self.part) for to in ranks])]
        if self.collective == "broadcast":
            return [self._steps(5 if me == ROOT else 0, count) for count in self.counts]
        return [self._steps(me + 1, count) for count in self.counts]

    def outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns where results go: the inputs themselves where they may."""
        if self.in_place:
            return list(inputs)
        count = self.part if self.collective == "reducescatter" else self.counts[0]
        return [np.zeros(count, numpy_type(self.dtype))]

    def expected(self) -> list[np.ndarray]:
        """Returns the right results of `inputs`."""
        me, n, ranks = self.rank, self.size, range(self.size)
        if self.collective == "allgather":
            return [np.concatenate([self._steps(7 * of, self.part) for of in ranks])]
        if self.collective == "alltoall":
            return [np.concatenate([self._steps(7 * of + 3 * me, self.part) for of in ranks])]
        if self.collective == "broadcast":
            return [self._steps(5, count) for count in self.counts]
        # Each rank r put in r + 1, r + 2, r + 3, r + 1, ...
        sums = [self._steps(n * (n + 1) // 2, count, n) for count in self.counts]
        if self.collective == "reducescatter":
            return [sums[0][me * self.part : (me + 1) * self.part]]
        return sums

    def _steps(self, start: int, count: int, step: int = 1) -> np.ndarray:
        array = np.empty(count, numpy_type(self.dtype))
        for i in range(3):
            array[i::3] = (start + i * step) % 128
        return array


def numpy_type(name: str) -> np.dtype:
    """Returns NumPy's type of that name; bfloat16 is that of ml_dtypes, which Keras brings."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
