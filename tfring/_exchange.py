"""Bytes between ranks, through the engine's C face: the same in eager mode and in v1 sessions.

TensorFlow takes no part, so that nothing has to be traced, and no session started, to agree on
something while a graph is built.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _native, world

# Numbers of tfr_kind and tfr_dtype in custom_ops/core/tfring.h.
_ALLGATHER, _BROADCAST = 2, 3
_UINT8, _INT64 = 4, 9

_ERRORS = {
    3: tf.errors.InvalidArgumentError,
    8: tf.errors.ResourceExhaustedError,
    9: tf.errors.FailedPreconditionError,
    14: tf.errors.AbortedError,
}


def allgather(data: bytes, name: str, process_set_id: int = 0) -> list[bytes]:
    """Returns the bytes of all ranks of a set, in rank order.

    One collective: the sizes travel with the data.

    Raises:
        tf.errors.InvalidArgumentError: this rank is not in the set.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.
    """
    size = ctypes.c_int64(len(data))
    call = _Call(name, _ALLGATHER, process_set_id)
    call.add(_input(data), None, (len(data),), _UINT8)
    call.add(ctypes.addressof(size), None, (1,), _INT64)
    call.run()
    gathered, sizes = call.allocated(0), call.allocated(1)
    parts, start = [], 0
    for count in memoryview(sizes).cast("q"):
        parts.append(gathered[start : start + count])
        start += count
    return parts


def broadcast(data: bytes, root: int, name: str, process_set_id: int = 0) -> bytes:
    """Returns the bytes of one rank on every rank of a set.

    Two collectives: the size, then the data.

    Args:
        data: counts on the root only.
        root: the root's global rank.
        name: pairs this call with those of other ranks.
        process_set_id: the ranks that take part.

    Raises:
        tf.errors.InvalidArgumentError: the root is not in the set, or this rank is not.
        tf.errors.FailedPreconditionError: ranks disagree about the root.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.
    """
    size = ctypes.c_int64(len(data))
    place = ctypes.addressof(size)
    call = _Call(f"{name}/size", _BROADCAST, process_set_id, root)
    call.add(place, place, (), _INT64)
    call.run()
    is_root = world.rank() == root
    received = None if is_root else ctypes.create_string_buffer(size.value)
    place = _input(data) if received is None else ctypes.addressof(received)
    call = _Call(f"{name}/data", _BROADCAST, process_set_id, root)
    call.add(place, place, (size.value,), _UINT8)
    call.run()
    return data if received is None else received.raw[: size.value]


def _input(data: bytes) -> int:
    """The address of the bytes, which the caller keeps alive."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)
_DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_native.Error))

_numbers = itertools.count(1)
# What the engine still works on, by number: an interrupted wait must not free it.
_pending: dict[int, _Call] = {}


class _Call:
    """One collective and the memory that it uses."""

    def __init__(self, name: str, kind: int, process_set_id: int, root: int = 0) -> None:
        self.finished = threading.Event()
        self.failure: tuple[int, str] | None = None
        self._tensors: list[_native.Tensor] = []
        self._allocated: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._number = next(_numbers)
        self._request = _native.Request(
            name=name.encode(),
            kind=kind,
            process_set=process_set_id,
            root=root,
            prescale=1.0,
            postscale=1.0,
            allocate=ctypes.cast(_on_allocate, ctypes.c_void_p),
            done=ctypes.cast(_on_done, ctypes.c_void_p),
            user=self._number,
        )

    def add(self, source: int, target: int | None, dims: Sequence[int], dtype: int) -> None:
        """Adds a tensor by the addresses of its input and output."""
        shape = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        self._tensors.append(
            _native.Tensor(input=source, output=target, dims=shape, ndims=len(dims), dtype=dtype)
        )

    def run(self) -> None:
        """Waits until the collective is done here, or raises its error."""
        tensors = (_native.Tensor * len(self._tensors))(*self._tensors)
        self._request.tensors, self._request.tensor_count = tensors, len(tensors)
        _pending[self._number] = self
        code = -1
        try:
            code, text = world.submit(self._request)
        finally:
            if code:
                del _pending[self._number]
        if code:
            raise _error(code, text)
        self.finished.wait()
        if self.failure is not None:
            raise _error(*self.failure)

    def allocate(self, tensor: int, rows: int) -> int:
        """Makes room for what is received for a tensor without an output of its own."""
        width = 8 if self._tensors[tensor].dtype == _INT64 else 1
        buffer = (ctypes.c_char * (rows * width))()
        self._allocated[tensor] = buffer
        return ctypes.addressof(buffer)

    def allocated(self, tensor: int) -> bytes:
        """Returns what was received."""
        return bytes(self._allocated[tensor])


# Of the module, not of a call: the engine's thread may still be on its way out of one when the
# call is gone.
@_ALLOCATE
def _on_allocate(number: int, tensor: int, rows: int) -> int:
    return _pending[number].allocate(tensor, rows)


@_DONE
def _on_done(number: int, error: Any) -> None:
    call = _pending.pop(number)
    if error.contents.code:
        call.failure = (error.contents.code, error.contents.text.decode(errors="replace"))
    call.finished.set()


def _error(code: int, text: str) -> Exception:
    return _ERRORS.get(code, tf.errors.InternalError)(None, None, text)
