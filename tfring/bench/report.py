"""What a run says: tables in Markdown, and JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tfring.bench.options import size_text
from tfring.bench.result import (
    FOR_P99,
    HAND_OVER_BYTES,
    Entry,
    Run,
    Summary,
    algorithm_bandwidth,
    bus_bandwidth,
    summarize,
)
from tfring.version import __version__

_NAMES = {
    "allreduce": "Allreduce (sum)",
    "grouped": "Grouped allreduce (sum of a list of tensors)",
    "allgather": "Allgather",
    "broadcast": "Broadcast",
    "reducescatter": "Reducescatter (sum)",
    "alltoall": "Alltoall",
}
# Columns of a table of lists; the last is another work, for comparison.
_LIST_COLUMNS = {
    "list": "one call",
    "eager": "one call",
    "function": "`tf.function`",
    "graph": "in a graph",
    "xla": "XLA",
    "each": "per tensor",
    "packed": "packed",
    "flat": "flat buffer",
}


def section(runs: Sequence[Run], rounds: int, command: str, picture: str | None = None) -> str:
    """Returns all that is said of some runs, to be put into a document as it is."""
    parts = []
    for run in runs:
        parts += [caption(run, rounds), markdown(run)]
    if picture:
        parts.append(f"![Median times of this run, drawn over the bytes]({picture})")
    parts.append(f"{footnotes(runs)}\n* measured by `{command}`")
    return "\n\n".join(parts)


def markdown(run: Run) -> str:
    """Returns the table of medians."""
    return _lists(run) if run.collective == "grouped" else _sizes(run)


def _sizes(run: Run) -> str:
    """A row for each size, a column for each way, then ratios."""
    best = any(entry.role == "peer" for entry in run.entries)
    head = ["bytes", *(entry.label for entry in run.entries)]
    own = any(entry.key == "engine" for entry in run.entries)
    head += ["engine / limit"] if own and _has(run, "limit") else []
    head += ["engine / best peer"] if own and best else []
    rows = []
    for size in run.sizes():
        cells = [run.labels[size]]
        cells += [_time(run, entry.key, size) for entry in run.entries]
        if "engine / limit" in head:
            cells.append(ratio(run.own(size), run.median("limit", size)))
        if "engine / best peer" in head:
            peer = run.best_peer(size)
            cells.append(ratio(run.own(size), peer[1] if peer else None))
        rows.append(cells)
    return table(head, rows)


def _lists(run: Run) -> str:
    """A row for each contender, a column for each way to reduce a list."""
    columns = dict.fromkeys(_LIST_COLUMNS.values())
    used = [c for c in columns if any(_list_column(entry) == c for entry in run.entries)]
    rows = []
    for size in run.sizes():
        label = run.labels[size]
        for name in dict.fromkeys(_row_name(entry) for entry in run.entries):
            cells = dict.fromkeys(used, "-")
            for entry in run.entries:
                if _row_name(entry) == name:
                    cells[_list_column(entry)] = _time(run, entry.key, size)
            if set(cells.values()) != {"-"}:
                rows.append([label, name, *cells.values()])
                label = ""
    return table(["tensors", "", *used], rows)


def _row_name(entry: Entry) -> str:
    return entry.label.partition(",")[0]


def _list_column(entry: Entry) -> str:
    return _LIST_COLUMNS.get(entry.way, _LIST_COLUMNS["flat"])


def details(run: Run) -> str:
    """Returns a row per contender and size with everything that is known of it."""
    head = ["bytes", "", "calls", "min", "median", "p99", "algorithm", "bus"]
    rows = []
    for size in run.sizes():
        for entry in run.entries:
            summary = run.summary(entry.key, size)
            if summary is None:
                continue
            speeds = _bandwidths(run, size, summary.median)
            rows.append(
                [run.labels[size], entry.label, *_spread(entry, summary)]
                + [speed_text(speed) if speed else "-" for speed in speeds]
            )
    return table(head, rows)


def _bandwidths(run: Run, size: int, seconds: float) -> tuple[float | None, float | None]:
    """Of algorithm and bus; None where a difference of times drowned in noise."""
    if seconds <= 0:
        return None, None
    return algorithm_bandwidth(size, seconds), bus_bandwidth(run.collective, size, seconds, run.np)


def _spread(entry: Entry, summary: Summary) -> list[str]:
    """Number, minimum, median and 99th percentile; "-" for what means nothing."""
    fastest, median = time_text(summary.minimum), time_text(summary.median)
    if entry.per == "difference":
        return [str(summary.calls), "-", median if summary.median > 0 else "-", "-"]
    if entry.per == "turn":
        return [count(summary.calls, "turn"), fastest, median, "-"]
    slow = time_text(summary.p99)
    return [
        str(summary.calls),
        fastest,
        median,
        slow if summary.calls >= FOR_P99 else f"{slow} (slowest)",
    ]


def count(number: int, what: str) -> str:
    """Returns 1 rank, 2 ranks."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def caption(run: Run, rounds: int) -> str:
    """Returns what a reader must know to trust the table."""
    wire = f", tfring's floats travelling as {run.wire}" if run.wire else ""
    alone = ". A rank alone moves nothing: this is what a call costs" if run.np == 1 else ""
    return (
        f"**{_NAMES[run.collective]} of {run.dtype}, {count(run.np, 'rank')}** on one machine, "
        f"one thread each{wire}; medians over {count(rounds, 'round')} in which all take turns, "
        f"a call counted by its slowest rank{alone}."
    )


