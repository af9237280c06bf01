"""What tfring promises about training, beside what a run measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfring.bench.report import table
from tfring.bench.train.result import Result

# Of the throughput of as many independent processes, at 2 ranks.
_LEAST = {"cnn": 0.98, "mlp": 0.94}
_RANKS = 2
# Compiled by XLA: of the time of a step without collectives and of an exchange alone.
_MOST_XLA = 1.05


def markdown(results: Sequence[Result]) -> str:
    """Returns the table of promises that these results can tell of."""
    rows = [row for result in results for row in (_xla if result.xla else _speed)(result)]
    if not rows:
        return f"Nothing to check: tfring promises numbers of {_names()} at {_RANKS} ranks."
    return table(["promise", "measured", "allowed", "kept"], rows)


def _speed(result: Result) -> Iterator[list[str]]:
    least = _LEAST.get(result.model)
    if least is None or result.np != _RANKS:
        return
    measured = result.efficiency()
    what = f"of the throughput of {result.np} independent processes"
    yield _row(result, what, measured, f"at least {100 * least:.0f}%", measured >= least)


def _xla(result: Result) -> Iterator[list[str]]:
    measured = result.share()
    what = "XLA: a step, of one without collectives plus an exchange alone"
    allowed = f"at most {100 * _MOST_XLA:.0f}%"
    yield _row(result, what, measured, allowed, measured <= _MOST_XLA)


def _row(result: Result, what: str, measured: float, allowed: str, kept: bool) -> list[str]:
    where = f"{result.np} ranks, {result.model}, batch {result.batch}: {what}"
    return [where, f"{100 * measured:.1f}%", allowed, "yes" if kept else "**no**"]


def _names() -> str:
    return " and ".join(_LEAST)
