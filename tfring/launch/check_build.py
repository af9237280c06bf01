"""The report of `tfringrun --check-build`: what is installed, and what works with it."""

from __future__ import annotations

import platform
import subprocess
import sys

from tfring import _native
from tfring.version import __version__

# In a process of its own: the launcher never imports TensorFlow, and a broken one may crash.
_PROBE = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
print("ok TensorFlow", tf.__version__)
import keras
print("ok Keras", keras.__version__)
from tfring import _ops, _xla
_ops.library()
print("ok TensorFlow ops")
missing = _xla.unusable()
if missing:
    raise SystemExit(missing)
print("ok XLA (jit_compile)")
"""
_PROBE_TIMEOUT_S = 120.0
_ITEMS = ("TensorFlow", "Keras", "TensorFlow ops", "XLA (jit_compile)")


def report() -> str:
    """Describes tfring, its engine and the TensorFlow that it finds, as text of many lines."""
    lines = [
        f"tfring {__version__}",
        f"    Python {platform.python_version()} ({sys.executable})",
        f"    {platform.platform()}",
        "",
        *_engine(),
        "",
        *_tensorflow(),
    ]
    return "\n".join(lines)


def _engine() -> list[str]:
    try:
        info: str = _native.engine().tfr_build_info().decode()
    except (ImportError, OSError, AttributeError) as error:
        return ["Engine:", f"    [ ] libtfring.so: {error}"]
    return ["Engine:", "    [X] libtfring.so", *(f"        {line}" for line in info.splitlines())]


def _tensorflow() -> list[str]:
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        output, errors = probe.stdout, probe.stderr.strip()
    except subprocess.TimeoutExpired:
        output, errors = "", f"importing it took over {_PROBE_TIMEOUT_S:g} s"
    found = [line[3:] for line in output.splitlines() if line.startswith("ok ")]
    lines = ["TensorFlow:", *(f"    [X] {item}" for item in found)]
    missing = _ITEMS[len(found) :]
    if missing:
        reason = errors.splitlines()[-1] if errors else "no reason given"
        lines.append(f"    [ ] {missing[0]}: {reason}")
    return lines
