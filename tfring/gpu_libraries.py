"""Where pip puts NVIDIA's libraries and headers, found without importing or loading anything."""

from __future__ import annotations

import importlib.util
import pathlib

__all__ = ["cudart", "include_folders", "nccl"]


def cudart() -> str | None:
    """Returns the path of the CUDA run-time library of the NVIDIA wheels, or None."""
    return _library("cuda_runtime", "libcudart.so.12")


def nccl() -> str | None:
    """Returns the path of the NVIDIA wheels' `libnccl.so.2`, or None."""
    return _library("nccl", "libnccl.so.2")


def include_folders() -> list[str]:
    """Returns the folders of headers that NVIDIA wheels have installed."""
    return sorted(str(path) for root in _roots() for path in root.glob("*/include"))


def _library(part: str, name: str) -> str | None:
    for root in _roots():
        path = root / part / "lib" / name
        if path.exists():
            return str(path)
    return None


def _roots() -> list[pathlib.Path]:
    """The folders `nvidia` that Python would import from; each wheel adds to one of them."""
    spec = importlib.util.find_spec("nvidia")
    locations = None if spec is None else spec.submodule_search_locations
    return [pathlib.Path(folder) for folder in locations or ()]
