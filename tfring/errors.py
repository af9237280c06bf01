"""Error kinds of tfring.

Usage errors are raised before anything is sent (`ValueError`, `TypeError`) or come from the ops
as `tf.errors.InvalidArgumentError` and `tf.errors.FailedPreconditionError`; the engine stays
usable after them. Communication errors mean that the job is broken: the ops raise
`tf.errors.AbortedError`, and calls that are no ops raise `CommunicationError`.
"""

from __future__ import annotations

import sys

__all__ = ["CommunicationError", "NotInitializedError"]

NOT_INITIALIZED = "tfring has not been initialized; call tfring.init() first"
FORKED = (
    "tfring cannot be used in a forked process: the connections belong to the parent, which forked "
    "after tfring.init(). Start helper processes with the 'spawn' method, or fork before init()"
)


class NotInitializedError(ValueError):
    """Raised when something needs `tfring.init()` to have been called, and it has not.

    Horovod raises a plain `ValueError` there, so `except ValueError` keeps working.
    """

    # TensorFlow raises an error again as its own class, when it leaves a tf.function that is
    # being traced, only where it knows that a text is all that the class takes.
    __init__ = Exception.__init__


class CommunicationError(RuntimeError):
    """Raised when ranks cannot be reached: a peer is lost, or did not arrive in time.

    The text names the ranks and the cause. It is raised by `init` and other calls that are not
    TensorFlow ops; an op raises `tf.errors.AbortedError` with the same kind of text.
    """


# Codes of tfr_code in custom_ops/core/tfring.h.
_USAGE_CODES = {3: ValueError, 9: RuntimeError, 8: MemoryError}


def from_engine(code: int, text: str) -> Exception:
    """Returns the Python exception for an engine error.

    Args:
        code: a `tfr_code` other than `TFR_OK`.
        text: the engine's reason.
    """
    return _USAGE_CODES.get(code, CommunicationError)(text)


def is_communication_error(error: BaseException | None) -> bool:
    """Tells whether an exception, or what caused it, says that a peer is lost.

    Such an error follows from a failure elsewhere: it is not the one to blame.
    """
    kinds: tuple[type[BaseException], ...] = (CommunicationError,)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        kinds += (tensorflow.errors.AbortedError,)
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kinds):
            return True
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
