"""The picture of a run."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from tfring.bench.options import size_text
from tfring.bench.report import count, time_text
from tfring.bench.result import Entry, Run

_COLORS = {
    "engine": "#c1272d",
    "op": "#e8842c",
    "mpich": "#0b4f8a",
    "openmpi": "#2b8cbe",
    "intelmpi": "#6baed6",
    "gloo": "#4d9221",
    "oneccl": "#7b3294",
}
_LINES = {"": "-", "eager": "-", "function": (0, (5, 2)), "graph": (0, (1, 1.2)), "xla": "-."}
_GREY = "#8a8a8a"
_DPI = 110
_ENDINGS = (".png", ".svg", ".pdf")


def available() -> bool:
    """Returns whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def require_files(picture: str | None, *others: str | None) -> None:
    """Refuses, before anything is measured, files that could not be written at the end.

    Args:
        picture: file of a plot, or None.
        others: further files, or None.

    Raises:
        ValueError: matplotlib is not there, an ending that it does not know, a folder in a
            file's place, or one that cannot be written.
    """
    if picture and not picture.lower().endswith(_ENDINGS):
        endings = ", ".join(_ENDINGS)
        raise ValueError(f"--plot takes a file that ends in {endings}. Received: {picture}")
    if picture and not available():
        raise ValueError("--plot needs matplotlib: `pip install matplotlib`")
    for file in filter(None, (picture, *others)):
        if os.path.isdir(file):
            raise ValueError(f"cannot write to {file}: it is a folder. Add a file name")
        folder = os.path.dirname(os.path.abspath(file))
        if not os.access(folder, os.W_OK):
            raise ValueError(f"cannot write to the folder {folder}. Received: {file}")


