"""What XLA needs to know of tfring, and tfring of XLA, before the first compiled collective.

TensorFlow has no public way to add a lowering to XLA. The hooks used here are private to it; each
is looked for when it is first needed, and `unusable` says which is missing. Seen to work, and
tested, with TensorFlow 2.16 to 2.22:

* `control_flow_util.GetContainingXLAContext`: while a function is traced for `jit_compile=True`,
  its graph, or one that it is traced from, is in an `XLAControlFlowContext`.
* `XLAControlFlowContext.RequiresUniqueFunctionRetracing` is part of the key under which a
  `tf.function` keeps its traces. As it stands, a function called both inside and outside of a
  compiled one has one trace for both, whichever came first; with True, each compiled function gets
  a trace of its own.
* `context.device_name` is the innermost `tf.device` around what is traced. A context is made before
  its function runs, so it keeps the one around the call.
* `tf.errors.InternalError` is what an untyped custom call that fails becomes, whatever it says. The
  true kind is in a mark at the end of its text; by it, an error is given the class of that kind as
  it is made.
* `xla::CustomCallTargetRegistry` in `libtensorflow_cc.so.2`, see `xla_targets.cc`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfring import _ops

_DEVICE = "_tfring_device"
_MARK = re.compile(r"(?:CustomCall failed: )?(.*?) \[tfring: ([A-Z_]+)\]", re.DOTALL)
_KINDS = {
    "ABORTED": tf.errors.AbortedError,
    "CANCELLED": tf.errors.CancelledError,
    "DEADLINE_EXCEEDED": tf.errors.DeadlineExceededError,
    "FAILED_PRECONDITION": tf.errors.FailedPreconditionError,
    "INVALID_ARGUMENT": tf.errors.InvalidArgumentError,
    "NOT_FOUND": tf.errors.NotFoundError,
    "RESOURCE_EXHAUSTED": tf.errors.ResourceExhaustedError,
}


class _Forced(threading.local):
    """The XLA context that counts in this thread, whatever graph is being made."""

    context: Any = None


_forced = _Forced()


def context() -> Any:
    """Returns the XLA context that the graph being made belongs to, None outside of XLA."""
    if tf.executing_eagerly():
        return None
    if _forced.context is not None:
        return _forced.context
    util = _control_flow_util()
    graph = tf.compat.v1.get_default_graph()
    while util is not None and graph is not None:
        found = util.GetContainingXLAContext(graph._get_control_flow_context())
        if found is not None:
            return found
        graph = getattr(graph, "outer_graph", None)
    return None


def device_of(of: Any) -> str | None:
    """Returns the device that a context's function was first called for; None: none was asked for.

    Within the function `tf.device` has no say: all of it runs where it is called for.
    """
    return getattr(of, _DEVICE, None)


@contextlib.contextmanager
def inside(of: Any) -> Iterator[None]:
    """Makes what is created in the body belong to an XLA context.

    TensorFlow makes the gradient of a compiled function later, in a graph that is in no context.
    """
    before, _forced.context = _forced.context, of
    try:
        yield
    finally:
        _forced.context = before


@functools.cache
def unusable() -> str:
    """Returns why collectives cannot be compiled by XLA here; empty where they can.

    Compiles two tiny functions when called first.
    """
    missing = _install()
    if missing:
        return missing
    from tfring import _xla_probe

    # A thread of its own is in no graph; `init_scope` leaves traces of the outer one.
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_xla_probe.failure()))
    thread.start()
    thread.join()
    return found[0]


def require() -> None:
    """Raises RuntimeError where collectives cannot be compiled."""
    reason = unusable()
    if reason:
        raise RuntimeError(
            f"tfring's collectives cannot be compiled by XLA here: {reason}. Use "
            "tf.function(jit_compile=False), or compile(jit_compile=False) of a Keras model."
        )


@functools.cache
def install() -> None:
    """Prepares TensorFlow, once, before any function is traced; says nothing where it cannot."""
    _install()


@functools.cache
def _install() -> str:
    """Returns what is missing."""
    util = _control_flow_util()
    if not hasattr(util, "GetContainingXLAContext"):
        return "TensorFlow has no control_flow_util.GetContainingXLAContext"
    try:
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops
        from tensorflow.python.eager import context as eager_context
        from tensorflow.python.ops import control_flow_ops
    except ImportError as error:
        return f"TensorFlow has no XLA: {error}"
    xla_context: Any = getattr(control_flow_ops, "XLAControlFlowContext", None)
    if not hasattr(xla_context, "RequiresUniqueFunctionRetracing"):
        return "TensorFlow has no XLAControlFlowContext.RequiresUniqueFunctionRetracing"
    if not hasattr(gen_xla_ops, "xla_call_module"):
        return "TensorFlow has no op XlaCallModule"
    if not hasattr(eager_context.context(), "device_name"):
        return "TensorFlow has no context.device_name"
    missing = _register()
    if missing:
        return missing
    xla_context.RequiresUniqueFunctionRetracing = lambda _: True
    _install_device(xla_context, eager_context)
    _install_kinds()
    return ""


def _install_device(xla_context: Any, eager_context: Any) -> None:
    stock = xla_context.__init__

    @functools.wraps(stock)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        setattr(self, _DEVICE, eager_context.context().device_name or None)

    xla_context.__init__ = init


def _install_kinds() -> None:
    internal = tf.errors.InternalError
    stock = internal.__init__

    @functools.wraps(stock)
    def init(self: Any, node_def: Any, op: Any, message: Any, *args: Any) -> None:
        found = _MARK.search(message) if isinstance(message, str) else None
        if type(self) is not internal or found is None or found[2] not in _KINDS:
            stock(self, node_def, op, message, *args)
            return
        self.__class__, code = _both(found[2])
        text = message[: found.start()] + found[1] + message[found.end() :]
        tf.errors.OpError.__init__(self, node_def, op, text, code, *args)

    internal.__init__ = init


@functools.cache
def _both(name: str) -> tuple[type, int]:
    """Returns a class that is of a kind and of the one that Python was told, and its code."""
    kind = _KINDS[name]

    def reduce(self: Any) -> tuple[Any, ...]:
        # Pickle finds classes by name, and by this name it finds TensorFlow's.
        return kind, (self.node_def, self.op, self.message)

    members = {"__module__": kind.__module__, "__reduce__": reduce}
    both = type(kind.__name__, (kind, tf.errors.InternalError), members)
    return both, kind(None, None, "").error_code


def _register() -> str:
    path = os.path.join(os.path.dirname(tf.__file__), "libtensorflow_cc.so.2")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return f"TensorFlow's library cannot be opened: {error}"
    register = _ops.adapter().tfring_xla_register
    register.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    register.restype = ctypes.c_char_p
    missing = register(library._handle, int(_has_gpu()))
    return missing.decode() if missing else ""


def _has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _control_flow_util() -> Any:
    try:
        from tensorflow.python.ops import control_flow_util
    except ImportError:
        return None
    return control_flow_util
