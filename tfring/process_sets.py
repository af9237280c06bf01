"""Process sets: groups of ranks with collectives of their own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tfring import world

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """A group of ranks; collectives with `process_set=` run among them only.

    A set takes part in collectives once it is registered, by `init` or `add_process_set`; sets
    are equal only to themselves.

    Args:
        ranks_or_comm: ranks of the set, each once; they are sorted.

    Raises:
        TypeError: it is no sequence of whole numbers.
        ValueError: a rank is negative or given twice, or there is none.
    """

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = _checked_ranks(ranks_or_comm)
        self.mpi_comm: Any = None

    def size(self) -> int | None:
        """Returns the number of ranks, or None while the set is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return len(self.ranks)

    def rank(self) -> int | None:
        """Returns this rank's place in the set, or None while the set is not registered.

        Raises:
            ValueError: this rank is not in the set.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        if world.rank() not in self.ranks:
            raise ValueError(f"rank {world.rank()} is not in {self}")
        return self.ranks.index(world.rank())

    def included(self) -> bool | None:
        """Returns whether this rank is in the set, or None while the set is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return world.rank() in self.ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


def _checked_ranks(ranks: Any) -> list[int]:
    try:
        numbers = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        raise TypeError(
            f"`ranks_or_comm` must be a sequence of ranks. Received: ranks_or_comm={ranks!r}"
        ) from None
    if not numbers or numbers[0] < 0 or len(set(numbers)) != len(numbers):
        raise ValueError(
            "`ranks_or_comm` must hold at least one rank, each once and none negative. "
            f"Received: ranks_or_comm={ranks!r}"
        )
    return numbers


def _global() -> ProcessSet:
    process_set = ProcessSet([0])
    process_set.ranks = None  # known after init
    return process_set


global_process_set = _global()
