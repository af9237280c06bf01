"""The plan: buckets, agreement, and the errors when ranks differ."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tfring import _plan
from tfring._plan import Entry, Kind


def entry(position: int, kind: Kind = Kind.DENSE, size: int = 1, **kwargs: Any) -> Entry:
    return Entry(
        f"v{position}", (size,), kwargs.pop("dtype", "float32"), kind, **kwargs, position=position
    )


def members(plan: _plan.Plan) -> list[tuple[int, ...]]:
    return [bucket.members for bucket in plan.buckets]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([], 8, []),
        ([1], 0, [(0,)]),
        ([1, 1, 1], 0, [(2,), (1,), (0,)]),
        ([1, 1, 1], 8, [(2, 1), (0,)]),
        ([1, 5, 1], 8, [(2,), (1,), (0,)]),
        ([2, 2], 16, [(1, 0)]),
        ([0, 0, 1], 4, [(2, 1, 0)]),
    ],
)
def test_buckets_by_size_last_first(sizes: Any, limit: int, expected: Any) -> None:
    entries = [entry(i, size=size) for i, size in enumerate(sizes)]
    assert members(_plan.make_plan("p", entries, bucket_bytes=limit)) == expected


@pytest.mark.parametrize(
    ("count", "chunks", "expected"),
    [
        (5, 2, [(4, 3, 2), (1, 0)]),
        (2, 5, [(1,), (0,)]),
        (4, 1, [(3, 2, 1, 0)]),
        (0, 3, []),
    ],
)
def test_buckets_by_number(count: int, chunks: int, expected: Any) -> None:
    entries = [entry(i) for i in range(count)]
    assert members(_plan.make_plan("p", entries, bucket_bytes=1, chunks=chunks)) == expected


def test_groups_stay_together_whatever_their_size() -> None:
    entries = [entry(0, group=1), entry(1, size=100), entry(2), entry(3, group=1), entry(4)]
    plan = _plan.make_plan("p", entries, bucket_bytes=8)
    assert members(plan) == [(4, 2), (3, 0), (1,)]


def test_only_dense_gradients_are_in_buckets() -> None:
    kinds = [Kind.DENSE, Kind.SPARSE, Kind.ABSENT, Kind.REDUCED, Kind.SPARSE]
    plan = _plan.make_plan("p", [entry(i, k) for i, k in enumerate(kinds)], bucket_bytes=99)
    assert members(plan) == [(0,)]
    assert plan.sparse == (4, 1)


def test_names_come_from_positions() -> None:
    plan = _plan.make_plan("opt3", [entry(0), entry(1)], bucket_bytes=0)
    assert [bucket.name for bucket in plan.buckets] == ["opt3/bucket0", "opt3/bucket1"]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("dd", Kind.DENSE),
        ("ds", Kind.DENSE),
        ("d-", Kind.DENSE),
        ("s-", Kind.SPARSE),
        ("--", Kind.ABSENT),
        ("rr", Kind.REDUCED),
    ],
)
def test_kinds_are_merged(column: str, expected: Kind) -> None:
    (agreed,) = _plan.agree(
        "p", [entry(0, Kind(column[0]))], [], lambda item, name: [(item[0], c) for c in column]
    )
    assert agreed.kind is expected


@pytest.mark.parametrize("column", ["rd", "r-", "rs"])
def test_reduced_on_some_ranks_only_is_an_error(column: str) -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"ranks \[0\] only"):
        _plan.agree("p", [entry(0, Kind.REDUCED)], [], lambda x, _: [(x[0], c) for c in column])


def exchange_with(lines: list[str]) -> Any:
    """A peer that holds other lines."""
    return lambda item, name: [item, lines if isinstance(item, list) else ("other", "d")]


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        (["a", "b"], ["a", "c"], r"rank 0 has \[b\], rank 1 has \[c\]"),
        (["a"], ["a", "c"], r"rank 0 has \[\(nothing: only 1 entries\)\], rank 1 has \[c\]"),
        (["a", "b"], ["a"], r"rank 1 has \[\(nothing: only 1 entries\)\]"),
    ],
)
def test_difference_is_shown(mine: list[str], theirs: list[str], text: str) -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match=text):
        _plan.require_alike("p", mine, exchange_with(theirs))


def test_one_exchange_when_alike() -> None:
    names = []

    def exchange(item: Any, name: str) -> list[Any]:
        names.append(name)
        return [item, item]

    assert _plan.require_alike("p", ["a"], exchange, "x") == ["x", "x"]
    assert names == ["p/digest"]


@pytest.mark.parametrize(
    ("mine", "agreed", "fits"),
    [
        (Kind.DENSE, Kind.DENSE, True),
        (Kind.ABSENT, Kind.DENSE, True),
        (Kind.ABSENT, Kind.SPARSE, True),
        (Kind.SPARSE, Kind.DENSE, True),
        (Kind.DENSE, Kind.SPARSE, False),
        (Kind.DENSE, Kind.ABSENT, False),
        (Kind.ABSENT, Kind.REDUCED, False),
        (Kind.DENSE, Kind.REDUCED, False),
    ],
)
def test_covers(mine: Kind, agreed: Kind, fits: bool) -> None:
    plan = _plan.make_plan("p", [entry(0, agreed)], bucket_bytes=1)
    assert plan.covers([entry(0, mine)]) is fits


def test_does_not_cover_another_dtype() -> None:
    plan = _plan.make_plan("p", [entry(0)], bucket_bytes=1)
    assert not plan.covers([entry(0, dtype="float16")])
