"""Tells the launcher and the other ranks which rank failed first, and why."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int32, c_void_p
from types import TracebackType
from typing import Any

from tfring import _native, errors
from tfring._identity import Identity

_TEXT_LIMIT = 400
_CONNECT_SECONDS = 2.0

# A rank waits in vain for others' gradients, or for what ranks tell each other between epochs.
_UNEQUAL = re.compile(
    r"'(?:\w*optimizer\w*/|tape\d+/|metric average'|callbacks').*"
    r"(?:still waits for|has shut down)",
    re.IGNORECASE | re.DOTALL,
)
_HINT = (
    "tfring: if some ranks have fewer batches than others, these wait for them in vain: let "
    "tfring.data.shortest end the data of all with the shortest, or let the others go on alone "
    "with callbacks.JoinCallback (in a loop of your own: tfring.join)"
)
_LEFT = re.compile(r"\b(rank \d+)(?: \([^)]*\))? has shut down")
_BEFORE_TRAINING = "_tfring_before_training"  # an attribute of errors

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class FailureHook:
    """A `sys.excepthook` that reports an uncaught exception before the former hook prints it.

    A communication error is only marked as secondary: it ends this rank, but some other rank
    is to blame.

    Args:
        identity: who this process is.
        abort: ends the world for every rank, with a text.
    """

    def __init__(self, identity: Identity, abort: Callable[[str], None]) -> None:
        self._identity = identity
        self._abort = abort
        self._former: Hook | None = None
        self._active = False

    def install(self) -> None:
        """Becomes `sys.excepthook`."""
        self._former = sys.excepthook
        self._active = True
        sys.excepthook = self

    def remove(self) -> None:
        """Reports nothing any more, and gives `sys.excepthook` back if nobody took it since."""
        self._active = False
        if sys.excepthook is self and self._former is not None:
            sys.excepthook = self._former

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Reports, then calls the former hook."""
        try:
            # An interrupt comes from the user: nothing failed.
            if self._active and issubclass(kind, Exception):
                text = f"{kind.__name__}: {error}"
                if errors.is_communication_error(error):
                    self._record(mark_secondary, text)
                else:
                    self.report(text)
        finally:
            (self._former or sys.__excepthook__)(kind, error, trace)
            words = _hint(error) if self._active else ""
            if words:
                print(words, file=sys.stderr)
            if self._must_end(kind):
                _end.at_once = True

    def _must_end(self, kind: type[BaseException]) -> bool:
        """After an interrupt Python ends as shells expect it, which is not with 1."""
        return (
            self._active
            and self._identity.size > 1
            and issubclass(kind, Exception)
            and not _is_interactive()
        )

    def report(self, text: str) -> None:
        """Records the failure for the launcher, then ends the world for every rank."""
        text = _one_line(text)
        self._record(claim, text)
        self._abort(text)

    def _record(self, write: Callable[[Identity, str], object], text: str) -> None:
        try:
            write(self._identity, text)
        except errors.CommunicationError as error:
            print(f"tfring: could not record the failure: {error}", file=sys.stderr)


def may_be_unequal_data(error: BaseException) -> bool:
    """Tells whether an error is what ranks see whose peers have run out of batches."""
    return errors.is_communication_error(error) and _UNEQUAL.search(str(error)) is not None


def mark_before_training(error: BaseException) -> None:
    """Notes on an error that this rank has not trained a batch of its `fit` yet."""
    setattr(error, _BEFORE_TRAINING, True)


def _hint(error: BaseException) -> str:
    if not may_be_unequal_data(error):
        return ""
    if not getattr(error, _BEFORE_TRAINING, False):
        return _HINT
    left = _LEFT.search(str(error))
    what = (
        f"{left[1]} has left without calling `fit`" if left else "some ranks have not called `fit`"
    )
    return f"tfring: {what}: all ranks must call it, not only some (`if hvd.rank() == 0:`)"


class _End:
    """Ends a process that an exception has ended, after all other handlers of `atexit`.

    Python would destroy what is left, objects of TensorFlow among it. An iterator of tf.data then
    waits for its threads, and one that runs a Python generator waits for Python itself: for ever.
    As long as a rank does not end, the launcher cannot tell that the job has failed.
    """

    def __init__(self) -> None:
        self.at_once = False

    def __call__(self) -> None:
        if not self.at_once:
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, or nobody reads it
                stream.flush()
        os._exit(1)


_end = _End()
# When this module is loaded, so that it comes after handlers that are registered later.
atexit.register(_end)


def _is_interactive() -> bool:
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


def _one_line(text: str) -> str:
    """TensorFlow's errors can have a hundred lines; the whole text is in the traceback."""
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_LIMIT else f"{line[: _TEXT_LIMIT - 4]} ..."


def claim(identity: Identity, text: str) -> bool:
    """Records this rank as the first to fail, unless another rank was first.

    Args:
        identity: who this process is.
        text: what failed, one line.

    Returns:
        Whether this rank was the first.

    Raises:
        CommunicationError: the store cannot be reached.
    """
    if identity.store is None:
        return True
    key, record = f"failure/{identity.job}".encode(), _record_of(identity, text, False)
    was_set = c_int32()
    with _connected(identity) as client:
        _native.call("tfr_store_set_once", client, key, record, len(record), byref(was_set))
    return bool(was_set.value)


def mark_secondary(identity: Identity, text: str) -> None:
    """Records that this rank ends only because a peer was lost; claims nothing.

    Args:
        identity: who this process is.
        text: the communication error; the launcher finds the lost ranks in it.

    Raises:
        CommunicationError: the store cannot be reached.
    """
    if identity.store is None:
        return
    line = " ".join(text.split())
    # The engine's reason stands behind TensorFlow's traceback of the graph.
    record = _record_of(identity, line[-_TEXT_LIMIT:], True)
    key = f"secondary/{identity.job}/{identity.rank}".encode()
    with _connected(identity) as client:
        _native.call("tfr_store_set", client, key, record, len(record))


def _record_of(identity: Identity, text: str, secondary: bool) -> bytes:
    return json.dumps({"rank": identity.rank, "text": text, "secondary": secondary}).encode()


@contextmanager
def _connected(identity: Identity) -> Iterator[c_void_p]:
    client = c_void_p()
    store, secret = _native.encode(identity.store or ""), _native.encode(identity.secret)
    _native.call("tfr_store_connect", store, secret, _CONNECT_SECONDS, byref(client))
    try:
        yield client
    finally:
        _native.engine().tfr_store_client_close(client)
