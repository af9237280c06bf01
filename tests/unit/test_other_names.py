"""A Horovod script that only swaps the word horovod for tfring finds the same modules."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import tfring

SAME = [
    ("tfring.tensorflow.keras", "tfring.keras"),
    ("tfring.tensorflow.keras.callbacks", "tfring.callbacks"),
    ("tfring.keras.callbacks", "tfring.callbacks"),
]


@pytest.mark.parametrize(("name", "module"), SAME)
def test_it_is_the_same_module(name: str, module: str) -> None:
    assert importlib.import_module(name) is importlib.import_module(module)


@pytest.mark.parametrize(("name", "module"), SAME)
def test_it_can_be_the_first_import(name: str, module: str) -> None:
    parent, _, child = name.rpartition(".")
    code = f"import {name} as first, {module}; import sys\n"
    code += f"assert first is {module} is sys.modules[{parent!r}].{child}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_tensorflow_face() -> None:
    face = importlib.import_module("tfring.tensorflow")
    assert face.__all__ == tfring.__all__
    assert set(tfring.__all__) <= set(dir(face))
    different = [n for n in tfring.__all__ if getattr(face, n) is not getattr(tfring, n)]
    assert different == []


def test_the_tensorflow_face_loads_no_tensorflow() -> None:
    code = "import sys, tfring.tensorflow; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_unknown_names() -> None:
    face = importlib.import_module("tfring.tensorflow")
    with pytest.raises(AttributeError, match="no attribute 'allreduc'"):
        face.allreduc  # noqa: B018


def test_from_imports() -> None:
    from tfring.keras.callbacks import MetricAverageCallback
    from tfring.tensorflow.keras.callbacks import MetricAverageCallback as Same

    assert Same is MetricAverageCallback is tfring.callbacks.MetricAverageCallback
