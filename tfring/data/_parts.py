"""Which rows each rank reads: whole files where they are alike, else row groups, else rows.

All rows lie in one line: those of the first file, in their order, then those of the second, and so
on. A `Piece` is a run of that line inside one file. The parts of all ranks together hold each row
once; where the ranks must have equal numbers of rows, the last rows are dropped, or first ones
taken once more.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Sequence

import numpy as np

# Files, or row groups, are alike when the fullest rank has at most this part of the mean more rows
# than the emptiest. One per cent is what dropping may cost; rows cost nothing.
ALIKE = 0.01


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows of one file.

    Attributes:
        file: its number.
        start: number of the first row inside the file.
        rows: how many.
        again: whether these rows are read by a rank already, and only fill up another.
    """

    file: int
    start: int
    rows: int
    again: bool = False

    def head(self, rows: int) -> Piece:
        """Returns the first rows of the piece."""
        return dataclasses.replace(self, rows=min(rows, self.rows))


Part = list[Piece]


@dataclasses.dataclass(frozen=True)
class Split:
    """Who reads what.

    Attributes:
        by: "file", "row group" or "row".
        parts: of each rank, none without rows.
        total: number of rows that there are.
        dropped: how many of them belong to no part.
        added: how many times a row stands in the parts once more.
    """

    by: str
    parts: list[Part]
    total: int
    dropped: int
    added: int


def split(rows: Sequence[Sequence[int]], ranks: int, by: str, remainder: str) -> Split:
    """Splits the rows of files into one part for each rank.

    Args:
        rows: for each file the number of rows of each of its row groups, in order.
        ranks: how many parts.
        by: "auto", "file" or "row".
        remainder: "drop", "pad" or "keep".

    Raises:
        ValueError: there is nothing to split, or not enough of it for each rank to get some.
    """
    groups = [_groups(file, counts) for file, counts in enumerate(rows)]
    line = [unit for units in groups for unit in units]
    total = rows_of(line)
    if total == 0:
        raise ValueError(
            f"`files` must hold at least one row. Received: {len(rows)} files without any"
        )
    kind, parts = _shares(groups, line, ranks, by, remainder == "drop")
    least, most = min(map(rows_of, parts)), max(map(rows_of, parts))
    if least == 0 and (remainder != "pad" or kind == "file"):
        raise _too_few(by, remainder, total, len(rows), ranks)
    if remainder == "drop":
        parts = [head(part, least) for part in parts]
    if remainder == "pad":
        parts = [padded(part, most, part or line) for part in parts]
    dealt = sum(map(rows_of, parts))
    dropped, added = max(0, total - dealt), max(0, dealt - total)
    return Split(kind, parts, total, dropped, added)


def weights(rows: Sequence[int], rank: int, batch_size: int) -> tuple[int, np.ndarray]:
    """Returns sample weights that make means over padded batches those of the real rows.

    The batches of one step, of all ranks together, hold n rows, m of them real, at the beginning
    of each rank's batch. Real ones weigh n / m, so that the mean over n rows of weighted losses is
    the mean over the m real ones; the others weigh 0.

    Args:
        rows: of each rank, its real ones.
        rank: whose weights.
        batch_size: of each rank.

    Returns:
        How many rows at the beginning weigh 1, and the weights of the others, float32.
    """
    length = max(rows)
    ones = min(rows) // batch_size * batch_size
    result = np.zeros(length - ones, np.float32)
    for begin in range(ones, length, batch_size):
        end = min(begin + batch_size, length)
        real = sum(min(max(n - begin, 0), end - begin) for n in rows)
        own = max(begin, min(end, rows[rank]))
        result[begin - ones : own - ones] = (end - begin) * len(rows) / real
    return ones, result


