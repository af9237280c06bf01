"""Who is waited for: in `stats()` and in a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tfring as hvd

pytestmark = pytest.mark.many_ranks


@pytest.fixture
def with_faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Begins a new world with faults; the next test gets one without."""

    def begin(faults: str) -> None:
        monkeypatch.setenv("TFRING_FAULTS", faults)
        hvd.barrier()
        hvd.shutdown()
        hvd.init()

    yield begin
    monkeypatch.delenv("TFRING_FAULTS")
    hvd.barrier()
    hvd.shutdown()
    hvd.init()


def test_a_late_rank_is_waited_for_and_not_transfer(
    with_faults: Callable[[str], None], rank: int
) -> None:
    with_faults("rank=1 collective=3 do=late:200")
    for i in range(3):  # the first one's cost is not what this is about
        hvd.allreduce([1.0] * 1000, name=f"before {i}")
    before = hvd.stats()
    for i in range(3):
        hvd.allreduce([1.0] * 1000, name=f"after {i}")
    after = hvd.stats()
    waited = after.waited_for[1] - before.waited_for[1]
    if rank == 1:
        assert waited == 0
    else:
        assert 0.15 < waited < 2
    assert after.transfer_ns - before.transfer_ns < 0.15e9
    assert sum(after.waited_for.values()) == pytest.approx(after.wait_ns / 1e9)


def folder_of_all(tmp_path: Path) -> Path:
    return Path(hvd.broadcast_object(os.fspath(tmp_path), root_rank=0))


def test_each_rank_writes_its_own_trace(tmp_path: Path, rank: int, size: int) -> None:
    folder = folder_of_all(tmp_path)
    with hvd.trace(folder / "step.json"):
        hvd.allreduce(1.0, name="inside")
    hvd.barrier()
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"step.rank{r}.json" for r in range(size)]
    events = json.loads((folder / f"step.rank{rank}.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {rank}


def test_merged_trace_shows_all_ranks_and_who_was_last(
    with_faults: Callable[[str], None], tmp_path: Path, rank: int, size: int
) -> None:
    with_faults("rank=1 collective=2 do=late:200")
    folder = folder_of_all(tmp_path)  # two collectives
    with hvd.trace(folder / "step.json", merge=True):
        hvd.allreduce([1.0, 2.0], name="inside")
    hvd.barrier()
    assert [path.name for path in folder.iterdir()] == ["step.json"]
    events = json.loads((folder / "step.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(size))
    whole = [event for event in events if event["ph"] == "X" and "tensors" in event["args"]]
    assert [event["args"]["last_rank"] for event in whole] == [1] * size
    assert {event["args"]["bytes"] for event in whole} == {8}
    waits = {e["pid"]: e["dur"] for e in events if e["name"] == "wait for rank 1"}
    assert set(waits) == set(range(size)) - {1}
    assert min(waits.values()) > 150_000
