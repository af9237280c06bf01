"""What a run says: tables in Markdown, and JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tfring.bench.options import size_text
from tfring.bench.result import Entry, Run, algorithm_bandwidth, bus_bandwidth, summarize
from tfring.version import __version__

_SHORT = {
    "limit": "limit",
    "engine": "engine",
    "op.eager": "op, eager",
    "op.function": "op, `tf.function`",
}


def markdown(run: Run) -> str:
    """Returns the table of medians: a row per size, a column per contender, then ratios."""
    ratios = [
        (entry, peer)
        for entry in run.entries
        for peer in run.entries
        if entry.key == "engine" and peer.role == "peer"
    ]
    head = ["bytes", *(_short(entry) for entry in run.entries)]
    head += [f"{_short(entry)} / {_short(peer)}" for entry, peer in ratios]
    rows = []
    for size in run.sizes():
        cells = [size_text(size)]
        cells += [_time(run, entry.key, size) for entry in run.entries]
        cells += [_ratio(run, entry.key, peer.key, size) for entry, peer in ratios]
        rows.append(cells)
    return _table(head, rows)


def details(run: Run) -> str:
    """Returns a row per contender and size with everything that is known of it."""
    head = ["bytes", "", "calls", "min", "median", "p99", "algorithm GB/s", "bus GB/s"]
    rows = []
    for size in run.sizes():
        for entry in run.entries:
            summary = run.summary(entry.key, size)
            if summary is None:
                continue
            times = (summary.minimum, summary.median, summary.p99)
            speeds = (
                algorithm_bandwidth(size, summary.median),
                bus_bandwidth(size, summary.median, run.np),
            )
            rows.append(
                [size_text(size), _short(entry), str(summary.calls)]
                + [time_text(seconds) for seconds in times]
                + [f"{speed / 1e9:.3g}" for speed in speeds]
            )
    return _table(head, rows)


def caption(run: Run, rounds: int) -> str:
    """Returns what a reader must know to trust the table."""
    return (
        f"Allreduce (sum) of {run.dtype}, {run.np} ranks on one machine, one thread each; medians "
        f"over {rounds} rounds in which all take turns, a call counted by its slowest rank."
    )


def footnotes(run: Run) -> str:
    """Returns who took part, who did not, and on which machine."""
    lines = [f"* {_short(entry)}: {entry.title}" for entry in _by_title(run.entries)]
    lines += [f"* not measured: {text.splitlines()[0]}" for text in run.absent]
    facts = machine()
    lines.append(
        f"* {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux "
        f"{facts['kernel']}, Python {facts['python']}, {facts['date']}"
    )
    return "\n".join(lines)


def as_json(runs: Sequence[Run], command: str) -> dict[str, Any]:
    """Returns everything, samples included; times are in seconds."""
    return {
        "tfring": __version__,
        "command": command,
        "machine": machine(),
        "runs": [
            {
                "np": run.np,
                "collective": "allreduce",
                "dtype": run.dtype,
                "absent": run.absent,
                "contenders": [vars(entry) for entry in run.entries],
                "results": [_result(run, *key) for key in run.samples],
            }
            for run in runs
        ],
    }


def machine() -> dict[str, Any]:
    """Returns what the numbers depend on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
    }


def time_text(seconds: float) -> str:
    """Returns a time with three digits: 0.31 us, 45.2 us, 1.20 ms."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{_digits(seconds / unit)} {name}"
    return f"{seconds * 1e6:.2f} us"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _short(entry: Entry) -> str:
    return _SHORT.get(entry.key, entry.title.partition(" ")[0])


def _by_title(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if not entry.key.endswith(".function")]


def _time(run: Run, key: str, size: int) -> str:
    summary = run.summary(key, size)
    return "-" if summary is None else time_text(summary.median)


def _ratio(run: Run, key: str, peer: str, size: int) -> str:
    own, other = run.summary(key, size), run.summary(peer, size)
    return "-" if own is None or other is None else f"{own.median / other.median:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["|".join(["", *(f" {cell} " for cell in cells), ""]) for cells in (head, *rows)]
    lines.insert(1, "|---" + "|---:" * (len(head) - 1) + "|")
    return "\n".join(lines)


def _result(run: Run, key: str, size: int) -> dict[str, Any]:
    samples = run.samples[key, size]
    summary = summarize(samples)
    return {
        "contender": key,
        "bytes": size,
        **vars(summary),
        "algorithm_bandwidth": algorithm_bandwidth(size, summary.median),
        "bus_bandwidth": bus_bandwidth(size, summary.median, run.np),
        "samples": samples,
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
