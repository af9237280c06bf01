"""Finds CUDA's run-time library and NCCL on a machine, wherever they came from."""

from __future__ import annotations

import ctypes.util
import glob
import os
import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of Python's packages; of the system, CUDA's toolkit, conda.
_PACKAGES = ("nvidia/*/lib", "nvidia_*/lib", "torch/lib")
_SYSTEM = (
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/targets/*/lib",
    "/usr/local/nccl*/lib",
    "/usr/local/lib",
    "/usr/lib/*-linux-gnu",
    "/usr/lib64",
    "/opt/nvidia/*/lib",
    "/opt/conda/lib",
)
_PYTHONS = (
    "/usr/lib/python3*/*-packages",
    "/usr/local/lib/python3*/*-packages",
    "/opt/*/lib/python3*/site-packages",
    "/root/.pyenv/versions/*/lib/python3*/site-packages",
)


def cudart(given: str | None) -> str | None:
    """Returns the path of libcudart.so, or None."""
    return _find(given, "TFRING_CUDART_LIBRARY", "cudart")


def nccl(given: str | None) -> str | None:
    """Returns the path of libnccl.so, or None."""
    return _find(given, "TFRING_NCCL_LIBRARY", "nccl")


def _find(given: str | None, variable: str, name: str) -> str | None:
    chosen = given or os.environ.get(variable)
    if chosen:
        return chosen
    for folder in _folders():
        found = [path for path in glob.glob(f"{folder}/lib{name}.so*") if _is_library(path)]
        if found:
            return max(found, key=_version)
    return ctypes.util.find_library(name)


def _folders() -> Iterator[str]:
    packages = [*sys.path, *(folder for one in _PYTHONS for folder in glob.glob(one))]
    for package in dict.fromkeys(packages):
        for inside in _PACKAGES:
            yield from sorted(glob.glob(f"{package or '.'}/{inside}"))
    yield from os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for variable in ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"):
        prefix = os.environ.get(variable)
        if prefix:
            yield from (f"{prefix}/lib", f"{prefix}/lib64")
    for pattern in _SYSTEM:
        yield from sorted(glob.glob(pattern), reverse=True)


def _is_library(path: str) -> bool:
    """Not a text for the linker."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _version(path: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", path.rsplit(".so", 1)[1])]
