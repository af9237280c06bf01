"""Measured times and what is said of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

FOR_P99 = 100
HAND_OVER_BYTES = 2**18
_LIST_WAYS = ("list", "each", "packed")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One way of one contender to do a collective: a column.

    Attributes:
        key: unique, such as `engine`, `op.eager`, `gloo`.
        label: short name for readers.
        title: what it is, with its version.
        role: `own`, `peer` or `limit`.
        contender: the contender's name.
        way: which of its ways.
        per: what a sample is: a `call`, the mean of a whole `turn`, or a `difference` of calls,
            of which only the median means something.
    """

    key: str
    label: str
    title: str
    role: str
    contender: str = ""
    way: str = ""
    per: str = "call"


@dataclasses.dataclass(frozen=True)
class Summary:
    """Times of one call, in seconds.

    Attributes:
        calls: how many samples.
        minimum: the fastest.
        median: the middle one.
        p99: 99 of 100 are not slower; with fewer than `FOR_P99` samples, the slowest.
    """

    calls: int
    minimum: float
    median: float
    p99: float


@dataclasses.dataclass
class Run:
    """All samples of one collective with one element type at one number of ranks.

    Attributes:
        np: number of ranks.
        collective: which.
        dtype: element type.
        entries: those that took part, in the order of the columns.
        samples: seconds of each call by (entry's key, bytes).
        labels: what readers see for those bytes.
        absent: one line for each that could not take part.
        wire: what tfring's floats travelled as; "" for their own type.
        hand_overs: for each turn of the limit, the seconds in which one rank wrote
            `HAND_OVER_BYTES` and another read them.
    """

    np: int
    collective: str
    dtype: str
    entries: list[Entry] = dataclasses.field(default_factory=list)
    samples: dict[tuple[str, int], list[float]] = dataclasses.field(default_factory=dict)
    labels: dict[int, str] = dataclasses.field(default_factory=dict)
    absent: list[str] = dataclasses.field(default_factory=list)
    wire: str = ""
    hand_overs: list[float] = dataclasses.field(default_factory=list)

    def summary(self, key: str, size: int) -> Summary | None:
        """Returns the summary, None where nothing was measured."""
        samples = self.samples.get((key, size))
        return summarize(samples) if samples else None

    def median(self, key: str, size: int) -> float | None:
        """Returns the median, None where nothing was measured or a difference drowned in noise."""
        summary = self.summary(key, size)
        return None if summary is None or summary.median <= 0 else summary.median

    def sizes(self) -> list[int]:
        """Returns the sizes measured, ascending."""
        return sorted({size for _, size in self.samples})

    def own(self, size: int) -> float | None:
        """Returns the engine's median; of grouped, that of the list."""
        return self.median("engine.list" if self.collective == "grouped" else "engine", size)

    def best_peer(self, size: int) -> tuple[Entry, float] | None:
        """Returns the fastest peer that did the same work, and its median; None without peers.

        A flat buffer is not the same work as a list.
        """
        ways = _LIST_WAYS if self.collective == "grouped" else ("",)
        medians = [
            (median, entry)
            for entry in self.entries
            if entry.role == "peer" and entry.way in ways
            if (median := self.median(entry.key, size)) is not None
        ]
        if not medians:
            return None
        median, entry = min(medians, key=lambda pair: pair[0])
        return entry, median


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
    """Returns bytes of the tensors per second, whatever the ranks had to move for it."""
    return size / seconds


def bus_bandwidth(collective: str, size: int, seconds: float, np: int) -> float:
    """Returns bytes per second that the busiest rank of a bandwidth-optimal algorithm would send.

    Of the bytes of the longer side, the input's or the output's: allreduce 2 (n - 1) / n, since
    each of n parts is sent once to be added up and once to be shared out; allgather, reducescatter
    and alltoall (n - 1) / n, all but a rank's own part; broadcast 1.
    """
    if collective == "broadcast":
        return size / seconds
    passes = 2 if collective in ("allreduce", "grouped") else 1
    return size / seconds * passes * (np - 1) / np
