"""The picture of a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from tfring.bench.options import size_text
from tfring.bench.result import Run


def available() -> bool:
    """Returns whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def save(runs: Sequence[Run], path: str) -> None:
    """Draws median time over bytes, both logarithmic, a panel for each number of ranks.

    Args:
        runs: what to draw.
        path: file to write; its ending chooses the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * len(runs), 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for run, panel in zip(runs, panels, strict=True):
        _draw(run, panel)
    panels[0].set_ylabel("median, microseconds")
    panels[-1].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _draw(run: Run, panel: Any) -> None:
    styles = {"own": "-", "peer": "--", "limit": ":"}
    for entry in run.entries:
        sizes = [size for size in run.sizes() if (entry.key, size) in run.samples]
        summaries = [run.summary(entry.key, size) for size in sizes]
        medians = [summary.median * 1e6 for summary in summaries if summary is not None]
        title = entry.title.partition(" (")[0]
        if entry.key.startswith("op."):
            title += f", {entry.key.partition('.')[2]}"
        panel.loglog(sizes, medians, styles[entry.role], marker="o", label=title)
    panel.set_xticks(run.sizes(), [size_text(size) for size in run.sizes()])
    panel.set_xticks([], minor=True)
    panel.set_title(f"allreduce of {run.dtype}, {run.np} ranks")
    panel.grid(True, which="major", alpha=0.3)
