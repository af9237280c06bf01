"""What a TensorFlow or a system that lacks something is told; both are pretended."""

from __future__ import annotations

import ctypes
import pathlib
import sys
import types
from typing import Any

import pytest
import tensorflow as tf

from tfring import _loading, _native, _ops, _xla, _xla_calls, _xla_probe

OPS = "libtfring_tensorflow.so"


class _TensorFlow:
    """A TensorFlow from the future."""

    __version__ = "2.99.0-dev20991231"
    errors = tf.errors

    def __init__(self, folder: str = tf.sysconfig.get_lib(), error: Exception | None = None):
        self.sysconfig = types.SimpleNamespace(get_lib=lambda: folder)
        self._error = error

    def load_op_library(self, path: str) -> str:
        if self._error is not None:
            raise self._error
        return f"the ops of {path}"


@pytest.mark.parametrize(
    ("holds", "says"),
    [
        (None, "none is installed. Run `pip install"),
        ("import no_such_package", "it needs: No module named 'no_such_package'. Install Tens"),
    ],
)
def test_no_tensorflow_and_a_broken_one(
    holds: str | None, says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    if holds is not None:
        (tmp_path / "tensorflow.py").write_text(holds)
    with pytest.raises(ImportError, match=says):
        _ops.tensorflow()


def test_an_unknown_version_is_tried() -> None:
    assert _loading.load_ops(_TensorFlow(), OPS) == f"the ops of {OPS}"


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.NotFoundError(None, None, f"{OPS}: undefined symbol: TF_NewStatus"),
        OSError(f"{OPS}: undefined symbol: TF_NewStatus"),
        RuntimeError(f"{OPS}: undefined symbol: TF_NewStatus"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_symbol_that_is_gone(error: Exception) -> None:
    told = r"TensorFlow 2\.99\.0-dev20991231 in .*: undefined symbol: TF_NewStatus\. Use a Tens"
    with pytest.raises(ImportError, match=told):
        _loading.load_ops(_TensorFlow(error=error), OPS)


def test_a_callback_of_another_type_is_found_before_it_crashes(tmp_path: pathlib.Path) -> None:
    other = pathlib.Path(_native.library_path("libtfring.so"))
    (tmp_path / "libtensorflow_framework.so.2").symlink_to(other)
    with pytest.raises(ImportError, match=r"2\.99\.0.*does not tell by a std::function"):
        _loading.load_ops(_TensorFlow(str(tmp_path)), OPS)


def test_a_tensorflow_whose_library_is_elsewhere(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ImportError, match="its library cannot be opened .*No such file"):
        _loading.load_ops(_TensorFlow(str(tmp_path)), OPS)


@pytest.mark.parametrize("name", ["GLIBC_2.38", "GLIBCXX_3.4.33", "CXXABI_1.3.15"])
def test_a_system_that_is_too_old(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def cdll(path: str) -> ctypes.CDLL:
        raise OSError(f"/lib/libc.so.6: version `{name}' not found (required by {path})")

    monkeypatch.setattr(ctypes, "CDLL", cdll)
    with pytest.raises(ImportError, match=rf"on a newer system .*{name}' not.*pip install \."):
        _loading.open_library("libtfring.so")


def test_a_library_that_is_damaged(tmp_path: pathlib.Path) -> None:
    (tmp_path / "libtfring.so").write_text("nothing")
    with pytest.raises(ImportError, match=r"libtfring\.so cannot be opened: .*Reinstall tfring"):
        _loading.open_library(str(tmp_path / "libtfring.so"))


def _without(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.delattr(__import__(module, fromlist=["_"]), name)


HOOKS = [
    ("tensorflow.python.ops.control_flow_util", "GetContainingXLAContext"),
    ("tensorflow.python.ops.control_flow_ops", "XLAControlFlowContext"),
    ("tensorflow.compiler.tf2xla.ops.gen_xla_ops", "xla_call_module"),
]


@pytest.mark.parametrize(("module", "name"), HOOKS, ids=lambda part: part.split(".")[-1])
def test_a_hook_of_xla_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    _without(monkeypatch, module, name)
    known = {"xla_call_module": "XlaCallModule"}.get(name, name)
    assert known in _xla._install.__wrapped__()


def test_a_registry_of_xla_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(tf, "__file__", str(tmp_path / "__init__.py"))
    assert "library cannot be opened" in _xla._register()
    other = pathlib.Path(_native.library_path("libtfring.so"))
    (tmp_path / "libtensorflow_cc.so.2").symlink_to(other)
    assert "has no xla::CustomCallTargetRegistry" in _xla._register()


def test_an_error_in_the_probe_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(fails: bool) -> Any:
        raise ValueError("of another kind\nand more")

    monkeypatch.setattr(_xla_calls, "probe", probe)
    assert _xla_probe.failure() == "a tiny compiled function failed: of another kind"