def _shares(
    groups: Sequence[Part], line: Part, ranks: int, by: str, even: bool
) -> tuple[str, list[Part]]:
    """Returns what was dealt, and the parts, which may still differ in length."""
    files = deal([_whole(units) for units in groups if units], ranks)
    if by == "file" or (by == "auto" and alike(files)):
        return "file", files
    dealt = deal(line, ranks)
    if by == "auto" and len(line) > len(groups) and alike(dealt):
        return "row group", dealt
    return "row", cut(line, ranks, even)


def _groups(file: int, counts: Sequence[int]) -> Part:
    starts = itertools.accumulate(counts, initial=0)
    return [Piece(file, s, count) for s, count in zip(starts, counts, strict=False) if count]


def _whole(units: Part) -> Piece:
    return Piece(units[0].file, 0, rows_of(units))


def _too_few(by: str, remainder: str, total: int, files: int, ranks: int) -> ValueError:
    if by == "file":
        return ValueError(
            f"by='file' needs at least one file with rows for each rank. Received: {files} files "
            f"for {ranks} ranks. Use by='row'."
        )
    return ValueError(
        f"remainder={remainder!r} needs at least one row for each rank. Received: {total} rows in "
        f"{files} files for {ranks} ranks. Use remainder='pad'."
    )


def rows_of(part: Part) -> int:
    """Returns the number of rows of a part."""
    return sum(piece.rows for piece in part)


def deal(units: Sequence[Piece], ranks: int) -> list[Part]:
    """Gives whole units to ranks: the largest first, each to the rank with the fewest rows.

    With units of one size, unit i goes to rank i modulo `ranks`.
    """
    parts: list[Part] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for unit in sorted(units, key=lambda unit: (-unit.rows, unit.file, unit.start)):
        load, rank = heapq.heappop(loads)
        parts[rank].append(unit)
        heapq.heappush(loads, (load + unit.rows, rank))
    return [sorted(part, key=lambda unit: (unit.file, unit.start)) for part in parts]


def alike(parts: Sequence[Part]) -> bool:
    """Says whether dealing gave all ranks about the same number of rows."""
    rows = [rows_of(part) for part in parts]
    return min(rows) > 0 and (max(rows) - min(rows)) * len(rows) <= ALIKE * sum(rows)


def cut(units: Sequence[Piece], ranks: int, even: bool) -> list[Part]:
    """Cuts the line of all rows into one run for each rank.

    Args:
        units: what the line is made of, in order.
        ranks: into how many parts.
        even: True: each part has the same number of rows, and less than `ranks` rows at the end
            belong to none. False: every row belongs to one; parts differ by one row at most.
    """
    total = rows_of(list(units))
    bounds = [total // ranks * r if even else total * r // ranks for r in range(ranks + 1)]
    return [run(units, bounds[r], bounds[r + 1]) for r in range(ranks)]


def run(units: Sequence[Piece], begin: int, end: int) -> Part:
    """Returns the rows from `begin` to before `end` of the line."""
    part: Part = []
    for unit in units:
        first, last = max(begin, 0), min(end, unit.rows)
        if first < last:
            part.append(Piece(unit.file, unit.start + first, last - first))
        begin, end = begin - unit.rows, end - unit.rows
    return _merged(part)


def head(part: Part, rows: int) -> Part:
    """Returns the first rows of a part."""
    return run(part, 0, rows)


def padded(part: Part, rows: int, source: Part) -> Part:
    """Returns the part with rows of `source` after it, again and again, up to a number of rows."""
    result, lacking = list(part), rows - rows_of(part)
    while lacking > 0:
        more = head(source, lacking)
        result += [dataclasses.replace(piece, again=True) for piece in more]
        lacking -= rows_of(more)
    return result


def _merged(part: Part) -> Part:
    merged: Part = []
    for piece in part:
        last = merged[-1] if merged else None
        if last and last.file == piece.file and last.start + last.rows == piece.start:
            merged[-1] = dataclasses.replace(last, rows=last.rows + piece.rows)
        else:
            merged.append(piece)
    return merged
