"""Where the time of a training step goes, from what the engine noted of its collectives.

    step begins                                               next step begins
    |---- compute ----|-- wait for rank r --|-- transfer --|---- update ----|
                      last gradients submitted             last ones are there

Transfers and waits before this rank has submitted its last gradients cost no time of their own:
the backward pass goes on. They are told apart, as hidden.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from tfring._records import Record


@dataclasses.dataclass
class Parts:
    """Parts of one step on one rank, in seconds; the first four add up to the step.

    Attributes:
        compute: until the last gradients were handed to the engine.
        waiting: then, until all ranks had done so, by the rank that was last.
        transfer: then, until the last reduced gradients were there.
        update: the optimizer's, and what Keras does between steps.
        hidden: transfer while this rank still computed.
    """

    compute: float = 0.0
    waiting: dict[int, float] = dataclasses.field(default_factory=dict)
    transfer: float = 0.0
    update: float = 0.0
    hidden: float = 0.0


def split(begin: int, end: int, records: Iterable[Record], rank: int) -> Parts:
    """Splits one step.

    Args:
        begin: of the step, in nanoseconds.
        end: the beginning of the next.
        records: collectives; those that were not submitted in this step are left out.
        rank: this one, which is not waited for.
    """
    mine = [one for one in records if begin <= one.submitted_ns < end]
    mine.sort(key=lambda one: one.began_ns)
    computed = max((one.submitted_ns for one in mine), default=end)
    now, moved, hidden = computed, 0, 0
    waiting: dict[int, int] = {}
    for one in mine:
        if one.agreed_ns > now and one.last_rank != rank:
            waiting[one.last_rank] = waiting.get(one.last_rank, 0) + one.agreed_ns - now
            now = one.agreed_ns
        hidden += max(0, min(one.ended_ns, computed) - one.began_ns)
        moved += max(0, one.ended_ns - now)
        now = max(now, one.ended_ns)
    return Parts(
        compute=(computed - begin) / 1e9,
        waiting={number: ns / 1e9 for number, ns in waiting.items()},
        transfer=moved / 1e9,
        update=(end - now) / 1e9,
        hidden=hidden / 1e9,
    )


def mean(steps: Sequence[Parts]) -> Parts:
    """Returns the mean of steps; a rank that was not waited for in one counts as 0 there."""
    count = len(steps)
    ranks = sorted({rank for step in steps for rank in step.waiting})
    return Parts(
        compute=sum(step.compute for step in steps) / count,
        waiting={r: sum(step.waiting.get(r, 0.0) for step in steps) / count for r in ranks},
        transfer=sum(step.transfer for step in steps) / count,
        update=sum(step.update for step in steps) / count,
        hidden=sum(step.hidden for step in steps) / count,
    )
