"""Runs one file of unit tests under Bazel: `run_pytest.py tests/unit/test_x.py`."""

import os
import pathlib
import sys

import pytest

# Bazel starts tests in the folder of the repository; the sources lie there beside what was built.
os.environ.setdefault("HOME", os.environ.get("TEST_TMPDIR", "/tmp"))
root = pathlib.Path.cwd()
os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
sys.exit(pytest.main(["-q", "-c", str(root / "pyproject.toml"), *sys.argv[1:]]))
