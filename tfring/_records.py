"""What the engine notes of each collective while somebody wants to know."""

from __future__ import annotations

import dataclasses
from ctypes import byref, c_uint64, c_void_p

from tfring import _native, world

_KINDS = {
    1: "allreduce",
    2: "allgather",
    3: "broadcast",
    4: "barrier",
    5: "reducescatter",
    6: "alltoall",
    7: "join",
    101: "add_process_set",
    102: "remove_process_set",
}


@dataclasses.dataclass(frozen=True)
class Record:
    """One collective as this rank saw it; times are `time.monotonic_ns()`.

    Attributes:
        name: as given, cut to 127 bytes.
        kind: `allreduce`, ...
        bytes: of the input tensors.
        travel_bytes: the same as they travel between ranks; fewer where they are compressed.
        tensors: how many.
        group: 0 for all ranks; each process set has a number of its own.
        last_rank: the rank that submitted it last, -1 if not known.
        submitted_ns: this rank submitted it.
        agreed_ns: all ranks had.
        began_ns: its turn came.
        ended_ns: done here.
    """

    name: str
    kind: str
    bytes: int
    travel_bytes: int
    tensors: int
    group: int
    last_rank: int
    submitted_ns: int
    agreed_ns: int
    began_ns: int
    ended_ns: int


class Recording:
    """Records from now on until `stop` or `shutdown`; one at a time in a process."""

    def __init__(self, capacity: int) -> None:
        """Begins.

        Args:
            capacity: how many records to keep, the newest.

        Raises:
            NotInitializedError: before `init` or after `shutdown`.
            RuntimeError: another recording is open.
        """
        global _open
        if _open is not None:
            raise RuntimeError("another trace of this process is open; close it first")
        world.with_engine(lambda handle: _start(handle, capacity))
        self.lost = 0
        self._capacity, self._records = capacity, list[Record]()
        _open = self
        world.at_shutdown(self._close)

    def take(self) -> list[Record]:
        """Returns what has come since the last call, in the order finished."""
        if _open is self:
            self._records += world.with_engine(self._fetch)
        records, self._records = self._records, []
        return records

    def stop(self) -> list[Record]:
        """Ends it and returns what `take` would."""
        self._close()
        return self.take()

    def _close(self) -> None:
        global _open
        if _open is not self:
            return
        if world.is_initialized():
            self._records += world.with_engine(self._fetch)
            world.with_engine(lambda handle: _start(handle, 0))
        world.not_at_shutdown(self._close)
        _open = None

    def _fetch(self, handle: c_void_p) -> list[Record]:
        raw, lost = (_native.Record * self._capacity)(), c_uint64()
        count = _native.engine().tfr_world_records(handle, raw, self._capacity, byref(lost))
        self.lost += lost.value
        return [_record(raw[i]) for i in range(count)]


_open: Recording | None = None


def _start(handle: c_void_p, capacity: int) -> None:
    _native.call("tfr_world_record", handle, c_uint64(capacity))


def _record(raw: _native.Record) -> Record:
    return Record(
        name=raw.name.decode(errors="replace"),
        kind=_KINDS.get(raw.kind, str(raw.kind)),
        bytes=raw.bytes,
        travel_bytes=raw.travel_bytes,
        tensors=raw.tensors,
        group=raw.group,
        last_rank=raw.last_rank,
        submitted_ns=raw.submitted_ns,
        agreed_ns=raw.agreed_ns,
        began_ns=raw.began_ns,
        ended_ns=raw.ended_ns,
    )
