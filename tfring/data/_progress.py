"""How far each rank has read one dataset in one pass, and whether a next element is for all.

A rank reads a few elements ahead and posts how many it has; it hands out element k once all ranks
have more than k. A rank whose data is over, or that breaks off, posts that no more will come, and
all stop there. Posts wait for nobody, so a rank that reads further ahead than others, or stops
reading, leaves no one with a call that has no partner.

In steady state the others' posts are some elements ahead, so a rank reads them once in
`AHEAD` elements; each element costs one post, from the thread that reads ahead.

A wait has a deadline only where the rank waited for has not begun, or waits for its own data. One
that has read ahead all that it may is busy elsewhere, say with validation, and gets on later; it
is no matter of the data if it does not.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfring import world
from tfring.data._agree import Member

_logger = logging.getLogger("tfring")

AHEAD = 4
# One wait: TensorFlow can end a pipeline between two.
_SLICE_S = 0.02
_SHORTEST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.01

PENDING, GO, STOP = 0, 1, 2

# Below it, a rank that leaves the job says so.
LEFT = "shortest/left"
_ASK_AFTER_S = 0.5


class Post(NamedTuple):
    """What a rank posts.

    Attributes:
        read: elements that it has read.
        taken: of these, how many it has handed out.
        over: no more will come.
    """

    read: int
    taken: int
    over: bool

    def packed(self) -> bytes:
        """Returns it as bytes."""
        return struct.pack("<qq?", *self)

    @property
    def is_full(self) -> bool:
        """Whether the rank has read ahead all that it may: its reading waits for its training."""
        return self.read - self.taken >= AHEAD


def unpacked(data: bytes | None) -> Post | None:
    """Returns a post from its bytes."""
    return None if data is None else Post(*struct.unpack("<qq?", data))


class Progress:
    """One pass over a dataset on this rank.

    Args:
        board: where ranks post.
        key: of this pass, the same on all ranks.
        member: who reads together, and who this is. (Not asked of the world: passes are begun by
            TensorFlow's threads.)
        number: of the pass, counted from 1, for messages.
    """

    def __init__(self, board: Any, key: str, member: Member, number: int) -> None:
        self._board = board
        self._key = key
        self._number = number
        self._rank = member.ranks[member.place]
        self._lock = threading.Lock()
        self._mine = Post(0, 0, False)
        self._posts: dict[int, Post | None] = {r: None for r in member.ranks if r != self._rank}
        self._since = 0.0  # when the present wait began, or another rank last got further; 0: none
        self._warned = False
        self._post()

    def note(self, has_value: bool) -> None:
        """Notes that one more element was read, or that there are no more."""
        with self._lock:
            if self._mine.over:
                return
            self._mine = self._mine._replace(
                read=self._mine.read + bool(has_value), over=not has_value
            )
            self._post()

    def close(self) -> None:
        """Tells that this rank hands out no more, whatever the reason."""
        with self._lock:
            if not self._mine.over:
                self._mine = self._mine._replace(over=True)
                self._post()

    def next(self) -> int:
        """Returns whether the next element may be handed out, after a short wait at most.

        Returns:
            GO, STOP, or PENDING: ask again.

        Raises:
            AbortedError: a rank does not come.
        """
        wanted = self._mine.taken + 1
        end = time.monotonic() + _SLICE_S
        pause = _SHORTEST_PAUSE_S
        while True:
            verdict = self._verdict(wanted)
            if verdict != PENDING or time.monotonic() > end:
                return verdict
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _verdict(self, wanted: int) -> int:
        behind = self._read_posts(wanted)
        posts = [self._mine, *self._posts.values()]
        if any(p is not None and p.over and p.read < wanted for p in posts):
            self.close()
            return STOP
        if behind:
            self._watch(behind)
            return PENDING
        with self._lock:
            self._mine = self._mine._replace(taken=wanted)
            if wanted == self._mine.read:
                # Nothing is left of what was read ahead: from now on the others wait for this
                # rank's data, and not for its training.
                self._post()
        self._since = 0.0
        return GO

    def _read_posts(self, wanted: int) -> list[int]:
        """Reads the posts of ranks not known to have an element; returns those that have not."""
        behind = []
        for rank, known in self._posts.items():
            if known is not None and (known.read >= wanted or known.over):
                continue
            post = unpacked(self._board.read(f"{self._key}/{rank}"))
            if post != known:
                self._posts[rank] = post
                self._since = 0.0
            if post is None or (post.read < wanted and not post.over):
                behind.append(rank)
        return behind

    def _watch(self, behind: Sequence[int]) -> None:
        """Warns, and then raises, when ranks do not get further though nothing holds them."""
        now = time.monotonic()
        posts = {rank: self._posts[rank] for rank in behind}
        if not self._since or all(post is not None and post.is_full for post in posts.values()):
            self._since = now
            return
        settings = world.settings()
        waited = now - self._since
        gone = [r for r, p in posts.items() if p is None] if waited > _ASK_AFTER_S else []
        if any(self._board.read(f"{LEFT}/{rank}") for rank in gone):
            raise tf.errors.AbortedError(None, None, f"{self._complaint(posts, waited)} It left.")
        if settings.fail_after and waited > settings.fail_after:
            raise tf.errors.AbortedError(None, None, self._complaint(posts, waited))
        if settings.warn_after and waited > settings.warn_after and not self._warned:
            self._warned = True
            _logger.warning("%s", self._complaint(posts, waited))

    def _complaint(self, posts: dict[int, Post | None], waited: float) -> str:
        states = [
            f"rank {rank} has " + ("not begun" if post is None else f"read {post.read} elements")
            for rank, post in posts.items()
        ]
        return (
            f"tfring.data.shortest: rank {self._rank} has waited {waited:.0f} s for element "
            f"{self._mine.taken + 1} of pass {self._number} over a dataset; {', '.join(states)}. "
            "All ranks must iterate over it equally often."
        )

    def _post(self) -> None:
        self._board.post(f"{self._key}/{self._rank}", self._mine.packed())
