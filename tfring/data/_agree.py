"""What ranks tell each other about their data before they use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tfring import _checks, objects, world
from tfring.process_sets import ProcessSet, global_process_set


class Member(NamedTuple):
    """This process in a process set.

    Attributes:
        process_set: the set.
        ranks: its ranks, ascending.
        place: which of them this process is.
    """

    process_set: ProcessSet
    ranks: list[int]
    place: int

    @property
    def size(self) -> int:
        """Returns the number of ranks of the set."""
        return len(self.ranks)


class _Fault(NamedTuple):
    text: str


def member_of(process_set: ProcessSet) -> Member:
    """Returns this process' place in a set.

    Raises:
        NotInitializedError: before `init`.
        TypeError: it is no `ProcessSet`.
        ValueError: the set is not registered.
        InvalidArgumentError: this rank is not in it.
    """
    world.require_usable()
    if process_set is not global_process_set:
        _checks.process_set(process_set)
    ranks = list(range(world.size())) if process_set.ranks is None else list(process_set.ranks)
    if process_set is global_process_set:
        ranks = list(range(world.size()))
    return Member(process_set, ranks, ranks.index(world.rank()))


def exchanged(function: str, member: Member, describe: Callable[[], Any]) -> list[Any]:
    """Returns what `describe` gives on each rank of a set; where it fails, all ranks raise.

    Args:
        function: the public function that asks; it pairs the calls of the ranks.
        member: who takes part.
        describe: checks this rank's arguments and returns what the others are to know.

    Raises:
        ValueError: on ranks whose own arguments are fine, when those of another are not.
        Exception: what `describe` raised here.
    """
    own: Exception | None = None
    try:
        mine = describe()
    except Exception as error:  # whatever it is, the peers must not wait
        own, mine = error, _Fault(f"{type(error).__name__}: {error}")
    if member.size == 1:
        told = [mine]
    else:
        told = objects.allgather_object(
            mine, name=f"tfring.data.{function}", process_set=member.process_set
        )
    if own is not None:
        raise own
    faults = [(r, t) for r, t in zip(member.ranks, told, strict=True) if isinstance(t, _Fault)]
    if faults:
        rank, fault = faults[0]
        raise ValueError(f"tfring.data.{function} failed on rank {rank}: {fault.text}")
    return told


def require_same(function: str, member: Member, told: Sequence[dict[str, Any]], why: str) -> None:
    """Raises ValueError, on all ranks, unless they told the same; it shows the first difference.

    Args:
        function: the public function.
        member: who took part.
        told: for each rank what it said, by name of the thing.
        why: what follows from a difference, and the way out.
    """
    for name in told[0]:
        values = [of_rank.get(name) for of_rank in told]
        for rank, value in zip(member.ranks, values, strict=True):
            if value != values[0]:
                raise ValueError(
                    f"tfring.data.{function}: {name} differs between ranks. {why} Received: "
                    f"{values[0]} on rank {member.ranks[0]}, {value} on rank {rank}"
                )
