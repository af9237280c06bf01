"""Whom the launcher blames, and what it says."""

from __future__ import annotations

import pytest

from tfring.launch.failure import (
    Exit,
    describe,
    describe_leaver,
    early_leaver,
    error_lines,
    first_failure,
    late_leaver,
    other_stalls,
    signal_name,
)


def exits(*codes_and_times):
    return [Exit(rank, "h", code, time) for rank, code, time in codes_and_times]


@pytest.mark.parametrize(
    ("failed", "claimed", "blamed"),
    [
        (exits((1, 1, 0.0), (0, 1, 0.1)), None, 1),
        (exits((0, 1, 0.0), (1, 1, 0.1)), 1, 1),
        (exits((0, 1, 0.0), (1, 137, 0.1)), None, 1),
        (exits((0, 1, 0.0), (1, 137, 5.0)), None, 0),
        (exits((0, 3, 0.0), (1, 139, 0.1)), None, 0),
        (exits((0, 1, 0.0), (1, 137, 0.1)), 0, 0),
        (exits((0, 1, 0.0), (1, 1, 0.1)), 7, 0),
    ],
    ids=["first", "claimed", "killed", "killed late", "own code", "claimed wins", "unknown"],
)
def test_first_failure(failed, claimed, blamed):
    assert first_failure(failed, claimed).rank == blamed


@pytest.mark.parametrize(
    ("failed", "claimed", "secondary", "blamed"),
    [
        (exits((0, 1, 0.0), (1, 5, 0.1)), None, {0}, 1),
        (exits((0, 1, 0.0), (1, 1, 0.1)), None, {0}, 1),
        (exits((0, 1, 0.0), (1, 137, 1.8)), None, {0}, 1),
        (exits((0, 1, 0.0), (2, 1, 0.1), (1, 5, 0.2)), None, {0, 2}, 1),
        (exits((0, 1, 0.0), (1, 1, 0.1), (2, 137, 0.2)), None, {0}, 2),
        (exits((1, 5, 0.0), (0, 1, 0.1)), None, {0}, 1),
        (exits((0, 1, 0.0), (2, 1, 0.1)), None, {0, 2}, 0),
        (exits((0, 1, 0.0), (1, 5, 0.1)), 0, {0}, 0),
    ],
    ids=[
        "own code",
        "python error",
        "killed late",
        "two secondary",
        "killed wins",
        "first anyway",
        "nothing else",
        "claimed wins",
    ],
)
def test_ranks_that_only_lost_a_peer_are_blamed_last(failed, claimed, secondary, blamed):
    assert first_failure(failed, claimed, secondary).rank == blamed


@pytest.mark.parametrize(
    ("left", "reason", "named"),
    [
        ([1], "allreduce 'g' failed: rank 1 (host h) has shut down", 1),
        ([2, 1], "rank 1 (host h) has shut down", 1),
        ([2, 1], "ranks 0, 1 and 2 have not come", 2),
        ([2, 1], "ranks 1 and 3 have not come", 1),
        ([2], "rank 1 (host h) has not come within 300 s", None),
        ([11], "rank 1 (host h) has shut down", None),
        ([2, 1], "the connection was closed", 2),
        ([], "rank 1 (host h) has shut down", None),
    ],
)
def test_early_leaver(left, reason, named):
    found = early_leaver(exits(*((rank, 0, 0.0) for rank in left)), reason)
    assert (found and found.rank) == named


@pytest.mark.parametrize(
    ("late", "reasons", "named"),
    [
        ([1], ["allreduce 'g' failed: rank 1 (host h) has shut down"], 1),
        ([1, 2], ["rank 2 (host h) has shut down", "rank 1 (host h) has shut down"], 2),
        ([1], ["rank 0 (host h) has shut down", "rank 1 (host h) has shut down"], 1),
        ([1], ["rank 1 has shut down"], 1),
        ([1], ["rank 11 (host h) has shut down"], None),
        ([1], ["after 8 s, the limit, it still waits for rank 1"], None),
        ([], ["rank 1 (host h) has shut down"], None),
    ],
)
def test_late_leaver(late, reasons, named):
    found = late_leaver(exits(*((rank, 143, 0.0) for rank in late)), reasons)
    assert (found and found.rank) == named


def test_a_leaver_that_the_launcher_ended_has_no_code_of_its_own():
    text = describe_leaver(Exit(1, "a", 143, 0.0), Exit(0, "b", 1, 0.1)).text
    assert text == "rank 1 on host a left early while rank 0 still needed it"


