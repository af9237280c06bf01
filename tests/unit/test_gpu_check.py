"""The script that checks the engine on real GPUs, as far as it goes without one."""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import stat
import time
from types import ModuleType

import pytest

_FOLDER = pathlib.Path(__file__).resolve().parents[1] / "gpu"
_TABLE = """
       bytes    tfring us      NCCL us  nonblocking    ratio
        1024         15.2          9.1         14.0    1.670  ok
  1073741824       9000.0       8000.0       8100.5    1.125  MISSED
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(_FOLDER))
    return importlib.import_module("run")


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(_FOLDER))
    for name in ("TFRING_NCCL_LIBRARY", "LD_LIBRARY_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return importlib.import_module("find")


def _options(run: ModuleType, folder: pathlib.Path, **others: object) -> argparse.Namespace:
    values = {"folder": folder, "jobs": 1, "double": False, "limit": 60, "only": ""}
    return argparse.Namespace(**{**values, "cudart": "/cudart", "nccl": None, **others})


def _program(folder: pathlib.Path, body: str) -> pathlib.Path:
    path = folder / "gpu_check"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_table_of_times_is_read(run: ModuleType) -> None:
    rows = run.Step("times_one", "passed", 1.0, _TABLE).rows()
    assert rows == [
        {
            "bytes": 1024.0,
            "tfring": 15.2,
            "nccl": 9.1,
            "nccl_nonblocking": 14.0,
            "ratio": 1.67,
            "verdict": "ok",
        },
        {
            "bytes": 1073741824.0,
            "tfring": 9000.0,
            "nccl": 8000.0,
            "nccl_nonblocking": 8100.5,
            "ratio": 1.125,
            "verdict": "MISSED",
        },
    ]


def test_a_step_that_fails_leaves_the_others_running(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    program = _program(tmp_path, 'echo "this is $1"; case $1 in *two*) exit 3;; esac')
    monkeypatch.setattr(run, "build", lambda *_: program)
    monkeypatch.setattr(run.find, "nccl", lambda _: "/nccl")
    steps = run._steps(_options(run, tmp_path), time.monotonic())
    assert [step.name for step in steps] == ["build", *(name for name, _, _ in run._STEPS)]
    for step in steps[1:]:
        failed = "two" in step.name
        assert step.outcome == ("failed (exit code 3)" if failed else "passed")
        assert step.text == f"this is {step.name}\n"


def test_a_step_that_hangs_is_ended(run: ModuleType, tmp_path: pathlib.Path) -> None:
    program = _program(tmp_path, "echo begun; sleep 60")
    step = run._run(program, "times_one", {"PATH": "/usr/bin:/bin"}, 0.3)
    assert step.outcome == "not done after 0 s"
    assert step.text == "begun\n"
    assert step.seconds < 30


def test_without_nccl_the_other_steps_run(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(run, "build", lambda *_: _program(tmp_path, "true"))
    monkeypatch.setattr(run.find, "nccl", lambda _: None)
    outcomes = {step.name: step.outcome for step in run._steps(_options(run, tmp_path), 1e18)}
    assert outcomes["build"] == "passed"
    assert outcomes["results_two_host"] == "passed"
    assert outcomes["results_two_nccl"].startswith("not run: no libnccl.so")


def test_reports_are_kept(run: ModuleType, tmp_path: pathlib.Path) -> None:
    steps = [run.Step("times_one", "passed", 1.0, _TABLE)]
    report = run._report(steps, "a GPU", 2.0)
    run._keep(tmp_path / "out", steps, "a GPU", report)
    told = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert told["steps"][0]["rows"][1]["verdict"] == "MISSED"
    text = (tmp_path / "out" / "gpu_check.txt").read_text()
    assert text.startswith("a GPU\ntimes_one             1.0 s  passed\n2 s in all\n")
    assert _TABLE in text


def test_what_is_given_is_taken(find: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFRING_NCCL_LIBRARY", "/of/the/variable.so")
    assert find.nccl("/given.so") == "/given.so"
    assert find.nccl(None) == "/of/the/variable.so"


def test_the_wheel_of_a_python_is_found(
    find: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    libraries = tmp_path / "nvidia" / "nccl" / "lib"
    libraries.mkdir(parents=True)
    (libraries / "libnccl.so").write_text("INPUT(libnccl.so.2)")  # a text for the linker
    for version in ("2", "2.9.1", "2.32.3"):
        (libraries / f"libnccl.so.{version}").write_bytes(b"\x7fELF")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert find.nccl(None) == str(libraries / "libnccl.so.2.32.3")
