"""The benchmark: its arguments, its arithmetic, its tables, and one tiny run of the real thing."""

from __future__ import annotations

import io
import json
import os
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfring import cli as console
from tfring.bench import (
    catalog,
    cli,
    command,
    mpi_launchers,
    options,
    resnet50,
    rounds,
    worker,
)
from tfring.bench.contenders.base import Prepared
from tfring.bench.contenders.memory_limit import HAND_OVER_MEMORY, MemoryLimit
from tfring.bench.group import Group, GroupError, shared_memory
from tfring.bench.problem import Problem
from tfring.bench.result import Run

PROBLEM = Problem("allreduce", "float32", (1,), 0, 1)
ONE = (("", ""),)


class Conversation(io.StringIO):
    """Gives lines to a worker, and keeps what it answers."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def __iter__(self) -> Conversation:
        return self

    def __next__(self) -> str:
        if not self._lines:
            raise StopIteration
        return self._lines.pop(0)


class Counted:
    """A contender of one rank that counts its calls."""

    rank, size, title = 0, 1, "counted"

    def __init__(self, factor: int = 1, paced: bool = True) -> None:
        self.calls, self._factor, self._paced = 0, factor, paced

    def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
        def call() -> list[np.ndarray]:
            self.calls += 1
            return [array * self._factor for array in inputs]

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
        (["--sizes", "4,9999999G"], "must fit into memory: 9999999 GiB on 2 ranks"),
        (["--dtype", "float32,half"], "bfloat16, int32, int64, int8, uint8. Received: 'half'"),
        (["--collective", "gather"], "Received: 'gather'"),
        (["--wire", "int8"], "Received: 'int8'"),
        (["--tensors", "0"], "Received: --tensors 0"),
        (["-np", "0"], "Received: -np 0"),
        (["-np", "2,-1"], "Received: -np 2,-1"),
        (["-np", "2,257"], "up to 256, such as 2 or 2,4. Received: -np 2,257"),
        (["--level", "gpu"], "some of engine, op, xla. Received: 'gpu'"),
        (["--repeat", "0"], "Received: --repeat 0"),
        (["--seconds", "0"], "Received: --seconds 0"),
        (["--seconds", "nan"], "Received: --seconds nan"),
        (["--plot", "x.xyz"], "ends in .png, .svg, .pdf. Received: x.xyz"),
        (["--json", "/no/such/folder/x.json"], "Received: /no/such/folder/x.json"),
        (["--json", "/"], "cannot write to /: it is a folder"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert (stopped.value.code, words in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("text", "types"), [("fp16", ("float16",)), ("bf16, float32", ("bfloat16", "float32"))]
)
def test_short_names_of_types(text: str, types: tuple[str, ...]) -> None:
    assert options.parse_dtypes(text, "--dtype", options.DTYPES) == types


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--collective", "grouped", "--sizes", "1M"], "--sizes are not those of grouped"),
        (["--tensors", "5"], "--tensors has no effect"),
        (["--collective", "broadcast", "--wire", "bf16"], "--wire has no effect"),
        (["--dtype", "float32,int32", "--wire", "bf16"], "--wire has no effect on int32"),
    ],
)
def test_options_without_effect_are_told(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rounds, "measure", lambda options, np, say: [])
    assert cli.main(arguments) == 0
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("load", "told"), [(4.0, False), (4.1, True)])
def test_a_busy_machine_is_told(
    load: float, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert command.run("bench", lambda: None, lambda _: None) == 0
    assert ("the load of this machine was 4.1" in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 0, "bench "),
        (["--help"], 0, "tfringrun -np 2"),
        (["--version"], 0, "tfring "),
        (["speed"], 2, "no command 'speed'; there is bench"),
    ],
)
def test_console_command(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert console.main(arguments) == code
    printed = capsys.readouterr()
    assert words in (printed.err if code else printed.out)


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        console.main(["bench", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines) <= 33, [line for line in lines if len(line) > 80]) == (True, [])


@pytest.mark.parametrize(
    ("collective", "np", "counts"),
    [
        ("allreduce", 2, [(1,), (256,)]),
        ("allgather", 2, [(2,), (256,)]),
        ("alltoall", 3, [(3,), (258,)]),
        ("grouped", 2, [(1,) * 5, (52,) * 5]),
    ],
)
def test_cases_hold_whole_elements(collective: str, np: int, counts: list[tuple[int, ...]]) -> None:
    chosen = options.Options(sizes=(4, 1024), tensors="5")
    cases = options.cases(chosen, collective, "float32", np)
    assert [case.counts for case in cases] == counts
    assert [case.size for case in cases] == [4 * sum(each) for each in counts]


def test_resnet50() -> None:
    assert (len(resnet50.shapes()), sum(resnet50.counts())) == (161, 25_557_032)
    (case,) = options.cases(options.Options(), "grouped", "float32", 2)
    assert case.label == "ResNet-50: 161 tensors, 97.5 MiB"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("collective", options.COLLECTIVES)
def test_expected_results(collective: str, dtype: str) -> None:
    size, counts = 3, (5, 6) if collective == "grouped" else (12,)
    ranks = [Problem(collective, dtype, counts, rank, size) for rank in range(size)]
    inputs = [problem.inputs() for problem in ranks]
    total = [sum(tensors) for tensors in zip(*inputs, strict=True)]
    for rank, problem in enumerate(ranks):
        mine = slice(4 * rank, 4 * rank + 4)
        right = {
            "allreduce": total,
            "grouped": total,
            "reducescatter": [total[0][mine]],
            "broadcast": inputs[0],
            "allgather": [np.concatenate([tensors[0] for tensors in inputs])],
            "alltoall": [np.concatenate([tensors[0][mine] for tensors in inputs])]
            if collective == "alltoall"
            else [],
        }[collective]
        worker.require_right(problem.expected(), right)
        assert [array.dtype for array in right] == [array.dtype for array in problem.expected()]


@pytest.mark.parametrize(
    ("levels", "kinds"),
    [(("engine",), ["limit", "engine"]), (("op",), ["limit", "op"]), ((), ["limit"])],
)
def test_levels_choose_contenders(levels: tuple[str, ...], kinds: list[str]) -> None:
    chosen, absent = catalog.choose(options.Options(levels=levels), 2)
    assert ([contender.kind for contender in chosen], absent) == (kinds, [])


@pytest.mark.parametrize(("np", "ways"), [(1, ["copy"]), (2, ["", "copy"])])
def test_a_rank_alone_has_no_limit(np: int, ways: list[str]) -> None:
    limit = catalog.choose(options.Options(levels=()), np)[0][0]
    assert [way for way, _ in limit.ways] == ways


def test_peers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(mpi_launchers, "find", lambda: [])
    monkeypatch.setattr(catalog.shutil, "which", lambda name: None)
    _, absent = catalog.choose(options.Options(peers=True), 2)
    assert [line.partition(":")[0] for line in absent] == ["MPI", "gloo", "oneCCL"]


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"mpiexec": "mpiexec (Open MPI) 5", "mpiexec.hydra": "HYDRA"}, ["openmpi", "mpich"]),
        ({"mpiexec": "HYDRA build details", "mpiexec.hydra": "HYDRA"}, ["mpich"]),
        ({"mpiexec": "Intel(R) MPI Library"}, ["intelmpi"]),
        ({"mpiexec": "something else"}, []),
        ({}, []),
    ],
)
def test_mpi_libraries_are_told_apart(
    said: dict[str, str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, words in said.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{words}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(mpi_launchers.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [launcher.name for launcher in mpi_launchers.find()] == names


def test_worker_checks_the_result() -> None:
    message = {"way": "", "collective": "allreduce", "counts": [4], "dtype": "float32"}
    worker.prepare(Counted(), message)
    with pytest.raises(RuntimeError, match="wrong result"):
        worker.prepare(Counted(factor=2), message)


def test_worker_times_each_call() -> None:
    contender = Counted()
    prepared = contender.prepare("", PROBLEM, [])
    assert len(worker.measure(prepared, 20)) == 20
    assert contender.calls == 23


def test_worker_takes_the_mean_where_ranks_do_not_wait() -> None:
    prepared = Counted(paced=False).prepare("", PROBLEM, [])
    assert len(worker.measure(prepared, 20)) == 1


def test_worker_measures_what_one_more_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    def advance(nanoseconds: int) -> None:
        now[0] += nanoseconds

    monkeypatch.setattr(worker.time, "perf_counter_ns", lambda: now[0])
    prepared = Prepared(lambda: advance(1700), lambda: None, base=lambda: advance(100), parts=16)
    assert worker.measure(prepared, 3) == [100, 100, 100]


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast", "reducescatter"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_limit_moves_what_it_must(
    collective: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 100_002
    monkeypatch.setenv("TFRING_SIZE", str(ranks))
    with shared_memory(ranks * count * 4) as path:
        for rank in range(ranks):
            monkeypatch.setenv("TFRING_RANK", str(rank))
            limit = MemoryLimit(path)
            problem = Problem(collective, "float32", (count,), rank, ranks)
            tensors = limit.tensors(problem)
            if rank == 0:
                for number, tensor in enumerate(tensors):
                    tensor[:] = number + 1
            limit.prepare("", problem, []).call()
        # Only an allreduce writes into what all share.
        total = ranks * (ranks + 1) / 2
        wanted = [total] * ranks if collective == "allreduce" else range(1, ranks + 1)
        found = [set(tensor.tolist()) for tensor in tensors]
        assert found == [{float(value)} for value in wanted]


def test_one_rank_hands_a_block_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFRING_SIZE", "3")
    with shared_memory(HAND_OVER_MEMORY) as path, futures.ThreadPoolExecutor() as pool:
        calls = []
        for rank in range(3):
            monkeypatch.setenv("TFRING_RANK", str(rank))
            calls.append(MemoryLimit(path).prepare("hand over", PROBLEM, []).call)
        for _ in range(3):
            for done in [pool.submit(call) for call in calls]:
                done.result(timeout=20)
        words = np.fromfile(path, np.int64)
    assert (words[0], words[8], set(words[16:])) == (3, 3, {2})


def test_group_that_cannot_start_says_why(tmp_path: Path) -> None:
    contender = catalog.Contender(
        "gloo", "gloo", "peer", ONE, ONE, ("sh", "-c", "echo no luck; exit 3")
    )
    ranks = Group(contender, 2, tmp_path, [])
    with pytest.raises(GroupError, match=r"exit code 3 at the start\n  \| no luck"):
        ranks.connect()
    ranks.kill()


@pytest.mark.parametrize(
    ("starter", "words"), [(("false",), "exit code 1"), (("sh", "-c", "sleep 60"), "did not start")]
)
def test_run_goes_on_without_a_peer(
    starter: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = catalog.Contender("gloo", "gloo", "peer", ONE, ONE, starter)
    limit = catalog.choose(options.Options(levels=()), 1)[0][0]
    monkeypatch.setattr(catalog, "choose", lambda options, np: ([broken, limit], []))
    monkeypatch.setattr("tfring.bench.group._PEER_START_S", 0.5)
    small = options.Options(sizes=(2**16,), rounds=1, round_seconds=0.001)
    (run,) = rounds.measure(small, 1, lambda line: None)
    assert [entry.key for entry in run.entries] == ["copy"]
    assert [words in line for line in run.absent] == [True]


def test_a_level_that_can_do_nothing_says_so() -> None:
    class Refusing:
        contender = catalog.Contender("op", "op", "own", (("xla", ", XLA"),), ONE, ())
        title = "op"

        def ask(self, **message: Any) -> list[dict[str, Any]]:
            return [{"unsupported": "no XLA version yet"}]

    turn = rounds._Turns(Refusing())  # type: ignore[arg-type]
    small = options.Options(sizes=(4,))
    with pytest.raises(GroupError, match="^nothing to measure: op, XLA: no XLA version yet$"):
        rounds._measure([turn], small, Run(2, "allreduce", "float32"), lambda line: None)


def test_worker_tells_of_what_a_peer_cannot_do() -> None:
    class Lacking(Counted):
        def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
            raise ValueError("no such type")

    asked = {"do": "prepare", "way": "", "collective": "allreduce", "counts": [1]}
    lines = [json.dumps({**asked, "dtype": "int8", "lenient": True}), '{"do": "end"}']
    stream = Conversation(lines)
    worker.serve(Lacking(), stream)
    assert stream.getvalue() == '{"unsupported": "ValueError: no such type"}\n'


def test_every_collective_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    tiny = "-np 2 --sizes 8,64K --level engine --repeat 1 --seconds 0.001 --details --check"
    lists = f"--collective {','.join(options.COLLECTIVES)} --tensors 3 --dtype float32,bfloat16"
    code = cli.main([*tiny.split(), *lists.split(), "--json", str(file)])
    found = {
        (run["collective"], run["dtype"], entry["contender"])
        for run in json.loads(file.read_text())["runs"]
        for entry in run["results"]
    }
    right = {
        (collective, dtype, contender)
        for collective in options.COLLECTIVES
        for dtype in ("float32", "bfloat16")
        for contender in (
            *(("engine.list", "engine.flat") if collective == "grouped" else ("engine",)),
            *("limit", "copy"),
        )
    }
    assert (code, found) == (0, right)
    assert "| bytes | limit | copy | engine |" in capsys.readouterr().out
