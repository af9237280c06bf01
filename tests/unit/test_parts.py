"""How the rows of files are split among ranks."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from tfring.data import _parts

LAYOUTS = {
    "one file": [[10]],
    "files of one size": [[4], [4], [4], [4]],
    "files of many sizes": [[7], [0], [1], [12], [3]],
    "row groups": [[3, 3, 3], [3], [3, 3]],
    "odd row groups": [[1, 5, 2], [], [9, 1]],
    "more ranks than rows": [[1], [1]],
}


def places(part: _parts.Part, again: bool | None = None) -> list[tuple[int, int]]:
    """Each row as (file, number in it)."""
    return [
        (piece.file, piece.start + i)
        for piece in part
        if again is None or piece.again == again
        for i in range(piece.rows)
    ]


def every_place(rows: list[list[int]]) -> list[tuple[int, int]]:
    return [(file, i) for file, groups in enumerate(rows) for i in range(sum(groups))]


@pytest.mark.parametrize("rows", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("by", ["auto", "file", "row"])
@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
def test_each_row_is_in_one_part(
    rows: list[list[int]], ranks: int, by: str, remainder: str
) -> None:
    everything = every_place(rows)
    with_rows = sum(sum(groups) > 0 for groups in rows)
    enough = with_rows if by == "file" else len(everything)
    if enough < ranks and (remainder != "pad" or by == "file"):
        with pytest.raises(ValueError, match=r"at least one (row|file with rows) for each rank"):
            _parts.split(rows, ranks, by, remainder)
        return
    split = _parts.split(rows, ranks, by, remainder)
    lengths = {_parts.rows_of(part) for part in split.parts}
    once = [place for part in split.parts for place in places(part, again=False)]
    assert split.total == len(everything)
    assert len(set(once)) == len(once) == len(everything) - split.dropped
    assert set(once) <= set(everything)
    assert sum(len(places(part, again=True)) for part in split.parts) == split.added
    if remainder != "keep":
        assert len(lengths) == 1
    assert split.dropped == 0 or remainder == "drop"
    assert split.added == 0 or remainder == "pad"


@pytest.mark.parametrize(
    ("rows", "ranks", "by"),
    [
        ([[4]] * 4, 2, "file"),
        ([[1000], [1001], [999], [1000]], 2, "file"),
        ([[4]] * 3, 2, "row"),
        ([[4]], 2, "row"),
        ([[2, 2], [2, 2, 2, 2]], 2, "row group"),
        ([[2, 2], [2, 2, 2]], 2, "row"),
        ([[0], [4], [], [4]], 2, "file"),
    ],
)
def test_whole_files_where_they_are_alike(rows: list[list[int]], ranks: int, by: str) -> None:
    assert _parts.split(rows, ranks, "auto", "drop").by == by


def test_files_go_round_the_ranks() -> None:
    split = _parts.split([[5]] * 5, 2, "file", "keep")
    assert [[piece.file for piece in part] for part in split.parts] == [[0, 2, 4], [1, 3]]


def test_rows_are_runs_of_the_line_of_files() -> None:
    split = _parts.split([[3], [4], [2]], 2, "row", "drop")
    assert split.parts == [
        [_parts.Piece(0, 0, 3), _parts.Piece(1, 0, 1)],
        [_parts.Piece(1, 1, 3), _parts.Piece(2, 0, 1)],
    ]
    assert (split.dropped, split.added) == (1, 0)


def test_no_rows_at_all() -> None:
    with pytest.raises(ValueError, match="at least one row. Received: 2 files without any"):
        _parts.split([[0], []], 2, "auto", "drop")


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [[4, 4, 3], [1, 0, 0], [7, 2], [5, 5]])
def test_weighted_means_are_those_of_the_real_rows(rows: list[int], batch_size: int) -> None:
    value = np.random.default_rng(0).normal(size=(len(rows), max(rows)))
    weights = np.ones_like(value)
    for rank in range(len(rows)):
        ones, others = _parts.weights(rows, rank, batch_size)
        weights[rank, ones:] = others
        assert not weights[rank, rows[rank] :].any()
    for begin in range(0, max(rows), batch_size):
        step = slice(begin, begin + batch_size)
        real = np.concatenate([v[:n][step] for v, n in zip(value, rows, strict=True)])
        np.testing.assert_allclose((value * weights)[:, step].mean(), real.mean(), rtol=1e-6)


def test_large_files_split_quickly() -> None:
    split = _parts.split([[10**9 + i] for i in range(2000)], 512, "row", "drop")
    pieces = collections.Counter(piece.file for part in split.parts for piece in part)
    assert max(pieces.values()) <= 2
