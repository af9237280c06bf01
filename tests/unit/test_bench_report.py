"""What the benchmark says: summaries, tables, promises, JSON, pictures."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tfring.bench import checks, cli, options, plot, report, result, rounds
from tfring.bench.result import Entry, Run


@pytest.fixture
def run() -> Run:
    """Two contenders and the limit at two sizes; the peer lacks the second."""
    entries = [
        Entry("limit", "limit", "limit", "limit", "limit"),
        Entry("engine", "engine", "tfring 1.0, engine", "own", "engine"),
        Entry("gloo", "gloo", "gloo (torch 2)", "peer", "gloo"),
    ]
    samples = {
        ("engine", 4): [2e-6, 1e-6, 3e-6],
        ("gloo", 4): [4e-6],
        ("engine", 2**20): [1e-3],
        ("limit", 2**20): [2.5e-4],
    }
    labels = {4: "4 B", 2**20: "1 MiB"}
    return Run(2, "allreduce", "float32", entries, samples, labels, ["MPI: no mpi4py"])


@pytest.fixture
def lists() -> Run:
    """A list of tensors: the engine, one peer in three ways, and the limit."""
    entries = [
        Entry("limit", "limit", "limit", "limit", "limit"),
        Entry("engine.list", "engine, list", "tfring", "own", "engine", "list"),
        Entry("engine.flat", "engine, flat", "tfring", "own", "engine", "flat"),
        Entry("mpich.each", "MPICH 5, per tensor", "MPICH 5", "peer", "mpich", "each"),
        Entry("mpich.packed", "MPICH 5, packed", "MPICH 5", "peer", "mpich", "packed"),
        Entry("mpich.flat", "MPICH 5, flat", "MPICH 5", "peer", "mpich", "flat"),
    ]
    medians = dict(zip([entry.key for entry in entries], (5, 12, 11, 40, 110, 20), strict=True))
    samples = {(key, 100): [median / 1e3] for key, median in medians.items()}
    return Run(2, "grouped", "float32", entries, samples, {100: "5 tensors"})


def test_summary_takes_samples() -> None:
    samples = [float(i) for i in range(1, 201)]
    random.Random(1).shuffle(samples)
    assert result.summarize(samples) == result.Summary(200, 1.0, 100.0, 198.0)


def test_summary_of_one() -> None:
    assert result.summarize([2.0]) == result.Summary(1, 2.0, 2.0, 2.0)


def test_a_call_takes_as_long_as_its_slowest_rank() -> None:
    assert result.slowest([[1_000, 5_000], [2_000, 4_000]]) == [2e-6, 5e-6]


def test_bandwidths() -> None:
    assert result.algorithm_bandwidth(1000, 0.5) == 2000


@pytest.mark.parametrize(
    ("collective", "bandwidth"),
    [
        ("allreduce", 3000),
        ("grouped", 3000),
        ("allgather", 1500),
        ("reducescatter", 1500),
        ("alltoall", 1500),
        ("broadcast", 2000),
    ],
)
def test_bus_bandwidth(collective: str, bandwidth: float) -> None:
    assert result.bus_bandwidth(collective, 1000, 0.5, 4) == bandwidth


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.4e-7, "0.24 us"),
        (4.52e-5, "45.2 us"),
        (1.2e-3, "1.20 ms"),
        (0.683, "683 ms"),
        (2, "2.00 s"),
    ],
)
def test_time_text(seconds: float, text: str) -> None:
    assert report.time_text(seconds) == text


def test_table(run: Run) -> None:
    assert report.markdown(run).splitlines() == [
        "| bytes | limit | engine | gloo | engine / limit | engine / best peer |",
        "|---|---:|---:|---:|---:|---:|",
        "| 4 B | - | 2.00 us | 4.00 us | - | 0.50 |",
        "| 1 MiB | 250 us | 1.00 ms | - | 4.00 | - |",
    ]


def test_table_of_lists(lists: Run) -> None:
    assert report.markdown(lists).splitlines() == [
        "| tensors |  | one call | per tensor | packed | flat buffer |",
        "|---|---:|---:|---:|---:|---:|",
        "| 5 tensors | limit | - | - | - | 5.00 ms |",
        "|  | engine | 12.0 ms | - | - | 11.0 ms |",
        "|  | MPICH 5 | - | 40.0 ms | 110 ms | 20.0 ms |",
    ]


def test_checks(run: Run, lists: Run) -> None:
    lists.samples["engine.list", 100] = [0.05]
    found = [(check.what, check.measured, check.kept) for check in checks.checks([run, lists])]
    assert found == [
        ("2 ranks, 4 B: engine / gloo", "0.50", True),
        # The flat buffer is faster, but not the same work.
        ("2 ranks, 5 tensors: engine / MPICH 5, per tensor", "1.25", False),
    ]


def test_section_can_be_pasted(run: Run, lists: Run) -> None:
    text = report.section([run, lists], 5, "tfring bench", "out.png")
    places = [text.index(word) for word in ("| 4 B", "| 5 tensors", "(out.png)", "* engine")]
    assert places == sorted(places)


def test_details_leave_out_what_was_not_measured(run: Run) -> None:
    rows = report.details(run).splitlines()[2:]
    assert [row.split("|")[2].strip() for row in rows] == ["engine", "gloo", "limit", "engine"]


@pytest.mark.parametrize(
    ("per", "cells"),
    [
        ("call", ["3", "1.00 us", "2.00 us", "3.00 us (slowest)"]),
        ("turn", ["3 turns", "1.00 us", "2.00 us", "-"]),
        ("difference", ["3", "-", "2.00 us", "-"]),
    ],
)
def test_details_tell_what_a_sample_is(run: Run, per: str, cells: list[str]) -> None:
    run.entries[1] = dataclasses.replace(run.entries[1], per=per)
    row = report.details(run).splitlines()[2]
    assert [cell.strip() for cell in row.split("|")[3:7]] == cells


def test_a_difference_below_zero_is_no_time(run: Run) -> None:
    run.samples["engine", 4] = [-1e-6, -2e-6, 1e-6]
    run.entries[1] = dataclasses.replace(run.entries[1], per="difference")
    assert run.median("engine", 4) is None
    assert "| 4 B | engine | 3 | - | - | - | - | - |" in report.details(run)
    assert "| 4 B | - | - |" in report.markdown(run)


@pytest.mark.parametrize(
    ("speed", "text"),
    [(12.3, "12.3 B/s"), (1.5e5, "150 kB/s"), (2e6, "2.00 MB/s"), (1.234e10, "12.3 GB/s")],
)
def test_speed_text(speed: float, text: str) -> None:
    assert report.speed_text(speed) == text


def test_hand_overs_of_all_turns_are_told_once(run: Run) -> None:
    run.hand_overs = [4e-5, 2e-5, 9e-5]
    line = next(x for x in report.footnotes([run, run]).splitlines() if "core to another" in x)
    assert "256 KiB, then another reads them: median 40.0 us, from 20.0 us to 90.0 us" in line


def test_footnotes_name_the_absent(run: Run) -> None:
    assert "not measured: MPI: no mpi4py" in report.footnotes([run])


def test_json_holds_every_sample(run: Run) -> None:
    text = json.dumps(report.as_json([run], "the command"))
    found = json.loads(text)["runs"][0]["results"][0]
    assert (found["contender"], found["bytes"], found["samples"]) == (
        "engine",
        4,
        [2e-6, 1e-6, 3e-6],
    )
    assert (found["minimum"], found["median"]) == (1e-6, 2e-6)


def test_plot(run: Run, lists: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.save([run, run, lists], str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_what_one_rank_measures_is_said(run: Run) -> None:
    alone = dataclasses.replace(run, np=1)
    assert "A rank alone moves nothing" in report.caption(alone, 3)
    bus = [row.split("|")[-2].strip() for row in report.details(alone).splitlines()[2:]]
    assert set(bus) == {"-"}


def test_collectives_come_in_the_order_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(options: options.Options, np: int, say: Any) -> list[Run]:
        return [dataclasses.replace(run, np=np, collective=c) for c in options.collectives]

    monkeypatch.setattr(rounds, "measure", measured)
    cli.main(["-np", "2,4", "--collective", "alltoall,allreduce"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("**")]
    assert [line.partition(" of")[0].strip("*") for line in lines] == [
        *["Alltoall"] * 2,
        *["Allreduce (sum)"] * 2,
    ]
