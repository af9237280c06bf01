"""The picture of a run: how fast, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring.bench.train.result import ALONE, DISTRIBUTED, INDEPENDENT, WAYS, Result

_WORDS = {ALONE: "alone", INDEPENDENT: "independent", DISTRIBUTED: "with tfring"}


def save(results: Sequence[Result], path: str) -> None:
    """Draws the throughput of the three ways and the parts of a distributed step.

    Args:
        results: what to draw.
        path: file to write; its ending chooses the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_speeds(results, left)
    _draw_parts(results, right)
    figure.savefig(path, dpi=120)


def _draw_speeds(results: Sequence[Result], panel: Any) -> None:
    width = 0.8 / len(WAYS)
    for i, way in enumerate(WAYS):
        # Models differ too much for one axis: all beside one process alone.
        heights = [result.throughput(way) / result.throughput("alone") for result in results]
        places = [place + (i - 1) * width for place in range(len(results))]
        bars = panel.bar(places, heights, width, label=_WORDS[way])
        texts = [f"{result.throughput(way):.3g}/s" for result in results]
        panel.bar_label(bars, texts, fontsize="x-small")
    panel.set_ylabel("examples per second, times those of one process")
    _finish(results, panel)


def _draw_parts(results: Sequence[Result], panel: Any) -> None:
    bottoms = [0.0] * len(results)
    for part in ("compute", "waiting", "transfer", "update"):
        shares = [_share(result, part) for result in results]
        panel.bar(range(len(results)), shares, 0.6, bottom=bottoms, label=part)
        bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
    panel.set_ylabel("milliseconds of a step with tfring, mean of ranks")
    _finish(results, panel)


def _finish(results: Sequence[Result], panel: Any) -> None:
    panel.set_xticks(range(len(results)), [_name(result) for result in results])
    margin = 0.6 if len(results) > 1 else 1.2
    panel.set_xlim(-margin, len(results) - 1 + margin)
    # Above the panel: inside, it would cover bars.
    panel.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize="small"
    )


def _share(result: Result, part: str) -> float:
    def seconds(rank: int) -> float:
        value = getattr(result.parts_of(rank), part)
        return sum(value.values()) if isinstance(value, dict) else value

    return 1e3 * sum(seconds(rank) for rank in range(result.np)) / result.np


def _name(result: Result) -> str:
    return f"{result.model}, {result.np} ranks"