def footnotes(runs: Sequence[Run]) -> str:
    """Returns who took part, who did not, and on which machine."""
    taking_part: dict[str, str] = {}
    for run in runs:
        for entry in run.entries:  # what a call costs anyway was measured in each run: once will do
            name = _row_name(entry)
            taking_part.setdefault(name, f"* {name}: {_explained(entry)}")
    lines = list(taking_part.values())
    lines += [f"* not measured: {text.splitlines()[0]}" for run in runs for text in run.absent]
    lines += _hand_over([seconds for run in runs for seconds in run.hand_overs])
    facts = machine()
    lines.append(
        f"* {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux "
        f"{facts['kernel']}, Python {facts['python']}, {facts['date']}"
    )
    return "\n".join(dict.fromkeys(lines))


def _hand_over(turns: Sequence[float]) -> list[str]:
    """Virtual processors move: then what one core wrote reaches the other many times slower."""
    if not turns:
        return []
    fastest, median, slowest = min(turns), statistics.median(turns), max(turns)
    return [
        f"* from one core to another: one rank writes {size_text(HAND_OVER_BYTES)}, then another "
        f"reads them: median {time_text(median)}, from {time_text(fastest)} to "
        f"{time_text(slowest)} during the run; libraries that stage through shared memory follow it"
    ]


def as_json(runs: Sequence[Run], command: str) -> dict[str, Any]:
    """Returns everything, samples included; times are in seconds."""
    return {
        "tfring": __version__,
        "command": command,
        "machine": machine(),
        "runs": [
            {
                "np": run.np,
                "collective": run.collective,
                "dtype": run.dtype,
                "wire": run.wire,
                "absent": run.absent,
                "hand_overs": run.hand_overs,
                "contenders": [vars(entry) for entry in run.entries],
                "results": [_result(run, *key) for key in run.samples],
            }
            for run in runs
        ],
    }


def machine() -> dict[str, Any]:
    """Returns what the numbers depend on."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory() / 2**30),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
    }


def memory() -> int:
    """Returns the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def time_text(seconds: float) -> str:
    """Returns a time with three digits: 0.31 us, 45.2 us, 1.20 ms."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{_digits(seconds / unit)} {name}"
    return f"{seconds * 1e6:.2f} us"


def speed_text(speed: float) -> str:
    """Returns bytes per second with three digits: 0.35 MB/s, 45.2 MB/s, 1.20 GB/s."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if speed >= unit:
            return f"{_digits(speed / unit)} {name}/s"
    return f"{_digits(speed)} B/s"


def ratio(first: float | None, second: float | None) -> str:
    """Returns one time over another, "-" where one is missing."""
    return "-" if first is None or not second else f"{first / second:.2f}"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _explained(entry: Entry) -> str:
    if entry.way == "copy":
        return "each rank copies the bytes of one tensor, from memory of its own to its own"
    return entry.title


def _has(run: Run, key: str) -> bool:
    return any(entry.key == key for entry in run.entries)


def _time(run: Run, key: str, size: int) -> str:
    median = run.median(key, size)
    return "-" if median is None else time_text(median)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown; all columns but the first hold numbers."""
    lines = ["|".join(["", *(f" {cell} " for cell in cells), ""]) for cells in (head, *rows)]
    lines.insert(1, "|---" + "|---:" * (len(head) - 1) + "|")
    return "\n".join(lines)


def _result(run: Run, key: str, size: int) -> dict[str, Any]:
    samples = run.samples[key, size]
    summary = summarize(samples)
    algorithm, bus = _bandwidths(run, size, summary.median)
    return {
        "contender": key,
        "bytes": size,
        "label": run.labels[size],
        **vars(summary),
        "algorithm_bandwidth": algorithm,
        "bus_bandwidth": bus,
        "samples": samples,
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
