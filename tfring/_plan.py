"""The plan: which gradients are reduced together, under which names.

A plan is made once, from the positions, shapes and dtypes of the gradients and never
from variable names, which are not unique. All ranks compare their plans before the
first reduction, so that ranks whose models differ get an error that shows where, and
so that a gradient that exists on some ranks only is known to all.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf

# (object, name) -> one object per rank, in rank order.
Exchange = Callable[[Any, str], list[Any]]


class Kind(str, enum.Enum):
    """How one gradient is present on a rank; the values travel between ranks."""

    DENSE = "d"
    SPARSE = "s"
    ABSENT = "-"
    REDUCED = "r"  # by a DistributedGradientTape already


@dataclasses.dataclass(frozen=True)
class Entry:
    """One gradient of a plan.

    Args:
        label: How error messages call it; not compared between ranks.
        shape: Static shape of the variable, None where a dimension is not known.
        dtype: Name of the gradient's dtype.
        kind: How the gradient is present.
        group: Number of the user's group it belongs to, or None.
        position: The variable's position in its optimizer or tape call.
    """

    label: str
    shape: tuple[int | None, ...]
    dtype: str
    kind: Kind
    group: int | None = None
    position: int = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes, counting dimensions that are not known as 1."""
        size = tf.as_dtype(self.dtype).size
        for dim in self.shape:
            size *= 1 if dim is None else dim
        return int(size)

    def line(self) -> str:
        """What must be alike on all ranks, as text."""
        group = "" if self.group is None else f" group {self.group}"
        return f"#{self.position}: {self.dtype} {self.shape}{group}"


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Dense gradients that are reduced by one collective."""

    name: str
    members: tuple[int, ...]  # indices into Plan.entries


@dataclasses.dataclass(frozen=True)
class Plan:
    """What all ranks agreed on. See `agree`."""

    name: str
    entries: tuple[Entry, ...]
    buckets: tuple[Bucket, ...]
    sparse: tuple[int, ...]  # indices into entries

    def covers(self, entries: Sequence[Entry]) -> bool:
        """Whether this rank's gradients can be reduced by the plan as it stands."""
        return len(entries) == len(self.entries) and all(
            _fits(mine, agreed) for mine, agreed in zip(entries, self.entries, strict=True)
        )


def _fits(mine: Entry, agreed: Entry) -> bool:
    if mine.kind is Kind.ABSENT:
        return agreed.kind is not Kind.REDUCED
    if mine.dtype != agreed.dtype:
        return False
    densified = mine.kind is Kind.SPARSE and agreed.kind is Kind.DENSE
    return mine.kind is agreed.kind or densified


def make_plan(
    name: str,
    entries: Sequence[Entry],
    *,
    bucket_bytes: int,
    chunks: int = 0,
) -> Plan:
    """Returns the plan for gradients whose kinds are agreed.

    Buckets come in the order in which a backward pass produces gradients: the last
    variable first. A bucket is closed when the next gradient would take it over
    `bucket_bytes`; a gradient larger than that has a bucket of its own.

    Args:
        name: Prefix of the collectives' names.
        entries: One entry per gradient.
        bucket_bytes: Size limit of a bucket; 0 puts each gradient into its own.
        chunks: Ignore the limit and make this many buckets of equally many gradients.

    Returns:
        The plan. Entries that name a user's group share a bucket of any size.
    """
    backward = [i for i in reversed(range(len(entries))) if entries[i].kind is Kind.DENSE]
    if chunks:
        members = _split_evenly(backward, chunks)
    else:
        members = _split_by_size(backward, entries, bucket_bytes)
    buckets = tuple(Bucket(f"{name}/bucket{j}", tuple(m)) for j, m in enumerate(members))
    sparse = tuple(i for i in reversed(range(len(entries))) if entries[i].kind is Kind.SPARSE)
    return Plan(name, tuple(entries), buckets, sparse)


def _split_evenly(order: list[int], chunks: int) -> list[list[int]]:
    count = min(chunks, len(order))
    if count == 0:
        return []
    quotient, rest = divmod(len(order), count)
    result, start = [], 0
    for j in range(count):
        end = start + quotient + (1 if j < rest else 0)
        result.append(order[start:end])
        start = end
    return result


def _split_by_size(order: list[int], entries: Sequence[Entry], limit: int) -> list[list[int]]:
    result: list[list[int]] = []
    of_group: dict[int, list[int]] = {}
    current: list[int] | None = None
    used = 0
    for i in order:
        entry = entries[i]
        if entry.group is not None:
            if entry.group not in of_group:
                of_group[entry.group] = []
                result.append(of_group[entry.group])
            of_group[entry.group].append(i)
            continue
        if current is None or used + entry.nbytes > limit:
            current, used = [], 0
            result.append(current)
        current.append(i)
        used += entry.nbytes
    return result


