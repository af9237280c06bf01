"""The kernels for GPUs build, load and register against TensorFlow's wheel for GPUs."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

SCRIPT = pathlib.Path(__file__).parents[1] / "gpu" / "wheel.py"


@pytest.mark.skipif(
    not tf.test.is_built_with_cuda(), reason="TensorFlow for GPUs (`tensorflow`) is not installed"
)
@pytest.mark.timeout(900)
def test_kernels_build_and_load() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "registered" in done.stdout
