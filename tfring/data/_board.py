"""A board where ranks post how far they are, for others to read whenever they like.

Unlike a collective, a post waits for nobody and nobody must answer it. It is the job's own store,
where the ranks met at the start.
"""

from __future__ import annotations

import threading

from tfring import world
from tfring.errors import CommunicationError
from tfring.launch.rendezvous import StoreClient


class Board:
    """Posts of this job, by key; may be used from any thread.

    Raises:
        CommunicationError: the store cannot be reached; any call raises it, too.
        NotInitializedError: by any call, after `shutdown`.
        RuntimeError: by any call, in a forked process.
    """

    def __init__(self) -> None:
        identity = world.identity()
        if identity.store is None:
            raise CommunicationError("there is no store where ranks meet")
        self._client = StoreClient(identity.store, identity.secret or "")
        self._prefix = f"data/{identity.job}/{world.generation()}"

    def post(self, key: str, value: bytes) -> None:
        """Puts a value on the board, in place of what was there under the key."""
        world.require_usable()
        self._client.set(f"{self._prefix}/{key}", value)

    def read(self, key: str) -> bytes | None:
        """Returns what is there under a key now, None where there is nothing."""
        world.require_usable()
        return self._client.get(f"{self._prefix}/{key}")

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


class _Boards:
    """The board of the world that is initialized."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._board: Board | None = None

    def current(self) -> Board:
        """Returns it, and connects to it first where that was not done yet."""
        with self._lock:
            if self._board is None:
                self._board = Board()
                world.at_shutdown(self._close)
            return self._board

    def _close(self) -> None:
        with self._lock:
            board, self._board = self._board, None
        if board is not None:
            board.close()


_boards = _Boards()


def board() -> Board:
    """Returns the board of this job.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
        CommunicationError: it cannot be reached.
    """
    return _boards.current()