def save(runs: Sequence[Run], path: str) -> None:
    """Draws a panel for each run: times over bytes, or bars where tensors come in lists.

    Args:
        runs: what to draw; all numbers of ranks of one collective stand in one row.
        path: file to write; its ending chooses the format.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = _rows(runs)
    wide = max(len(row) for row in rows)
    heights = [3.4 if all(map(_is_short, row)) else 5.0 for row in rows]
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False}):
        figure = Figure(figsize=(7.4 * wide, sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(len(rows), wide, height_ratios=heights)
        for i, row in enumerate(rows):
            panels = [figure.add_subplot(grid[i, j]) for j in range(len(row))]
            for run, panel in zip(row, panels, strict=True):
                (_bars if _is_short(run) else _curves)(run, panel)
            _same_heights(panels, row)
        figure.savefig(path, dpi=_DPI)


def _is_short(run: Run) -> bool:
    """Whether there are only bars to draw: lists of tensors, or a single size."""
    return run.collective == "grouped" or len(run.sizes()) == 1


def _rows(runs: Sequence[Run]) -> list[list[Run]]:
    """A row for each collective with all its numbers of ranks; single ones share rows."""
    kinds = list(dict.fromkeys((run.collective, run.dtype) for run in runs))
    rows = [[run for run in runs if (run.collective, run.dtype) == kind] for kind in kinds]
    if len(rows) < 3 or any(len(row) > 1 for row in rows):
        return rows
    columns = 2 if len(rows) < 7 else 3
    alone = [run for row in rows for run in row]
    return [alone[i : i + columns] for i in range(0, len(alone), columns)]


def _same_heights(panels: list[Any], row: list[Run]) -> None:
    kinds = {(run.collective, run.dtype) for run in row}
    if any(map(_is_short, row)) or len(kinds) > 1:
        return
    limits = [panel.get_ylim() for panel in panels]
    for panel in panels:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _curves(run: Run, panel: Any) -> None:
    points = [(entry, *_points(run, entry)) for entry in run.entries if entry.key != "copy"]
    drawn = [line for line in points if line[1]]
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for entry, sizes, medians in drawn:
        if entry.role == "limit":
            _draw_limit(panel, sizes, medians)
            continue
        panel.plot(
            sizes,
            medians,
            linestyle=_LINES.get(entry.way, "-"),
            color=_COLORS.get(entry.contender, _GREY),
            linewidth=2.6 if entry.key == "engine" else 1.5,
            marker="o",
            markersize=5 if entry.key == "engine" else 3.5,
            zorder=3 if entry.role == "own" else 2,
        )
    medians = [median for _, _, found in drawn for median in found]
    panel.set_ylim(min(medians) / 3, max(medians) * 2)
    _axes(run, panel)
    _name_lines(panel, drawn)


def _draw_limit(panel: Any, sizes: list[int], medians: list[float]) -> None:
    panel.fill_between(sizes, medians, min(medians) / 10**3, color=_GREY, alpha=0.22, lw=0)
    panel.annotate(
        "memory's limit",
        (sizes[-1], min(medians)),
        xytext=(-5, -2),
        textcoords="offset points",
        ha="right",
        va="top",
        color="#333333",
        fontsize=9,
    )


def _points(run: Run, entry: Entry) -> tuple[list[int], list[float]]:
    pairs = [(size, run.median(entry.key, size)) for size in run.sizes()]
    kept = [(size, median) for size, median in pairs if median is not None]
    return [size for size, _ in kept], [median for _, median in kept]


def _axes(run: Run, panel: Any) -> None:
    sizes = run.sizes()
    panel.set_xticks(sizes, [size_text(size) for size in sizes], rotation=35, ha="right")
    panel.set_xticks([], minor=True)
    panel.yaxis.set_major_formatter(lambda value, _: _round_time(value))
    panel.yaxis.set_minor_formatter(lambda value, _: "")
    panel.spines["right"].set_visible(False)
    panel.grid(True, which="major", alpha=0.25)
    panel.set_ylabel("median time of a call")
    panel.set_title(
        f"{run.collective} of {run.dtype}, {count(run.np, 'rank')}", loc="left", weight="bold"
    )


def _round_time(seconds: float) -> str:
    return time_text(seconds).replace(".00", "").replace(".0 ", " ").replace(".10", ".1")


def _name_lines(panel: Any, drawn: list[tuple[Entry, list[int], list[float]]]) -> None:
    """Writes each line's name at its left end, moved so that none covers another."""
    lines = [line for line in drawn if line[0].role != "limit"]
    ends = sorted(((medians[0], entry) for entry, _, medians in lines), key=lambda end: end[0])
    low, high = panel.get_ylim()
    gap = (high / low) ** 0.052
    at = 0.0
    first = min(sizes[0] for _, sizes, _ in lines)
    last = max(sizes[-1] for _, sizes, _ in lines)
    panel.set_xlim(first * (first / last) ** 0.32, last * 2)
    for median, entry in ends:
        at = max(median, at * gap)
        panel.annotate(
            entry.label.replace("`", ""),
            (first, at),
            xytext=(-8, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            color=_COLORS.get(entry.contender, _GREY),
            weight="bold" if entry.key == "engine" else "normal",
            fontsize=9,
        )


def _bars(run: Run, panel: Any) -> None:
    """One bar for each way to do it, the fastest on top."""
    size = run.sizes()[-1]
    medians = [(run.median(entry.key, size), entry) for entry in run.entries if entry.key != "copy"]
    bars = sorted(
        ((median, entry) for median, entry in medians if median is not None),
        key=lambda bar: -bar[0],
    )
    for place, (median, entry) in enumerate(bars):
        color = _COLORS.get(entry.contender, "#bdbdbd")
        # A flat buffer is less work than a list.
        look = {"hatch": "//", "alpha": 0.45} if entry.way == "flat" else {}
        panel.barh(place, median, color=color, edgecolor="white", **look)
        panel.text(median, place, f" {time_text(median)}", va="center", fontsize=9)
    names = [entry.label.replace("`", "") for _, entry in bars]
    panel.set_yticks(range(len(bars)), names, fontsize=9)
    panel.set_xlim(0, bars[0][0] * 1.15)
    panel.xaxis.set_major_formatter(lambda value, _: _round_time(value) if value else "0")
    panel.spines["right"].set_visible(False)
    what = "" if run.collective == "grouped" else f"{run.collective} of {run.dtype}, "
    title = f"{what}{run.labels[size]}, {count(run.np, 'rank')}"
    panel.set_title(title, loc="left", weight="bold")
