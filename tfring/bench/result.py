"""Measured times and what is said of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Entry:
    """One way to do an allreduce.

    Attributes:
        key: short name, such as `engine`, `op.eager`, `gloo`.
        title: what it is, with its version.
        role: `own`, `peer` or `limit`.
    """

    key: str
    title: str
    role: str


@dataclasses.dataclass(frozen=True)
class Summary:
    """Times of one call, in seconds.

    Attributes:
        calls: how many samples.
        minimum: the fastest.
        median: the middle one.
        p99: 99 of 100 are not slower; with fewer than 100 samples, the slowest.
    """

    calls: int
    minimum: float
    median: float
    p99: float


@dataclasses.dataclass
class Run:
    """All samples of one number of ranks.

    Attributes:
        np: number of ranks.
        dtype: element type.
        entries: those that took part, in the order of the columns.
        samples: seconds of each call by (entry's key, bytes).
        absent: one line for each that could not take part.
    """

    np: int
    dtype: str
    entries: list[Entry] = dataclasses.field(default_factory=list)
    samples: dict[tuple[str, int], list[float]] = dataclasses.field(default_factory=dict)
    absent: list[str] = dataclasses.field(default_factory=list)

    def summary(self, key: str, size: int) -> Summary | None:
        """Returns the summary, None where nothing was measured."""
        samples = self.samples.get((key, size))
        return summarize(samples) if samples else None

    def sizes(self) -> list[int]:
        """Returns the sizes measured, ascending."""
        return sorted({size for _, size in self.samples})


def summarize(samples: Sequence[float]) -> Summary:
    """Returns minimum, median and 99th percentile; the latter are samples, not interpolations."""
    ordered = sorted(samples)
    count = len(ordered)
    return Summary(
        calls=count,
        minimum=ordered[0],
        median=ordered[(count - 1) // 2],
        p99=ordered[min(count - 1, math.ceil(0.99 * count) - 1)],
    )


def slowest(by_rank: Sequence[Sequence[int]]) -> list[float]:
    """Combines the ranks' nanoseconds: a call takes as long as on its slowest rank."""
    return [max(call) / 1e9 for call in zip(*by_rank, strict=True)]


def algorithm_bandwidth(size: int, seconds: float) -> float:
    """Returns bytes of the tensor per second, whatever the ranks had to move for it."""
    return size / seconds


def bus_bandwidth(size: int, seconds: float, np: int) -> float:
    """Returns bytes per second that each rank of a bandwidth-optimal ring would have sent."""
    return size / seconds * 2 * (np - 1) / np
