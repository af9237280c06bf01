"""Loads the TensorFlow ops and tells them which world to use."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from types import ModuleType
from typing import Any

from tfring import _loading, _native, gpu_build

_MINIMUM = (2, 16)
_LIBRARY = "libtfring_tensorflow.so"

# Calls with different names may run in any order and at the same time: the engine pairs them by
# name. Barrier and join stay ordered. Queries wait for nobody.
_UNORDERED_OPS = (
    "TfringAllreduce",
    "TfringAllgather",
    "TfringBroadcast",
    "TfringReducescatter",
    "TfringAlltoall",
    "TfringQuery",
)


def tensorflow() -> ModuleType:
    """Imports TensorFlow and checks its version.

    Raises:
        ImportError: it is missing, broken or too old.
    """
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise ImportError(
                f"TensorFlow is installed but lacks a package that it needs: {error}. Install "
                "TensorFlow again."
            ) from error
        raise ImportError(
            "tfring needs TensorFlow 2.16 or later, and none is installed. "
            "Run `pip install 'tfring[cpu]'` (or install tensorflow)."
        ) from error
    check_version(tf.__version__)
    return tf


def check_version(version: str) -> None:
    """Raises ImportError unless this TensorFlow version can load the ops."""
    if tuple(int(part) for part in version.split(".")[:2]) < _MINIMUM:
        raise ImportError(
            f"tfring needs TensorFlow 2.16 or later. Received: TensorFlow {version}. "
            "Run `pip install --upgrade tensorflow`."
        )


@functools.cache
def library() -> Any:
    """Loads the op library once and returns the module with one function per op.

    Raises:
        ImportError: TensorFlow is missing, too old, or lacks what the ops need.
    """
    tf = tensorflow()
    _native.engine()
    _show_thread_budget(tf)
    ops = _loading.load_ops(tf, _native.library_path(_LIBRARY))
    gpu_build.load(tf)
    _allow_any_order()
    return ops


def prepare_xla() -> None:
    """Lets functions be traced so that XLA can compile collectives in them, if it can at all."""
    from tfring import _xla, _xla_keras

    _xla.install()
    _xla_keras.install_loaded()


def set_world(handle: ctypes.c_void_p | None, reason: str) -> None:
    """Lets the ops use a world, or none for a reason; the former one is then unused."""
    adapter().tfring_tf_set_world(handle, reason.encode())


def after_fork(reason: str) -> None:
    """Lets ops of a forked child fail with a reason."""
    adapter().tfring_tf_after_fork(reason.encode())


def announce_fault(kind: int, name: str, text: str, process_set: int) -> None:
    """Announces a collective with wrong arguments, see `tfring._calls.announce_fault`."""
    adapter().tfring_tf_announce_fault(kind, name.encode(), process_set, text.encode())


def wait_for_faults(timeout: float) -> None:
    """Waits until the peers have met all faults announced here, at most `timeout` seconds."""
    adapter().tfring_tf_wait_for_faults(timeout)


@functools.cache
def adapter() -> ctypes.CDLL:
    """Returns the op library as ctypes sees it."""
    library()
    loaded = ctypes.CDLL(_native.library_path(_LIBRARY))
    loaded.tfring_tf_set_world.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    loaded.tfring_tf_set_world.restype = None
    loaded.tfring_tf_announce_fault.argtypes = [
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.c_char_p,
    ]
    loaded.tfring_tf_announce_fault.restype = None
    loaded.tfring_tf_wait_for_faults.argtypes = [ctypes.c_double]
    loaded.tfring_tf_wait_for_faults.restype = None
    loaded.tfring_tf_after_fork.argtypes = [ctypes.c_char_p]
    loaded.tfring_tf_after_fork.restype = None
    return loaded


def _show_thread_budget(tf: Any) -> None:
    """Lets `tf.config.threading` tell the thread counts that the environment has set.

    TensorFlow honours the variables but answers 0.
    """
    threading = tf.config.threading
    for kind in ("intra", "inter"):
        budget = os.environ.get(f"TF_NUM_{kind.upper()}OP_THREADS", "")
        get = getattr(threading, f"get_{kind}_op_parallelism_threads")
        if budget.isdigit() and get() == 0:
            # RuntimeError: TensorFlow has started, and has read the variable itself.
            with contextlib.suppress(RuntimeError):
                getattr(threading, f"set_{kind}_op_parallelism_threads")(int(budget))


def _allow_any_order() -> None:
    """Keeps `tf.function` from running stateful ops one after another.

    They still must run. The table is private to TensorFlow; where it is not found, collectives
    are right but do not overlap.
    """
    try:
        from tensorflow.python.framework import auto_control_deps
    except ImportError:
        return
    table = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"
    known = getattr(auto_control_deps, table, None)
    if isinstance(known, frozenset):
        setattr(auto_control_deps, table, known.union(_UNORDERED_OPS))
