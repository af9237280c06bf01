"""What a run says: tables in Markdown, and JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from tfring.bench.report import count, machine, table, time_text
from tfring.bench.train.result import ALONE, DISTRIBUTED, INDEPENDENT, WAYS, Result
from tfring.version import __version__

_CAPTION = """\
**Training, {np} ranks** on one machine, one thread each; the middle one of {rounds} in which all
take turns. *Alone*: one process. *Independent*: {np} processes at the same time, without
communication. *With tfring*: {np} ranks with `DistributedOptimizer`. *Efficiency*: examples per
second with tfring over those of independent processes in the turn beside it; the median of rounds,
the lowest and the highest. *Exchange alone*: the ranks average tensors as large as the gradients,
and do nothing else."""
_XLA = """\
 XLA compiles all steps. *Of step and exchange*: a step with tfring over
one of independent processes and an exchange alone, which nothing hides; the median of rounds, the
lowest and the highest."""
_ABOVE = """\
* {models}: above 100%, tfring's ranks were faster than independent processes: by the noise of the
  rounds, or because ranks that wait for each other compete less for caches and memory"""


def caption(results: Sequence[Result]) -> str:
    """Returns what a reader must know to trust the tables."""
    first = results[0]
    rounds = count(len(first.turns[ALONE]), "round")
    return _CAPTION.format(rounds=rounds, np=first.np) + (_XLA if first.xla else "")


def speeds(results: Sequence[Result]) -> str:
    """Returns the table of throughputs: a row per model."""
    np = results[0].np
    head = ["model", "parameters", "batch", "alone", f"{np} independent", f"{np} with tfring"]
    head += ["efficiency", "exchange alone", "processor time of a step", "of independent"]
    xla = results[0].xla
    if xla:
        head.append("of step and exchange")
    rows = [
        [result.model, f"{result.parameters / 1e6:.1f}M", str(result.batch)]
        + [_speed(result, way) for way in (ALONE, INDEPENDENT, DISTRIBUTED)]
        + [_percent(result.efficiencies()), _exchange(result)]
        + [time_text(result.processor_time(way)) for way in (DISTRIBUTED, INDEPENDENT)]
        + ([_percent(result.shares())] if xla else [])
        for result in results
    ]
    return table(head, rows)


def steps(results: Sequence[Result]) -> str:
    """Returns where a step's time goes with tfring: a row per model and rank."""
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
    return table(head, rows)


def footnotes(results: Sequence[Result]) -> str:
    """Returns what is odd, the versions and the machine."""
    facts = machine()
    above = dict.fromkeys(result.model for result in results if result.efficiency() > 1)
    lines = [_ABOVE.format(models=", ".join(above))] if above else []
    lines.append(f"* {results[0].title}")
    lines.append(
        f"* {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux "
        f"{facts['kernel']}, Python {facts['python']}, {facts['date']}"
    )
    return "\n".join(lines)


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
                "shares": result.shares(),
                "mean_parts": [vars(result.parts_of(rank)) for rank in range(result.np)],
            }
            for result in results
        ],
    }


def _speed(result: Result, way: str) -> str:
    return f"{result.throughput(way):.4g}/s, step {time_text(result.step(way))}"


def _exchange(result: Result) -> str:
    """The median of rounds and, where the machine changed meanwhile, the extremes."""
    low, high = min(result.exchanges), max(result.exchanges)
    text = time_text(statistics.median(result.exchanges))
    return text if high < 1.2 * low else f"{text} ({time_text(low)} to {time_text(high)})"


def _percent(shares: Sequence[float]) -> str:
    """The median of rounds and, if there are several, the extremes."""
    every = [100 * one for one in shares]
    if len(every) == 1:
        return f"{every[0]:.1f}%"
    return f"{statistics.median(every):.1f}% ({min(every):.1f} to {max(every):.1f})"
