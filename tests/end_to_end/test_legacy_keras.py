"""Runs tests/parallel/test_legacy_keras.py in a job whose Keras is Keras 2."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "parallel" / "test_legacy_keras.py"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("tf_keras") is None,
        reason="needs Keras 2: pip install --no-deps tf_keras, in the version of TensorFlow",
    ),
]


def test_keras_2_on_two_ranks(launcher: Any) -> None:
    launcher.env["TF_USE_LEGACY_KERAS"] = "1"
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-q", str(TESTS)]
    job = launcher.run("-np", "2", *command, timeout=580)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "skipped" not in job.stdout


def test_without_keras_2_the_variable_is_an_error(launcher: Any) -> None:
    launcher.env["TF_USE_LEGACY_KERAS"] = "1"
    script = launcher.script("import sys; sys.modules['tf_keras'] = None; import tfring.keras\n")
    job = launcher.run("-np", "1", sys.executable, script, timeout=60)
    assert job.returncode != 0
    assert "pip install tf_keras" in job.stderr
