"""What tfring promises about training, beside what a run measured."""

from __future__ import annotations

from collections.abc import Sequence

from tfring.bench.report import table
from tfring.bench.train.result import Result

# Of the throughput of as many independent processes, at 2 ranks.
_LEAST = {"cnn": 0.98, "mlp": 0.94}
_RANKS = 2


def markdown(results: Sequence[Result]) -> str:
    """Returns the table of promises that these results can tell of."""
    rows = []
    for result in results:
        least = _LEAST.get(result.model)
        if least is None or result.np != _RANKS:
            continue
        measured = result.efficiency()
        rows.append(
            [
                f"{result.np} ranks, {result.model}, batch {result.batch}: of the throughput of "
                f"{result.np} independent processes",
                f"{100 * measured:.1f}%",
                f"{100 * least:.0f}%",
                "yes" if measured >= least else "**no**",
            ]
        )
    if not rows:
        return f"Nothing to check: tfring promises numbers of {_names()} at {_RANKS} ranks."
    return table(["promise", "measured", "at least", "kept"], rows)


def _names() -> str:
    return " and ".join(_LEAST)
