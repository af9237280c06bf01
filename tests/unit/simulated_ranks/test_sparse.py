"""Sparse sums over simulated ranks: merged rows, two ways, the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring import _sparse, _ways
from tfring._options import Options
from tfring._sparse import SparseSum, Table
from tfring.compression import Compression
from tfring.constants import Average, Sum

MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
ROWS = ([0, 1, 1], [1, 3])


def slices(rows: list[int], value: float = 1.0, height: int = 4, dtype: Any = "float32") -> Any:
    values = tf.fill((len(rows), 2), tf.constant(value, dtype))
    return tf.IndexedSlices(values, tf.constant(rows, tf.int64), tf.constant([height, 2]))


def total_of(options: Options, height: int = 4, factors: Any = (1.0, 1.0)) -> SparseSum:
    return SparseSum("s", [Table((height, 2), tf.float32)], options, factors)


def column(total: tf.IndexedSlices) -> dict[int, float]:
    assert len(set(total.indices.numpy())) == len(total.indices), "an index comes twice"
    values = total.values.numpy()[:, 0].tolist()
    return dict(zip(total.indices.numpy().tolist(), values, strict=True))


@MODES
@pytest.mark.parametrize(("op", "factor"), [(Average, 0.5), (Sum, 1.0)])
def test_both_ways(
    ranks: Any, graph: bool, op: int, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sum is gathered; then the small table travels whole."""
    sim = ranks(2)

    def body(rank: int) -> list[dict[int, float]]:
        total = total_of(Options(op=op))

        def step() -> Any:
            return total([slices(ROWS[rank])])[0]

        call = tf.function(step) if graph else step
        return [column(call()) for _ in range(3)]

    expected = {0: factor, 1: 3 * factor, 3: factor}
    assert sim.run(body) == [[expected] * 3] * 2
    assert sim.names() == ["s/rows", "s/table", "s/table"]


def test_only_merged_rows_travel(ranks: Any) -> None:
    sim = ranks(2)
    sim.run(lambda rank: total_of(Options())([slices(ROWS[rank])]))
    assert sorted(sim.calls) == [(0, "s/rows", 2), (1, "s/rows", 2)]


def test_the_way_follows_the_rows(ranks: Any) -> None:
    sim = ranks(2)
    few, many = [0], list(range(90))

    def body(rank: int) -> list[int]:
        total = total_of(Options(op=Sum), height=100)
        return [
            sum(column(total([slices(rows, height=100)])[0]).values())
            for rows in (few, few, many, many, many, few, few)
        ]

    assert sim.run(body) == [[2.0, 2.0, 180.0, 180.0, 180.0, 2.0, 2.0]] * 2
    assert sim.names() == [
        *("s/rows", "s/rows", "s/rows"),  # the third could not know
        *("s/table", "s/table", "s/table"),
        "s/rows",
    ]


@MODES
def test_each_variable_has_its_own_way(ranks: Any, graph: bool) -> None:
    sim = ranks(2)

    def body(rank: int) -> Any:
        tables = [Table((4, 2), tf.float32), Table((1000, 2), tf.float32)]
        total = SparseSum("s", tables, Options(op=Sum), (1.0, 1.0))

        def step() -> Any:
            return total([slices(ROWS[rank]), slices([rank, 7], height=1000)])

        call = tf.function(step) if graph else step
        return [[column(t) for t in call()] for _ in range(2)]

    expected = [{0: 1.0, 1: 3.0, 3: 1.0}, {0: 1.0, 1: 1.0, 7: 2.0}]
    assert sim.run(body) == [[expected, expected]] * 2
    assert sorted(sim.names()) == ["s/rows", "s/rows", "s/table"]


@MODES
@pytest.mark.parametrize("who", [[0], [1], []], ids=["first only", "second only", "none"])
def test_empty_contributions(ranks: Any, graph: bool, who: list[int]) -> None:
    def body(rank: int) -> list[dict[int, float]]:
        total = total_of(Options(op=Sum))
        mine = [2, 2] if rank in who else []
        call = lambda: total([slices(mine)])[0]  # noqa: E731
        call = tf.function(call) if graph else call
        return [column(call()) for _ in range(3)]

    expected = {2: 2.0} if who else {}
    assert ranks(2).run(body) == [[expected] * 3] * 2


@pytest.mark.parametrize("below", [0.0, float("inf")], ids=["dense", "gathered"])
def test_factors_and_compression(ranks: Any, below: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sparse, "GATHER_BELOW", below)

    def body(rank: int) -> Any:
        options = Options(gradient_predivide_factor=4.0, compression=Compression.fp16)
        total = total_of(options, factors=(0.25, 4.0))
        for _ in range(2):
            result = total([slices(ROWS[rank], 3.0)])[0]
        assert result.values.dtype == tf.float32
        return column(result)

    assert ranks(2).run(body) == [{0: 1.5, 1: 4.5, 3: 1.5}] * 2


def test_large_16_bit_values_do_not_overflow(ranks: Any) -> None:
    def body(rank: int) -> Any:
        total = SparseSum("s", [Table((4, 2), tf.float16)], Options(), (1.0, 1.0))
        return column(total([slices([1], 60000.0, dtype="float16")])[0])

    assert ranks(2).run(body) == [{1: np.float16(60000.0)}] * 2


def test_start_over(ranks: Any) -> None:
    sim = ranks(1)
    total = total_of(Options(op=Sum))
    sim.run(lambda rank: [total([slices([0, 1, 2, 3])]) for _ in range(2)])
    _ways.start_over()
    sim.run(lambda rank: total([slices([0])]))
    assert sim.names() == ["s/rows", "s/table", "s/rows"]


def test_in_a_v1_graph_rows_are_gathered(ranks: Any) -> None:
    sim = ranks(1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        total = total_of(Options(op=Sum))
        result = total([slices([1, 1])])[0]
        for _ in range(2):
            assert session.run(result.values).tolist() == [[2.0, 2.0]]
    assert sim.names() == ["s/rows", "s/rows"]


def test_unknown_height_is_always_gathered() -> None:
    assert Table((None, 2), tf.float32).dense_from() == float("inf")
