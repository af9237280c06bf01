"""What was measured of one model, and what is said of it."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from tfring.bench.train.parts import Parts

ALONE, INDEPENDENT, DISTRIBUTED = "alone", "independent", "distributed"
WAYS = (ALONE, INDEPENDENT, DISTRIBUTED)


@dataclasses.dataclass
class Result:
    """All turns of one model at one number of ranks.

    Attributes:
        model: its name.
        np: number of ranks.
        title: the versions that were measured.
        parameters: of the model.
        batch: examples per rank and step.
        xla: whether XLA compiled the steps.
        turns: for each way and round, the seconds of each step on each rank that took part.
        parts: for each rank, the mean parts of a step in each round.
        processor: for each way and round, seconds of processor time of a step, mean of ranks.
        exchanges: for each round, the seconds in which the ranks average tensors as large as the
            gradients, with nothing else to do; the slowest rank's median.
    """

    model: str
    np: int
    title: str
    parameters: int
    batch: int
    xla: bool = False
    turns: dict[str, list[list[list[float]]]] = dataclasses.field(
        default_factory=lambda: {way: [] for way in WAYS}
    )
    parts: list[list[Parts]] = dataclasses.field(default_factory=list)
    processor: dict[str, list[float]] = dataclasses.field(
        default_factory=lambda: {way: [] for way in WAYS}
    )
    exchanges: list[float] = dataclasses.field(default_factory=list)

    def add(self, way: str, answers: list[dict[str, Any]]) -> None:
        """Notes a turn.

        Args:
            way: one of `WAYS`.
            answers: what each rank said, in the order of ranks.
        """
        active = [one for one in answers if "seconds" in one]
        self.turns[way].append([one["seconds"] for one in active])
        self.processor[way].append(statistics.mean(one["processor"] for one in active))
        if way == DISTRIBUTED:
            self.parts = self.parts or [[] for _ in answers]
            for rounds, one in zip(self.parts, answers, strict=True):
                rounds.append(_parts(one["parts"]))

    def add_exchange(self, answers: list[dict[str, Any]]) -> None:
        """Notes what the ranks said of their exchanges."""
        self.exchanges.append(max(statistics.median(one["seconds"]) for one in answers))

    def throughputs(self, way: str) -> list[float]:
        """Returns the examples per second of all ranks together, one number for each round."""
        return [
            sum(self.batch * len(steps) / sum(steps) for steps in ranks)
            for ranks in self.turns[way]
        ]

    def throughput(self, way: str) -> float:
        """Returns the middle round's examples per second; of two, those of the slower one."""
        return statistics.median_low(self.throughputs(way))

    def step(self, way: str) -> float:
        """Returns the mean seconds of a step that `throughput` means."""
        ranks = len(self.turns[way][0])
        return ranks * self.batch / self.throughput(way)

    def processor_time(self, way: str) -> float:
        """Returns the median round's processor time of a step, of all threads of a rank."""
        return statistics.median(self.processor[way])

    def efficiencies(self) -> list[float]:
        """Returns distributed over independent throughput, one number for each round."""
        pairs = zip(self.throughputs(DISTRIBUTED), self.throughputs(INDEPENDENT), strict=True)
        return [distributed / independent for distributed, independent in pairs]

    def efficiency(self) -> float:
        """Returns the median of `efficiencies`: the turns of a round lie beside each other."""
        return statistics.median(self.efficiencies())

    def shares(self) -> list[float]:
        """Returns, for each round, a step with tfring over one without plus an exchange alone.

        One without is that of the independent processes. Nothing hides an exchange alone.
        """
        ways = (self.throughputs(DISTRIBUTED), self.throughputs(INDEPENDENT), self.exchanges)
        examples = self.np * self.batch
        return [
            (examples / distributed) / (examples / independent + exchange)
            for distributed, independent, exchange in zip(*ways, strict=True)
        ]

    def share(self) -> float:
        """Returns the median of `shares`."""
        return statistics.median(self.shares())

    def parts_of(self, rank: int) -> Parts:
        """Returns the mean parts of a step on a rank, in the round that `throughput` is of."""
        speeds = self.throughputs(DISTRIBUTED)
        return self.parts[rank][speeds.index(self.throughput(DISTRIBUTED))]


def _parts(raw: dict[str, Any]) -> Parts:
    # JSON has no integers as keys.
    waiting = {int(rank): seconds for rank, seconds in raw["waiting"].items()}
    return Parts(**{**raw, "waiting": waiting})
