"""Loads tfring's libraries: what a system or a TensorFlow lacks for them is told in one error.

No version of TensorFlow is refused for being new. What the ops rely on, and cannot be tried
without risk, is looked for by its name first (docs/versions.md).
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_FRAMEWORK = "libtensorflow_framework.so.2"
# TensorFlow's C API gives an asynchronous kernel a pointer to what it calls when it is done: a
# `std::function<void()>` of its C++ code, which the ops copy. If that became something else, the
# first collective would crash. Types are part of these functions' names; one of them is enough.
_DONE_IS_STD_FUNCTION = tuple(
    f"_ZN10tensorflow{device}12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContextESt8functionIFvvEE"
    for device in ("6Device", "16ThreadPoolDevice")
)
_WAY_OUT = (
    "Use a TensorFlow that docs/versions.md lists, for example `pip install 'tensorflow==2.21.*'`, "
    "or report this with what `tfringrun --check-build` prints."
)


def open_library(path: str) -> ctypes.CDLL:
    """Opens one of tfring's libraries.

    Raises:
        ImportError: the system's libraries are older than those that it was built with.
    """
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(_cannot_open(path, str(error))) from error


def load_ops(tf: Any, path: str) -> Any:
    """Loads the library of ops into TensorFlow, whatever its version.

    Args:
        tf: the module `tensorflow`.
        path: of the library.

    Returns:
        The module with one function per op.

    Raises:
        ImportError: this TensorFlow lacks something that the ops need; it says what.
    """
    missing = _missing(tf)
    if not missing:
        try:
            return tf.load_op_library(path)
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            missing = lines[0]
    raise ImportError(
        f"tfring's ops cannot be loaded into TensorFlow {tf.__version__} in "
        f"{tf.sysconfig.get_lib()}: {missing}. {_WAY_OUT}"
    )


def _missing(tf: Any) -> str:
    path = os.path.join(tf.sysconfig.get_lib(), _FRAMEWORK)
    try:
        framework = ctypes.CDLL(path)
    except OSError as error:
        return f"its library cannot be opened ({error})"
    if not any(hasattr(framework, name) for name in _DONE_IS_STD_FUNCTION):
        return "it does not tell by a std::function that an asynchronous kernel is done"
    return ""


def _cannot_open(path: str, why: str) -> str:
    if "' not found" in why and ("GLIBC" in why or "CXXABI" in why):
        return (
            f"{os.path.basename(path)} was built on a newer system than this one: {why}. Build it "
            "on this one, or on one as old: run `pip install .` in the sources of tfring."
        )
    return f"{os.path.basename(path)} cannot be opened: {why}. Reinstall tfring."
