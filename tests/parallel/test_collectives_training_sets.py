"""Optimizers and tapes among the ranks of a process set, for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
SIZE = hvd.size()
pytestmark = [pytest.mark.many_ranks, pytest.mark.timeout(120)]
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def call(function: Any, graph: bool) -> Any:
    return (tf.function(function) if graph else function)()


@pytest.fixture(scope="module")
def halves() -> Iterator[list[hvd.ProcessSet]]:
    """A world with a set of the even and a set of the odd ranks."""
    hvd.shutdown()
    sets = [hvd.ProcessSet(range(first, SIZE, 2)) for first in (0, 1)]
    hvd.init(process_sets=sets)
    yield sets
    hvd.shutdown()
    hvd.init()


@MODES
def test_optimizers_of_two_sets_run_at_once(halves: list[hvd.ProcessSet], graph: bool) -> None:
    mine = halves[hvd.rank() % 2]
    w, everywhere = keras.Variable(0.0), keras.Variable(0.0)
    inside = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=mine)
    outside = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    inside.build([w])
    outside.build([everywhere])
    gradient = tf.constant(float(hvd.rank()))

    def step() -> None:
        inside.apply([gradient], [w])
        outside.apply([gradient], [everywhere])

    call(step, graph)
    assert float(w.numpy()) == -np.mean(mine.ranks)
    assert float(everywhere.numpy()) == -np.mean(range(hvd.size()))


@MODES
def test_a_rank_outside_keeps_its_own(halves: list[hvd.ProcessSet], graph: bool) -> None:
    even = halves[0]
    w, table = keras.Variable(0.0), keras.Variable(np.zeros((2, 1), "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=even)
    optimizer.build([w, table])

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = w * float(hvd.rank())
        gradient = hvd.DistributedGradientTape(tape, process_set=even).gradient(loss, w)
        rows = tf.IndexedSlices(tf.fill((1, 1), 1.0 + hvd.rank()), [0], [2, 1])
        optimizer.apply([tf.constant(float(hvd.rank())), rows], [w, table])
        return gradient

    expected = np.mean(even.ranks) if even.included() else hvd.rank()
    assert float(call(step, graph)) == expected
    assert float(w.numpy()) == -expected
    assert float(table.numpy()[0, 0]) == -1.0 - expected