def agree(
    name: str,
    entries: Sequence[Entry],
    options: Sequence[str],
    exchange: Exchange,
    *,
    strict: bool = False,
    ranks: Sequence[int] | None = None,
) -> tuple[Entry, ...]:
    """Compares this rank's gradients with those of the other ranks.

    Every rank must call it, at the same point of its program.

    Args:
        name: Name of the exchange, alike on all ranks.
        entries: This rank's gradients.
        options: Lines on how gradients are reduced; they must be alike too.
        exchange: Gathers one object per rank.
        strict: Refuse gradients that are None on some ranks only.
        ranks: Who the exchange is among, for error messages. Default: 0, 1, 2...

    Returns:
        The entries with the kinds all ranks use: a gradient that any rank has counts
        as present, one that is dense anywhere is dense everywhere.

    Raises:
        tf.errors.FailedPreconditionError: On all ranks, when ranks differ; the text
            shows the first difference and the ranks. A lost peer raises what the
            exchange raises.
    """
    lines = [*options, *(entry.line() for entry in entries)]
    kinds = "".join(entry.kind.value for entry in entries)
    reports = require_alike(name, lines, exchange, attachment=kinds, ranks=ranks)
    ranks = range(len(reports)) if ranks is None else ranks
    return tuple(
        dataclasses.replace(entry, kind=_agreed_kind(name, entry, column, strict, ranks))
        for entry, column in zip(entries, zip(*reports, strict=True), strict=True)
    )


def lines_of(variables: Sequence[Any]) -> list[str]:
    """Says of each variable what must be alike on all ranks, for `require_alike`."""
    # Without names: ranks may have numbered their layers differently.
    return [f"#{i}: {tf.as_dtype(v.dtype).name} {tuple(v.shape)}" for i, v in enumerate(variables)]


def require_alike(
    name: str,
    lines: Sequence[str],
    exchange: Exchange,
    attachment: str = "",
    ranks: Sequence[int] | None = None,
) -> list[str]:
    """Checks that `lines` are the same on every rank; returns all attachments.

    One exchange of a digest when they are; a second one of the lines when they are
    not, so that the error can show the first line that differs.

    Raises:
        tf.errors.FailedPreconditionError: On all ranks, when the lines differ.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    reports: list[tuple[str, str]] = exchange((digest, attachment), f"{name}/digest")
    if len({theirs for theirs, _ in reports}) > 1:
        by_rank = exchange(list(lines), f"{name}/lines")
        _raise_difference(name, by_rank, range(len(by_rank)) if ranks is None else ranks)
    return [text for _, text in reports]


def _raise_difference(name: str, by_rank: list[list[str]], ranks: Sequence[int]) -> NoReturn:
    other = next(i for i, lines in enumerate(by_rank) if lines != by_rank[0])
    ours, theirs = by_rank[0], by_rank[other]
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )

    def show(lines: list[str]) -> str:
        return lines[at] if at < len(lines) else f"(nothing: only {len(lines)} entries)"

    message = (
        f"The plan of {name} differs between ranks. First difference: "
        f"rank {ranks[0]} has [{show(ours)}], rank {ranks[other]} has [{show(theirs)}]. All ranks "
        "must build the same variables in the same order and reduce them with the same options."
    )
    raise tf.errors.FailedPreconditionError(None, None, message)


def _agreed_kind(
    name: str, entry: Entry, column: Sequence[str], strict: bool, ranks: Sequence[int]
) -> Kind:
    kinds = [Kind(value) for value in column]
    present = set(kinds) - {Kind.ABSENT}
    missing = [r for r, kind in zip(ranks, kinds, strict=True) if kind is Kind.ABSENT]
    if not present:
        return Kind.ABSENT
    if Kind.REDUCED in present and (len(present) > 1 or missing):
        done = [r for r, kind in zip(ranks, kinds, strict=True) if kind is Kind.REDUCED]
        message = (
            f"{name}: the gradient of `{entry.label}` was reduced by a "
            f"DistributedGradientTape on ranks {done} only. Compute it the same way on all ranks."
        )
        raise tf.errors.FailedPreconditionError(None, None, message)
    if missing and strict:
        message = (
            f"{name}: the gradient of `{entry.label}` is None on ranks {missing} but not on "
            "the others, and strict=True. Use the variable on every rank, or let missing "
            "gradients count as zeros with strict=False."
        )
        raise tf.errors.FailedPreconditionError(None, None, message)
    return present.pop() if len(present) == 1 else Kind.DENSE
