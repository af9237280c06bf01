"""The engine's C face (`custom_ops/core/tfring.h`) through ctypes; needs no TensorFlow."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)
from typing import Any

from tfring import _loading, errors
from tfring.version import __version__

_ERROR_TEXT_BYTES = 4096


class Error(Structure):
    """`tfr_error`."""

    _fields_ = [("code", c_int32), ("text", c_char * _ERROR_TEXT_BYTES)]


class Bytes(Structure):
    """`tfr_bytes`."""

    _fields_ = [("data", c_void_p), ("size", c_uint64)]


class Config(Structure):
    """`tfr_config`."""

    _fields_ = [
        ("rank", c_int32),
        ("size", c_int32),
        ("host", c_char_p),
        ("store", c_char_p),
        ("secret", c_char_p),
        ("session", c_char_p),
        ("interfaces", c_char_p),
        ("faults", c_char_p),
        ("start_timeout_s", c_double),
        ("warn_after_s", c_double),
        ("fail_after_s", c_double),
        ("chunk_bytes", c_uint64),
        ("shared_memory", c_int32),
        ("spin_us", c_int32),
        ("host_connections", c_int32),
        ("host_leaders", c_int32),
        ("host_algorithm", c_int32),
        ("depth", c_int32),
        ("copy_threads", c_int32),
        ("direct_bytes", c_int64),
        ("cudart_library", c_char_p),
        ("nccl_library", c_char_p),
        ("gpu_data", c_int32),
        ("gpu_hosts_by_tcp", c_int32),
    ]


class Info(Structure):
    """`tfr_info`."""

    _fields_ = [
        (name, c_int32)
        for name in (
            "rank",
            "size",
            "local_rank",
            "local_size",
            "cross_rank",
            "cross_size",
            "host_count",
            "homogeneous",
        )
    ]


class Stats(Structure):
    """`tfr_stats`."""

    _fields_ = [
        (name, c_uint64)
        for name in (
            "collectives",
            "tensors",
            "control_messages",
            "payload_bytes",
            "travel_bytes",
            "wire_bytes_sent",
            "staging_bytes",
            "staging_bytes_peak",
            "wait_ns",
            "transfer_ns",
            "queue_ns",
        )
    ]


class Record(Structure):
    """`tfr_record`."""

    _fields_ = [
        ("name", c_char * 128),
        ("submitted_ns", c_int64),
        ("agreed_ns", c_int64),
        ("began_ns", c_int64),
        ("ended_ns", c_int64),
        ("bytes", c_uint64),
        ("travel_bytes", c_uint64),
        ("group", c_uint64),
        ("kind", c_int32),
        ("tensors", c_int32),
        ("last_rank", c_int32),
        ("reserved", c_int32),
    ]


class Tensor(Structure):
    """`tfr_tensor`."""

    _fields_ = [
        ("input", c_void_p),
        ("output", c_void_p),
        ("dims", POINTER(c_int64)),
        ("ndims", c_int32),
        ("dtype", c_int32),
    ]


class Request(Structure):
    """`tfr_request`."""

    _fields_ = [
        ("name", c_char_p),
        ("kind", c_int32),
        ("reduce_op", c_int32),
        ("root", c_int32),
        ("tensor_count", c_int32),
        ("tensors", POINTER(Tensor)),
        ("process_set", c_int64),
        ("prescale", c_double),
        ("postscale", c_double),
        ("splits", POINTER(c_int64)),
        ("counts", POINTER(c_int64)),
        ("fault", c_char_p),
        ("allocate", c_void_p),
        ("done", c_void_p),
        ("user", c_void_p),
        ("wire_dtype", c_int32),
        ("patience", c_int32),
        ("device", c_int32),
        ("stream", c_void_p),
    ]


_ERROR = POINTER(Error)
# name: (result, arguments). Handles are void pointers.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tfr_version": (c_char_p, []),
    "tfr_build_info": (c_char_p, []),
    "tfr_store_serve": (
        c_int,
        [c_char_p, c_int32, c_char_p, POINTER(c_void_p), POINTER(c_int32), _ERROR],
    ),
    "tfr_store_server_close": (None, [c_void_p]),
    "tfr_store_connect": (c_int, [c_char_p, c_char_p, c_double, POINTER(c_void_p), _ERROR]),
    "tfr_store_client_close": (None, [c_void_p]),
    "tfr_store_set": (c_int, [c_void_p, c_char_p, c_char_p, c_uint64, _ERROR]),
    "tfr_store_set_once": (
        c_int,
        [c_void_p, c_char_p, c_char_p, c_uint64, POINTER(c_int32), _ERROR],
    ),
    "tfr_store_get": (c_int, [c_void_p, c_char_p, c_double, POINTER(Bytes), _ERROR]),
    "tfr_bytes_free": (None, [POINTER(Bytes)]),
    "tfr_world_create": (c_int, [POINTER(Config), POINTER(c_void_p), _ERROR]),
    "tfr_world_info": (None, [c_void_p, POINTER(Info)]),
    "tfr_world_hosts": (None, [c_void_p, POINTER(c_int32)]),
    "tfr_world_stats": (None, [c_void_p, POINTER(Stats)]),
    "tfr_world_waits": (None, [c_void_p, POINTER(c_uint64)]),
    "tfr_world_record": (c_int, [c_void_p, c_uint64, _ERROR]),
    "tfr_world_records": (
        c_uint64,
        [c_void_p, POINTER(Record), c_uint64, POINTER(c_uint64)],
    ),
    "tfr_world_abort": (None, [c_void_p, c_char_p]),
    "tfr_world_shutdown": (None, [c_void_p]),
    "tfr_world_after_fork": (None, [c_void_p]),
    "tfr_process_set_add": (
        c_int,
        [c_void_p, POINTER(c_int32), c_int32, POINTER(c_int64), _ERROR],
    ),
    "tfr_process_set_remove": (c_int, [c_void_p, c_int64, _ERROR]),
    "tfr_process_set_info": (
        c_int,
        [c_void_p, c_int64, POINTER(c_int32), POINTER(c_int32), _ERROR],
    ),
    "tfr_submit": (c_int, [c_void_p, POINTER(Request), _ERROR]),
    "tfr_run": (c_int, [c_void_p, POINTER(Request), _ERROR]),
}


def library_path(name: str) -> str:
    """Returns the path of a built library of this package.

    Args:
        name: file name, such as `"libtfring.so"`.

    Raises:
        ImportError: it is not there, which means that Python imports a source tree that was
            never installed.
    """
    # An editable install has two folders: the sources and what was built.
    folders = list(importlib.import_module("tfring").__path__)
    for folder in folders:
        path = os.path.join(folder, "_lib", name)
        if os.path.exists(path):
            return path
    raise ImportError(not_installed(name))


def not_installed(name: str) -> str:
    """Returns the text of an ImportError about a part that a source tree lacks."""
    folders = " or ".join(importlib.import_module("tfring").__path__)
    return (
        f"{name} is not in {folders}. Python imports tfring from a folder that was not installed "
        "(the source tree?): run `pip install .` there, and keep your script elsewhere, since "
        "Python looks first in the script's folder (with `python -m` or `-c`, in the current one)."
    )


@functools.cache
def engine() -> ctypes.CDLL:
    """Loads libtfring.so once and returns it, with the types of every function declared."""
    library = _loading.open_library(library_path("libtfring.so"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    version = library.tfr_version().decode()
    if version != __version__:
        raise ImportError(
            f"libtfring.so is version {version}, the Python files are {__version__}: two "
            "installations are mixed. Reinstall tfring."
        )
    return library


def encode(text: str | None) -> bytes | None:
    """Returns the text as the engine takes it; None stays NULL."""
    return None if text is None else text.encode()


def check(code: int, error: Error) -> None:
    """Raises the Python exception of an engine call that failed."""
    if code:
        raise errors.from_engine(code, error.text.decode(errors="replace"))


def call(name: str, *arguments: Any) -> None:
    """Calls an engine function whose last argument is a `tfr_error`, and raises on failure."""
    error = Error()
    check(getattr(engine(), name)(*arguments, byref(error)), error)
