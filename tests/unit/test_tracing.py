"""A trace of collectives: what stands in the file, and when it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tfring as hvd
from tfring import _records, tracing
from tfring._records import Record


def record(name: str, submitted: int, agreed: int, began: int, ended: int, last: int = 1) -> Record:
    return Record(name, "allreduce", 400, 200, 2, 0, last, submitted, agreed, began, ended)


def bars(rank: int, *records: Record) -> list[tuple[int, str, float]]:
    """(lane, name, duration in microseconds) of every bar."""
    found = [event for event in tracing.events(rank, records) if event["ph"] == "X"]
    return [(event["tid"], event["name"], event["dur"]) for event in found]


def test_a_collective_has_three_parts() -> None:
    assert bars(0, record("g", 1000, 5000, 6000, 8000)) == [
        (0, "g", 7.0),
        (0, "wait for rank 1", 4.0),
        (0, "queued", 1.0),
        (0, "allreduce", 2.0),
    ]


def test_parts_that_took_no_time_are_left_out() -> None:
    assert bars(0, record("g", 1000, 1000, 1000, 3000)) == [(0, "g", 2.0), (0, "allreduce", 2.0)]


def test_a_rank_does_not_wait_for_itself() -> None:
    names = [name for _, name, _ in bars(1, record("g", 1000, 2000, 2000, 3000, last=1))]
    assert names == ["g", "allreduce"]


def test_lanes_never_overlap() -> None:
    lanes = bars(
        0,
        record("c", 3000, 3000, 3000, 4000),
        record("a", 1000, 1000, 1000, 3000),
        record("b", 2000, 2000, 3000, 5000),
        record("d", 4000, 4000, 5000, 6000),
    )
    assert [(lane, name) for lane, name, _ in lanes if name in "abcd"] == [
        (0, "a"),
        (1, "b"),
        (0, "c"),
        (0, "d"),
    ]


def test_neighbouring_parts_meet_exactly() -> None:
    ns = (1_000_000_000_101, 1_000_000_333_217, 1_000_000_777_339, 1_000_001_999_951)
    _, wait, queued, moved = [e for e in tracing.events(3, [record("g", *ns)]) if e["ph"] == "X"]
    assert wait["ts"] + wait["dur"] == queued["ts"]
    assert queued["ts"] + queued["dur"] == moved["ts"]


def test_arguments_tell_bytes_and_the_last_rank() -> None:
    outer = next(e for e in tracing.events(3, [record("g", 1, 2, 3, 4)]) if e["ph"] == "X")
    assert outer["pid"] == 3
    assert outer["args"] == {
        "kind": "allreduce",
        "bytes": 400,
        "travel_bytes": 200,
        "tensors": 2,
        "last_rank": 1,
        "process_set_number": 0,
    }


def written(path: Path) -> list[str]:
    content: dict[str, Any] = json.loads(path.read_text())
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    return [e["name"] for e in content["traceEvents"] if e["ph"] == "X" and "tensors" in e["args"]]


def test_what_runs_in_the_block_is_written(world: None, tmp_path: Path) -> None:
    hvd.allreduce(1.0, name="before")
    with hvd.trace(tmp_path / "t.json"):
        hvd.allreduce(1.0, name="inside")
    hvd.allreduce(1.0, name="behind")
    (name,) = written(tmp_path / "t.json")
    assert "inside" in name


def test_an_exception_passes_and_the_file_is_written(world: None, tmp_path: Path) -> None:
    with pytest.raises(KeyError), hvd.trace(tmp_path / "t.json", merge=True):
        hvd.allreduce(1.0, name="inside")
        raise KeyError
    assert len(written(tmp_path / "t.json")) == 1


def test_a_folder_that_is_missing_is_told_at_the_start(world: None, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`path` must lie in a folder that exists"):  # noqa: SIM117
        with hvd.trace(tmp_path / "missing" / "t.json"):
            pytest.fail("the block was run")


def test_an_exception_is_not_replaced_by_that_of_the_file(
    world: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with pytest.raises(KeyError), hvd.trace(folder / "t.json"):
        folder.rmdir()
        raise KeyError
    assert "t.json could not be written" in caplog.text


def test_shutdown_in_the_block_loses_nothing(world: None, tmp_path: Path) -> None:
    with hvd.trace(tmp_path / "t.json"):
        hvd.allreduce(1.0, name="inside")
        hvd.shutdown()
    assert len(written(tmp_path / "t.json")) == 1


def test_dropped_records_are_told(
    world: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hvd.trace(tmp_path / "t.json", capacity=2):
        for i in range(5):
            hvd.allreduce(1.0, name=f"n{i}")
    assert [name[-1] for name in written(tmp_path / "t.json")] == ["3", "4"]
    assert json.loads((tmp_path / "t.json").read_text())["otherData"] == {"lost": 3}
    assert "lacks the 3 oldest collectives" in caplog.text


def test_one_at_a_time(world: None, tmp_path: Path) -> None:
    with (
        hvd.trace(tmp_path / "a.json"),
        pytest.raises(RuntimeError, match="another trace"),
        hvd.trace(tmp_path / "b.json"),
    ):
        pass
    with hvd.trace(tmp_path / "c.json"):
        pass
    assert written(tmp_path / "c.json") == []


def test_records_are_taken_once(world: None) -> None:
    recording = _records.Recording(8)
    hvd.allreduce(1.0, name="a")
    assert len(recording.take()) == 1
    hvd.allreduce(1.0, name="b")
    assert [one.kind for one in recording.stop()] == ["allreduce"]
    assert recording.stop() == []


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True])
def test_capacity_is_a_positive_integer(world: None, tmp_path: Path, capacity: Any) -> None:
    with (
        pytest.raises(ValueError, match="`capacity` must be a positive integer"),
        hvd.trace(tmp_path / "t.json", capacity=capacity),
    ):
        pass


def test_before_init_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(hvd.NotInitializedError), hvd.trace(tmp_path / "t.json"):
        pass
    assert list(tmp_path.iterdir()) == []
