"""What a run says: tables in Markdown, and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfring.bench.report import machine, time_text
from tfring.bench.train.result import ALONE, DISTRIBUTED, INDEPENDENT, WAYS, Result
from tfring.version import __version__

CAPTION = """\
Training on one machine, one thread per rank, medians over {rounds} rounds in which all take turns.
*Independent*: as many processes at the same time, without communication. Efficiency is what {np}
ranks reach of what {np} independent processes reach in the turn beside it."""


def speeds(results: Sequence[Result]) -> str:
    """Returns the table of throughputs: a row per model."""
    np = results[0].np
    head = ["model", "parameters", "batch", "1 alone", f"{np} independent", f"{np} ranks"]
    head += ["efficiency", "processor time of a step"]
    rows = [
        [result.model, f"{result.parameters / 1e6:.1f}M", str(result.batch)]
        + [_speed(result, way) for way in (ALONE, INDEPENDENT, DISTRIBUTED)]
        + [f"{100 * result.efficiency():.1f}%", _processor(result)]
        for result in results
    ]
    return _table(head, rows)


def steps(results: Sequence[Result]) -> str:
    """Returns where a step's time goes: a row per model and rank."""
    head = ["model", "rank", "step", "compute", "waiting", "transfer", "update", "hidden transfer"]
    rows = []
    for result in results:
        for rank in range(result.np):
            parts = result.parts_of(rank)
            waits = [f"{time_text(s)} for rank {r}" for r, s in parts.waiting.items()]
            whole = parts.compute + sum(parts.waiting.values()) + parts.transfer + parts.update
            rows.append(
                [result.model, str(rank), time_text(whole), time_text(parts.compute)]
                + [", ".join(waits) or "-"]
                + [time_text(s) for s in (parts.transfer, parts.update, parts.hidden)]
            )
    return _table(head, rows)


def footnotes(results: Sequence[Result]) -> str:
    """Returns the versions and the machine."""
    facts = machine()
    return (
        f"* {results[0].title}\n"
        f"* {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux "
        f"{facts['kernel']}, Python {facts['python']}, {facts['date']}"
    )


def as_json(results: Sequence[Result], command: str) -> dict[str, Any]:
    """Returns everything, the seconds of each step included."""
    return {
        "tfring": __version__,
        "command": command,
        "machine": machine(),
        "results": [
            {
                **dataclasses.asdict(result),
                "throughput": {way: result.throughput(way) for way in WAYS},
                "step": {way: result.step(way) for way in WAYS},
                "processor_time": {way: result.processor_time(way) for way in WAYS},
                "efficiencies": result.efficiencies(),
                "efficiency": result.efficiency(),
                "mean_parts": [vars(result.parts_of(rank)) for rank in range(result.np)],
            }
            for result in results
        ],
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["|".join(["", *(f" {cell} " for cell in cells), ""]) for cells in (head, *rows)]
    lines.insert(1, "|---" + "|---:" * (len(head) - 1) + "|")
    return "\n".join(lines)


def _processor(result: Result) -> str:
    ranks, independent = (result.processor_time(way) for way in (DISTRIBUTED, INDEPENDENT))
    return f"{time_text(ranks)} ({time_text(independent)} independent)"


def _speed(result: Result, way: str) -> str:
    return f"{result.throughput(way):.4g}/s, step {time_text(result.step(way))}"
