"""The report of `tfringrun --check-build`: what is installed, and what works with it."""

from __future__ import annotations

import ctypes.util
import platform
import subprocess
import sys

from tfring import _native, gpu_libraries
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
from tfring import gpu_build
is_cuda = tf.sysconfig.get_build_info().get("is_cuda_build", False)
try:
    print("gpu", "built" if gpu_build.is_built(tf) else "not built" if is_cuda else "no CUDA")
except gpu_build.GpuBuildError:
    print("gpu not built")
missing = _xla.unusable()
if missing:
    raise SystemExit(missing)
print("ok XLA (jit_compile)")
"""
_PROBE_TIMEOUT_S = 120.0
_KERNELS = {
    "built": "[X] kernels for GPUs",
    "not built": "[ ] kernels for GPUs: not built. Run `tfring build-gpu` on a machine with GPUs",
    "no CUDA": "[ ] kernels for GPUs: this TensorFlow is built without CUDA",
    "": "[ ] kernels for GPUs: TensorFlow or its ops cannot be used",
}
_ITEMS = ("TensorFlow", "Keras", "TensorFlow ops", "XLA (jit_compile)")


def report() -> str:
    """Describes tfring, its engine and the TensorFlow that it finds, as text of many lines."""
    tensorflow, kernels = _tensorflow()
    lines = [
        f"tfring {__version__}",
        f"    Python {platform.python_version()} ({sys.executable})",
        f"    {platform.platform()}",
        "",
        *_engine(),
        "",
        *tensorflow,
        "",
        *_gpu(kernels),
    ]
    return "\n".join(lines)


def _engine() -> list[str]:
    try:
        info: str = _native.engine().tfr_build_info().decode()
    except (ImportError, OSError, AttributeError) as error:
        return ["Engine:", f"    [ ] libtfring.so: {error}"]
    return ["Engine:", "    [X] libtfring.so", *(f"        {line}" for line in info.splitlines())]


def _gpu(kernels: str) -> list[str]:
    """What is there for GPUs; finding it needs none.

    Args:
        kernels: A key of `_KERNELS`.
    """
    lines = ["GPU:", f"    {_KERNELS[kernels]}"]
    for name, wheel, system in (
        ("NCCL", gpu_libraries.nccl(), "libnccl.so.2"),
        ("CUDA run-time", gpu_libraries.cudart(), "libcudart.so.12"),
    ):
        path = wheel or _of_the_system(system)
        found = f"[X] {name}: {path}" if path else f"[ ] {name}: not found"
        lines.append(f"    {found}")
    return lines


def _of_the_system(name: str) -> str | None:
    short = name.removeprefix("lib").partition(".")[0]
    return name if ctypes.util.find_library(short) == name else None  # no other version


def _tensorflow() -> tuple[list[str], str]:
    """What is told of TensorFlow, and what it says of kernels for GPUs."""
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
    said = [line[4:] for line in output.splitlines() if line.startswith("gpu ")]
    return lines, said[0] if said else ""
