"""What tfring promises about its speed, beside what a run measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tfring.bench.report import table, time_text
from tfring.bench.result import Run

_MIB = 2**20
# Up to so many bytes the engine takes at most this share of the best peer's time, at 2 ranks.
_PEER_SHARES = ((2**16, 0.5), (16 * _MIB, 0.8), (10**18, 0.6))
_LIST_SHARE = 0.75
_LIMIT_SHARE, _LIMIT_FROM = 1.4, 100 * _MIB
_MANY_RANKS, _MANY_LIMIT_SHARE, _MANY_LIMIT_FROM = 4, 1.6, 16 * _MIB
# The list in one op, over a flat buffer of the same bytes in one op.
_FLAT_SHARE = 1.1
_EAGER_ADDS_S, _GRAPH_ADDS_S, _SMALL = 40e-6, 15e-6, 4


@dataclasses.dataclass(frozen=True)
class Check:
    """One promise.

    Attributes:
        what: which numbers.
        measured: as readers see it.
        allowed: likewise.
        kept: whether it holds.
    """

    what: str
    measured: str
    allowed: str
    kept: bool


def checks(runs: Sequence[Run]) -> list[Check]:
    """Returns the promises that these runs can tell of: float32 allreduce, one or many tensors."""
    found = []
    for run in runs:
        if run.dtype == "float32" and not run.wire and run.collective in ("allreduce", "grouped"):
            for size in run.sizes():
                found += [*_beside_peers(run, size), *_beside_limit(run, size), *_ops(run, size)]
    return found


def markdown(runs: Sequence[Run]) -> str:
    """Returns the table of promises."""
    rows = [
        [check.what, check.measured, check.allowed, "yes" if check.kept else "**no**"]
        for check in checks(runs)
    ]
    kept = table(["promise", "measured", "at most", "kept"], rows)
    return f"{kept}\n\nPromised for a machine that does nothing else meanwhile."


def _beside_peers(run: Run, size: int) -> Iterator[Check]:
    own, best = run.own(size), run.best_peer(size)
    if own is None or best is None or run.np not in (2, _MANY_RANKS):
        return
    if run.np == _MANY_RANKS:
        allowed = 1.0
    elif run.collective == "grouped":
        allowed = _LIST_SHARE
    else:
        allowed = next(share for up_to, share in _PEER_SHARES if size <= up_to)
    entry, median = best
    yield _share(run, size, f"engine / {entry.label}", own / median, allowed)


def _beside_limit(run: Run, size: int) -> Iterator[Check]:
    own, limit = run.own(size), run.median("limit", size)
    if own is None or limit is None or run.collective == "grouped":
        return
    if run.np == 2 and size >= _LIMIT_FROM:
        yield _share(run, size, "engine / limit", own / limit, _LIMIT_SHARE)
    if run.np == _MANY_RANKS and size >= _MANY_LIMIT_FROM:
        yield _share(run, size, "engine / limit", own / limit, _MANY_LIMIT_SHARE)


def _ops(run: Run, size: int) -> Iterator[Check]:
    listed, flat = run.median("op.eager", size), run.median("op.flat", size)
    if run.collective == "grouped" and listed and flat:
        yield _share(run, size, "op, list / flat", listed / flat, _FLAT_SHARE)
    own = run.own(size)
    if run.collective == "grouped" or own is None or size > _SMALL or run.np != 2:
        return
    for key, what, allowed in (
        ("op.eager", "eager op - engine", _EAGER_ADDS_S),
        ("op.graph", "op in a graph - engine", _GRAPH_ADDS_S),
    ):
        median = run.median(key, size)
        if median is not None:
            more = max(0.0, median - own)
            name = _name(run, size, what)
            yield Check(name, time_text(more), time_text(allowed), more <= allowed)


def _share(run: Run, size: int, what: str, value: float, allowed: float) -> Check:
    return Check(_name(run, size, what), f"{value:.2f}", f"{allowed:.2f}", value <= allowed)


def _name(run: Run, size: int, what: str) -> str:
    return f"{run.np} ranks, {run.labels[size]}: {what}"
