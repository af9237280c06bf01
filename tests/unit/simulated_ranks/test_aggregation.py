"""Local aggregation on its own."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tfring._aggregation import LocalAggregation

GRAPH = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def totals(aggregation: LocalAggregation, gradients: list[float], graph: bool) -> list[float]:
    """Feeds the gradients; returns the totals that came out."""
    log = tf.Variable([], shape=[None], dtype=tf.float32)
    aggregation.build([tf.zeros(())], [0])

    def call(gradient: tf.Tensor) -> None:
        def apply(total: list[Any]) -> None:
            log.assign(tf.concat([log, total], 0))

        aggregation.run([gradient], [0], apply)

    step = tf.function(call) if graph else call
    for gradient in gradients:
        step(tf.constant(gradient))
    return log.numpy().tolist()


@GRAPH
@pytest.mark.parametrize(
    ("passes", "average", "expected"),
    [(2, False, [3.0, 7.0]), (2, True, [1.5, 3.5]), (3, False, [6.0]), (5, True, [3.0])],
)
def test_totals(graph: bool, passes: int, average: bool, expected: list[float]) -> None:
    assert totals(LocalAggregation(passes, average), [1.0, 2.0, 3.0, 4.0, 5.0], graph) == expected


@GRAPH
def test_infinity_does_not_stay(graph: bool) -> None:
    out = totals(LocalAggregation(2, False), [1.0, float("inf"), 1.0, 1.0], graph)
    assert out == [float("inf"), 2.0]


def test_none_stays_none_and_has_no_total() -> None:
    aggregation = LocalAggregation(1, False)
    aggregation.build([tf.zeros(2), tf.zeros(())], [0, 1])
    seen: list[Any] = []
    aggregation.run([None, tf.constant(2.0)], [0, 1], seen.extend)
    assert seen[0] is None
    assert float(seen[1]) == 2.0


def test_16_bit_gradients_add_up_in_float32() -> None:
    aggregation = LocalAggregation(4097, False)
    aggregation.build([tf.zeros((), tf.float16)], [0])
    seen: list[Any] = []
    for _ in range(4097):
        aggregation.run([tf.constant(1.0, tf.float16)], [0], seen.extend)
    assert float(seen[0]) == float(tf.cast(4097.0, tf.float16))
    assert seen[0].dtype == tf.float16
    assert [v.dtype for v in aggregation.variables_at([0])] == [tf.int64, tf.float32]


def test_sees_the_dtype_of_each_pass() -> None:
    aggregation = LocalAggregation(2, False)
    aggregation.build([tf.zeros(())], [3])
    seen: list[Any] = []
    for _ in range(2):
        aggregation.run([tf.constant(1.0)], [3], seen.extend)
    assert [t.dtype for t in seen] == [tf.float32]
