"""A trace of a rank's collectives, for chrome://tracing and Perfetto.

    _records.py    what the engine noted, one record per collective
    tracing.py     the same as Chrome trace events; the public `trace`

Needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tfring import _records, world
from tfring._records import Record

__all__ = ["trace"]

_logger = logging.getLogger("tfring")


@contextlib.contextmanager
def trace(
    path: str | os.PathLike[str], *, merge: bool = False, capacity: int = 65536
) -> Iterator[None]:
    """Writes what this rank's collectives did in a `with` block, as Chrome trace JSON.

    Open the file with https://ui.perfetto.dev or chrome://tracing. Each rank is a process there,
    and each collective (such as a bucket of gradients) a bar with its name and three parts:
    *wait for rank r*, from when this rank submitted it until the last rank did; *queued*, until
    the engine began it; and the collective itself, while data moved. A bar's arguments tell bytes,
    as given and as they travelled, the number of tensors and which rank came last. While nothing is
    traced, it costs nothing; while it is, well under a microsecond per collective.

    Times are those of the machine's clock, so hosts whose clocks differ are shifted by as much.

    Args:
        path: the file. In a job of several ranks each writes one of its own, with the rank before
            the ending: `step.json` becomes `step.rank0.json`.
        merge: rank 0 writes one file for all ranks, at `path`. Then leaving the block is a
            collective, which every rank must come to. A rank that leaves it with an exception
            writes a file of its own instead.
        capacity: how many collectives to keep, 200 bytes each. When there are more, the oldest
            are dropped, and a warning says how many.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
        RuntimeError: another trace of this process is open.
        ValueError: `capacity` is no positive integer.
        OSError: the folder of `path` does not exist or cannot be written, which is found at the
            start; or the file could not be written at the end. An exception of the block is never
            replaced by that: then it is a warning.
        CommunicationError: with `merge`, a rank failed; this one's part is written all the same.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> with hvd.trace("step.json"):
        ...     total = hvd.allreduce([1.0, 2.0], name="total", op=hvd.Sum)
    """
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ValueError(f"`capacity` must be a positive integer. Received: capacity={capacity!r}")
    rank, size = world.rank(), world.size()
    target, own = Path(path), Path(path)
    if size > 1:
        own = target.with_name(f"{target.stem}.rank{rank}{target.suffix}")
    _require_folder(path)
    recording = _records.Recording(capacity)
    try:
        yield
    except BaseException:
        _write_anyway(own, events(rank, recording.stop()), recording.lost)
        raise
    part = events(rank, recording.stop())
    if not merge or size == 1:
        _write(own, part, recording.lost)
        return
    from tfring.objects import allgather_object

    try:
        parts = allgather_object((part, recording.lost), name="tfring.trace")
    except BaseException:
        _write_anyway(own, part, recording.lost)
        raise
    if rank == 0:
        _write(target, [event for one, _ in parts for event in one], sum(n for _, n in parts))


def events(rank: int, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns the trace events of one rank.

    Args:
        rank: becomes the process of the trace.
        records: what its engine noted.

    Returns:
        Events with times in microseconds since 1970. Bars of one lane never overlap.
    """
    shift = (time.time_ns() - time.monotonic_ns()) // 1000 * 1000
    found = [_named("process_name", rank, 0, name=f"rank {rank}")]
    found.append(_named("process_sort_index", rank, 0, sort_index=rank))
    lanes = _lanes(records)
    for lane in sorted({lane for lane, _ in lanes}):
        found.append(_named("thread_name", rank, lane, name=f"collectives {lane}"))
    for lane, record in lanes:
        found += [dict(one, pid=rank, tid=lane) for one in _bars(rank, record, shift)]
    return found


def _named(what: str, rank: int, lane: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": lane, "args": arguments}


def _lanes(records: Iterable[Record]) -> list[tuple[int, Record]]:
    """Gives each record the first lane that is free when it is submitted."""
    free_at: list[int] = []
    placed = []
    for record in sorted(records, key=lambda one: one.submitted_ns):
        free = (n for n, end in enumerate(free_at) if end <= record.submitted_ns)
        lane = next(free, len(free_at))
        if lane == len(free_at):
            free_at.append(0)
        free_at[lane] = record.ended_ns
        placed.append((lane, record))
    return placed


def _bars(rank: int, record: Record, shift: int) -> Iterator[dict[str, Any]]:
    def bar(name: str, begin: int, end: int, **arguments: Any) -> dict[str, Any]:
        # Such numbers of microseconds have steps of a quarter; neighbours still end where the next
        # begins, or viewers would drop one.
        start, stop = (begin + shift) / 1e3, (end + shift) / 1e3
        span = {"ts": start, "dur": stop - start}
        return {"ph": "X", "cat": record.kind, "name": name, **span, "args": arguments}

    yield bar(
        record.name,
        record.submitted_ns,
        record.ended_ns,
        kind=record.kind,
        bytes=record.bytes,
        travel_bytes=record.travel_bytes,
        tensors=record.tensors,
        last_rank=record.last_rank,
        process_set_number=record.group,
    )
    if record.agreed_ns > record.submitted_ns and record.last_rank != rank:
        whom = f"wait for rank {record.last_rank}"
        yield bar(whom, record.submitted_ns, record.agreed_ns, rank=record.last_rank)
    if record.began_ns > record.agreed_ns:
        yield bar("queued", record.agreed_ns, record.began_ns)
    moved = record.travel_bytes
    yield bar(record.kind, record.began_ns, record.ended_ns, travel_bytes=moved)


def _require_folder(path: str | os.PathLike[str]) -> None:
    folder = Path(path).absolute().parent
    received = f"Received: path={os.fspath(path)!r}"
    if not folder.is_dir():
        raise FileNotFoundError(f"`path` must lie in a folder that exists. {received}")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"`path` must lie in a folder that can be written. {received}")


def _write_anyway(path: Path, found: list[dict[str, Any]], lost: int) -> None:
    """Writes while another exception is on its way, which matters more."""
    try:
        _write(path, found, lost)
    except OSError as error:
        _logger.warning("%s could not be written: %s", path, error)


def _write(path: Path, found: list[dict[str, Any]], lost: int) -> None:
    if lost:
        _logger.warning(
            "%s lacks the %d oldest collectives; give trace() a larger `capacity`", path, lost
        )
    content = {"traceEvents": found, "displayTimeUnit": "ms", "otherData": {"lost": lost}}
    path.write_text(json.dumps(content), encoding="utf-8")
