"""What building the kernels for GPUs says when it cannot, and after an upgrade.

That they build and load is tested by tests/gpu/wheel.py, where TensorFlow for GPUs is installed.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import stat
import types
from typing import Any

import pytest

from tfring import cli, gpu_build
from tfring.gpu_build import GpuBuildError


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "tfring" / "gpu"


class _TensorFlow:
    """A TensorFlow for GPUs, of any version."""

    def __init__(self, version: str, gpus: int = 0, folder: str = "/tensorflow") -> None:
        self.__version__ = version
        self.version = types.SimpleNamespace(GIT_VERSION=f"v{version}")
        self.sysconfig = types.SimpleNamespace(
            get_build_info=lambda: {"is_cuda_build": True},
            get_lib=lambda: folder,
            get_compile_flags=lambda: ["-I/tensorflow/include", "--std=c++17"],
        )
        self.config = types.SimpleNamespace(list_physical_devices=lambda kind: [kind] * gpus)
        self.loaded: list[str] = []
        self.errors = types.SimpleNamespace(OpError=ValueError)

    def load_library(self, path: str) -> None:
        self.loaded.append(path)


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> _TensorFlow:
    tf = _TensorFlow("2.99.0")
    monkeypatch.setattr("tfring._ops.tensorflow", lambda: tf)
    return tf


def _compiler(folder: pathlib.Path, says: str, code: int) -> str:
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\necho "{says}" >&2\nexit {code}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def _pretend_built(tf: _TensorFlow) -> pathlib.Path:
    path = gpu_build._path(gpu_build._Target.of(tf))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    stamp = {
        "tensorflow": tf.__version__,
        "folder": tf.sysconfig.get_lib(),
        "machine": platform.machine(),
        "tfring": "0.1.0",
    }
    (path.parent / "built.json").write_text(json.dumps(stamp))
    return path


# The other order would delete files of the TensorFlow that was just installed.
_ORDER = (
    r"2\.99\.0 in /tensorflow is built without CUDA. First run `pip uninstall tensorflow-cpu "
    r"tensorflow`, then `pip install '\.\[gpu\]'`"
)


def test_a_tensorflow_for_cpus(monkeypatch: pytest.MonkeyPatch, tensorflow: Any) -> None:
    tensorflow.sysconfig.get_build_info = lambda: {"is_cuda_build": False}
    with pytest.raises(GpuBuildError, match=_ORDER):
        gpu_build.build_gpu()
    assert gpu_build.load(tensorflow) is None


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("chosen", [None, "no-such-compiler"])
def test_no_compiler(monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path, chosen: Any) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    if chosen:
        monkeypatch.setenv("CXX", chosen)
    looked = "CXX=no-such-compiler" if chosen else "g\\+\\+, c\\+\\+, clang\\+\\+"
    with pytest.raises(GpuBuildError, match=rf"no C\+\+ compiler \({looked}\)\. Install g\+\+"):
        gpu_build.build_gpu()
    assert not cache.exists()


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize(
    ("header", "wheel"),
    [
        ("third_party/gpus/cuda/include/cuda_runtime.h", "nvidia-cuda-runtime-cu12"),
        ("crt/host_config.h", "nvidia-cuda-nvcc-cu12"),
        ("nv/target", "nvidia-cuda-cccl-cu12"),
        ("other.h", r"'\.\[gpu\]'"),
    ],
)
def test_no_header(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    cache: pathlib.Path,
    header: str,
    wheel: str,
) -> None:
    says = f"a.cc:1:10: fatal error: {header}: No such file or directory"
    monkeypatch.setenv("CXX", _compiler(tmp_path, says, 1))
    way = rf"Run `pip install {wheel}`( in tfring's folder)?\.$"
    with pytest.raises(GpuBuildError, match=rf"no header {header}\. {way}"):
        gpu_build.build_gpu()
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("tensorflow")
def test_an_error_of_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, "a.cc:7:1: error: no such member", 1))
    with pytest.raises(
        GpuBuildError, match=r"against TensorFlow 2\.99\.0: 'a\.cc:7:1: error: no such member'"
    ):
        gpu_build.build_gpu()


@pytest.mark.usefixtures("tensorflow")
def test_what_cannot_be_loaded_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, cache: pathlib.Path
) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, "", 0))
    monkeypatch.setattr(gpu_build, "_TRY", "raise SystemExit('undefined symbol: x')")
    with pytest.raises(GpuBuildError, match=r"built but cannot be loaded: undefined symbol: x$"):
        gpu_build.build_gpu()
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("tensorflow")
def test_a_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CXX", _compiler(tmp_path, "", 0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cli.main(["build-gpu"]) == 1
    said = capsys.readouterr().err
    assert "cannot be kept in" in said
    assert "Not a directory" in said
    assert "Set XDG_CACHE_HOME" in said
    assert said.count("\n") == 1


def test_a_cache_that_may_not_be_read_is_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, tensorflow: Any, cache: pathlib.Path
) -> None:
    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith(str(cache)):
            raise PermissionError(13, "Permission denied", str(path))
        return os_stat(path, *args, **kwargs)

    os_stat = os.stat
    monkeypatch.setattr(os, "stat", stat)
    assert gpu_build.load(tensorflow) is None


@pytest.mark.parametrize("stamp", ["", '{"tensorflow": "2.9', "{}", None])
def test_a_broken_stamp_says_nothing(tensorflow: Any, stamp: str | None) -> None:
    place = _pretend_built(tensorflow).parent / "built.json"
    place.unlink() if stamp is None else place.write_text(stamp)
    assert gpu_build.load(_TensorFlow("2.100.0")) is None


def test_a_build_that_was_killed_says_nothing(tensorflow: Any) -> None:
    _pretend_built(tensorflow).unlink()
    assert gpu_build.load(tensorflow) is None


def test_what_is_there_is_not_built_again(monkeypatch: pytest.MonkeyPatch, tensorflow: Any) -> None:
    path = _pretend_built(tensorflow)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert gpu_build.build_gpu() == str(path)
    assert gpu_build.load(tensorflow) == str(path)
    assert tensorflow.loaded == [str(path)]


def test_a_library_that_was_cut_short(monkeypatch: pytest.MonkeyPatch, tensorflow: Any) -> None:
    path = _pretend_built(tensorflow)
    (path.parent / "built.json").write_text('{"bytes": 5}')
    with pytest.raises(ImportError, match=r"is damaged: it has 0 bytes.*Run `tfring build-gpu`"):
        gpu_build.load(tensorflow)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(GpuBuildError, match="no-such-compiler"):  # it is built again
        gpu_build.build_gpu()
    path.write_bytes(b"12345")
    assert gpu_build.load(tensorflow) == str(path)


def test_after_an_upgrade_of_tensorflow(tensorflow: Any) -> None:
    _pretend_built(tensorflow)
    newer = _TensorFlow("2.100.0")
    with pytest.raises(
        ImportError,
        match=r"built for tfring 0\.1\.0 with TensorFlow 2\.99\.0, but this is tfring .* with "
        r"TensorFlow 2\.100\.0\. Run `tfring build-gpu` once",
    ):
        gpu_build.load(newer)
    assert newer.loaded == []
    assert cli.main(["build-gpu", "--remove"]) == 0
    assert gpu_build.load(newer) is None


def test_kernels_of_another_environment_say_nothing(tensorflow: Any) -> None:
    _pretend_built(tensorflow)
    assert gpu_build.load(_TensorFlow("2.100.0", folder="/elsewhere/tensorflow")) is None


def test_kernels_of_another_kind_of_machine_are_not_ours(
    monkeypatch: pytest.MonkeyPatch, tensorflow: Any
) -> None:
    place = _pretend_built(tensorflow)
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert gpu_build.load(tensorflow) is None
    assert gpu_build._path(gpu_build._Target.of(tensorflow)) != place


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_gpu_without_kernels_is_told_once(caplog: pytest.LogCaptureFixture, gpus: int) -> None:
    assert gpu_build.load(_TensorFlow("2.99.0", gpus)) is None
    assert ["tfring build-gpu" in record.getMessage() for record in caplog.records] == [True] * gpus


def test_the_command_says_one_line(
    monkeypatch: pytest.MonkeyPatch, tensorflow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cli.main(["build-gpu"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("tfring build-gpu: the GPU kernels cannot be built: there is no C++")
    assert said.err.count("\n") == 1