def test_words_name_who_left_and_who_needed_it():
    failure = describe_leaver(Exit(1, "a", 0, 0.0), Exit(0, "b", 1, 0.1, ["lost rank 1"]))
    assert failure.text == (
        "rank 1 on host a left early with exit code 0 while rank 0 still needed it"
    )
    assert (failure.code, failure.details) == (1, ["lost rank 1"])


@pytest.mark.parametrize(
    ("code", "name"), [(137, "SIGKILL"), (139, "SIGSEGV"), (1, None), (128, None), (255, None)]
)
def test_signal_name(code, name):
    assert signal_name(code) == name


def test_words_name_rank_host_and_code():
    failure = describe(Exit(3, "node7", 42, 0.0, ["oops"]))
    assert failure.text == "rank 3 on host node7 failed with exit code 42"
    assert failure.code == 42
    assert failure.details == ["oops"]


def test_words_name_the_signal():
    text = describe(Exit(0, "h", 137, 0.0)).text
    assert "rank 0 on host h was killed by SIGKILL (exit code 137)" in text


def test_ssh_failure_says_how_to_check():
    assert "BatchMode=yes node7 true" in describe(Exit(0, "node7", 255, 0.0, remote=True)).text
    assert "ssh" not in describe(Exit(0, "node7", 255, 0.0)).text


TRACEBACK = ["Traceback (most recent call last):", '  File "x", line 1', "ValueError: boom7"]
CHAIN = "During handling of the above exception, another exception occurred:"


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (["noise", *TRACEBACK], TRACEBACK),
        ([*TRACEBACK, "noise", *TRACEBACK], TRACEBACK),
        (["noise", *TRACEBACK, "", CHAIN, "", *TRACEBACK], [*TRACEBACK, "", CHAIN, "", *TRACEBACK]),
        (["a", "b"], ["a", "b"]),
        ([str(i) for i in range(50)], [str(i) for i in range(30, 50)]),
        ([], []),
    ],
    ids=["noise before", "last one", "chained", "no traceback", "long", "silent"],
)
def test_error_lines(tail, expected):
    assert error_lines(tail) == expected


START_UP = [
    "2026-01-02 03:04:05.678901: I tensorflow/core/util/port.cc:153] oneDNN operations are on.",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1767323045.678901   12345 cpu_feature_guard.cc:227] This TensorFlow binary is",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow",
    "W0000 00:00:1767323045.678901   12345 gpu_device.cc:2342] Cannot dlopen some GPU libraries.",
]


@pytest.mark.parametrize("said", [[], ["Killed by me"], ["E0000 00:00:1.2  3 x.cc:1] it failed"]])
def test_what_tensorflow_logs_as_it_starts_is_not_repeated(said):
    assert error_lines([*START_UP, *said, START_UP[2]]) == said


def test_a_huge_traceback_keeps_both_ends():
    lines = error_lines([TRACEBACK[0], *(f"  {i}" for i in range(500)), TRACEBACK[-1]])
    assert len(lines) == 80
    assert (lines[0], lines[20], lines[-1]) == (TRACEBACK[0], "...", TRACEBACK[-1])


WAITS = "allreduce 'g' (allreduce of float32 (), op=Sum): after 8 s, the limit, it still waits for"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (f"AbortedError: {WAITS} rank 1", f"{WAITS} rank 1"),
        (
            f"{{{{function_node __wrapped__X}}}} barrier 'b' failed: {WAITS} rank 1 [Op:X] name: ",
            f"barrier 'b' failed: {WAITS} rank 1",
        ),
        (
            f"at node 'a' defined at (most recent call last): {WAITS} rank 1\t [[{{{{node a}}}}]]",
            f"{WAITS} rank 1",
        ),
    ],
    ids=["plain", "eager", "graph"],
)
def test_other_stalls_are_shown_without_what_tensorflow_writes_around_them(words, line):
    failed = exits((0, 1, 0.0), (1, 1, 0.1))
    assert other_stalls(failed, 1, {0: words, 1: "lost"}) == [f"rank 0 on host h: {line}"]


@pytest.mark.parametrize(
    ("blamed", "secondary"),
    [(0, {1: WAITS}), (0, {0: WAITS}), (0, {0: WAITS, 1: "the store does not answer"})],
    ids=["failed by itself", "the only one", "no collective"],
)
def test_no_other_stalls(blamed, secondary):
    assert other_stalls(exits((0, 1, 0.0), (1, 1, 0.1)), blamed, secondary) == []


def test_many_other_stalls_are_cut():
    failed = exits(*((rank, 1, 0.0) for rank in range(30, -1, -1)))
    lines = other_stalls(failed, 0, dict.fromkeys(range(31), WAITS))
    assert [line.split(" on ")[0] for line in lines] == [
        *(f"rank {rank}" for rank in range(1, 9)),
        "... and 22 ranks more",
    ]
