"""The benchmark: its arguments, its arithmetic, its tables, and one tiny run of the real thing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from tfring.bench import catalog, cli, options, plot, report, result, rounds, worker
from tfring.bench.contenders.base import Prepared, UnsupportedError
from tfring.bench.contenders.memory_limit import MemoryLimit
from tfring.bench.group import Group, GroupError, shared_memory
from tfring.bench.result import Entry, Run


@pytest.fixture
def run() -> Run:
    """Two contenders and the limit at two sizes; the peer lacks the second."""
    entries = [
        Entry("limit", "limit", "limit"),
        Entry("engine", "tfring 1.0, engine", "own"),
        Entry("gloo", "gloo (torch 2)", "peer"),
    ]
    samples = {
        ("engine", 4): [2e-6, 1e-6, 3e-6],
        ("gloo", 4): [4e-6],
        ("engine", 2**20): [1e-3],
        ("limit", 2**20): [2.5e-4],
    }
    return Run(2, "float32", entries, samples, ["MPI: mpi4py is not installed"])


class Counted:
    """A contender of one rank that counts its calls."""

    rank, size, title = 0, 1, "counted"

    def __init__(self, factor: int = 1, paced: bool = True) -> None:
        self.calls, self._factor, self._paced = 0, factor, paced

    def prepare(self, way: str, array: np.ndarray) -> Prepared:
        if way == "none":
            raise UnsupportedError("no such way")

        def call() -> np.ndarray:
            self.calls += 1
            return array * self._factor

        return Prepared(call, call, self._paced)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4", (4,)),
        ("64K,4", (4, 65536)),
        ("1M,1MiB, 1mb", (2**20,)),
        ("100M", (104857600,)),
        ("2G", (2**31,)),
        ("12B", (12,)),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert options.parse_sizes(text) == sizes


@pytest.mark.parametrize("size", [4, 1023, 65536, 2**20, 3 * 2**30])
def test_size_text_reads_back(size: int) -> None:
    assert options.parse_sizes(options.size_text(size)) == (size,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "0"], "Received: '0'"),
        (["--sizes", "4,x"], "Received: 'x'"),
        (["--sizes", ""], "Received: ''"),
        (["--sizes", "6"], "multiples of 4, the bytes of one float32. Received: --sizes 6"),
        (["--sizes", "4", "--dtype", "int64"], "multiples of 8"),
        (["-np", "0"], "Received: -np 0"),
        (["-np", "2,-1"], "Received: -np 2,-1"),
        (["--level", "gpu"], "Received: --level gpu"),
        (["--repeat", "0"], "Received: --repeat 0"),
        (["--seconds", "0"], "Received: --seconds 0"),
        (["--seconds", "nan"], "Received: --seconds nan"),
        (["--json", "/no/such/folder/x.json"], "Received: /no/such/folder/x.json"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert (stopped.value.code, words in capsys.readouterr().err) == (2, True)


def test_program_knows_only_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.program(["speed"]) == 2
    assert "tfring bench" in capsys.readouterr().err


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
    assert result.bus_bandwidth(1000, 0.5, 4) == 3000


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
        "| bytes | limit | engine | gloo | engine / gloo |",
        "|---|---:|---:|---:|---:|",
        "| 4 B | - | 2.00 us | 4.00 us | 0.50 |",
        "| 1 MiB | 250 us | 1.00 ms | - | - |",
    ]


def test_details_leave_out_what_was_not_measured(run: Run) -> None:
    rows = report.details(run).splitlines()[2:]
    assert [row.split("|")[2].strip() for row in rows] == ["engine", "gloo", "limit", "engine"]


def test_footnotes_name_the_absent(run: Run) -> None:
    assert "not measured: MPI: mpi4py is not installed" in report.footnotes(run)


def test_json_holds_every_sample(run: Run) -> None:
    text = json.dumps(report.as_json([run], "the command"))
    found = json.loads(text)["runs"][0]["results"][0]
    assert (found["contender"], found["bytes"], found["samples"]) == (
        "engine",
        4,
        [2e-6, 1e-6, 3e-6],
    )
    assert (found["minimum"], found["median"]) == (1e-6, 2e-6)


def test_plot(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.save([run, run], str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("levels", "kinds"),
    [(("engine",), ["limit", "engine"]), (("op",), ["limit", "op"]), ((), ["limit"])],
)
def test_levels_choose_contenders(levels: tuple[str, ...], kinds: list[str]) -> None:
    chosen, absent = catalog.choose(options.Options(levels=levels), 2)
    assert ([contender.kind for contender in chosen], absent) == (kinds, [])


def test_peers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    _, absent = catalog.choose(options.Options(peers=True), 2)
    assert [line.partition(":")[0] for line in absent] == ["MPI", "gloo"]


def test_worker_checks_the_result() -> None:
    message = {"way": "", "count": 3, "dtype": "float32"}
    worker.prepare(Counted(), message)
    with pytest.raises(RuntimeError, match="wrong result"):
        worker.prepare(Counted(factor=2), message)


def test_worker_times_each_call() -> None:
    contender = Counted()
    prepared = contender.prepare("", np.zeros(1))
    assert len(worker.measure(prepared, 20)) == 20
    assert contender.calls == 23


def test_worker_takes_the_mean_where_ranks_do_not_wait() -> None:
    prepared = Counted(paced=False).prepare("", np.zeros(1))
    assert len(worker.measure(prepared, 20)) == 1


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 7, 100_003])
def test_limit_reduces(ranks: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFRING_SIZE", str(ranks))
    with shared_memory(ranks * count * 4) as path:
        contenders = []
        for rank in range(ranks):
            monkeypatch.setenv("TFRING_RANK", str(rank))
            contenders.append(MemoryLimit(path))
        array = np.zeros(count, np.float32)
        tensors = contenders[0]._tensors(array)
        for rank, tensor in enumerate(tensors):
            tensor[:] = rank + 1
        for contender in contenders:
            contender.prepare("", array).call()
        assert all((tensor == ranks * (ranks + 1) / 2).all() for tensor in tensors)


def test_group_that_cannot_start_says_why(tmp_path: Path) -> None:
    contender = catalog.Contender("gloo", "peer", ("",), ("sh", "-c", "echo no luck; exit 3"))
    group = Group(contender, 2, tmp_path, [])
    with pytest.raises(GroupError, match=r"exit code 3 at the start\n  \| no luck"):
        group.connect()
    group.close()


def test_run_goes_on_without_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = catalog.Contender("gloo", "peer", ("",), ("false",))
    limit = catalog.choose(options.Options(levels=()), 1)[0][0]
    monkeypatch.setattr(catalog, "choose", lambda options, np: ([limit, broken], []))
    small = options.Options(sizes=(2**16,), rounds=1, round_seconds=0.001)
    run = rounds.measure(small, 1, lambda line: None)
    assert ([entry.key for entry in run.entries], len(run.absent)) == (["limit"], 1)


def test_engine_and_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    tiny = "-np 2 --sizes 4,64K --level engine --repeat 1 --seconds 0.001 --details --json"
    code = cli.main([*tiny.split(), str(file)])
    found = {
        (entry["contender"], entry["bytes"])
        for entry in json.loads(file.read_text())["runs"][0]["results"]
    }
    assert (code, found) == (0, {("engine", 4), ("engine", 65536), ("limit", 65536)})
    assert "| bytes | limit | engine |" in capsys.readouterr().out
