"""Optimizers and tapes among some of the ranks."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from tfring.optimizer import DistributedOptimizer
from tfring.tape import DistributedGradientTape

MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def call(function: Any, graph: bool) -> Any:
    return (tf.function(function) if graph else function)()


def test_optimizers_of_two_sets_at_once(ranks: Any) -> None:
    sim = ranks(5)
    even, odd = sim.process_set([0, 2]), sim.process_set([1, 3], 2)

    def body(rank: int) -> float:
        w = keras.Variable(0.0)
        optimizer = DistributedOptimizer(
            keras.optimizers.SGD(1.0), process_set=odd if rank % 2 else even
        )
        optimizer.build([w])
        optimizer.apply([tf.constant(float(rank))], [w])
        return float(w.numpy())

    # Rank 4 is in no set, and keeps its own gradient.
    assert sim.run(body) == [-1.0, -2.0, -1.0, -2.0, -4.0]


@MODES
def test_a_rank_outside(ranks: Any, graph: bool) -> None:
    sim = ranks(3)
    pair = sim.process_set([0, 2])

    def body(rank: int) -> float:
        w = keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=pair)
        optimizer.register_local_var(own := keras.Variable(0.0))
        optimizer.build([w, own])
        gradient = tf.constant(float(rank))
        call(lambda: optimizer.apply([gradient, gradient], [w, own]), graph)
        return float(w.numpy()), float(own.numpy())

    # Rank 1 keeps what it has, as it is.
    assert sim.run(body) == [(-1.0, 0.0), (-1.0, -1.0), (-1.0, -1.0)]


def test_numbers_of_reducers_do_not_depend_on_sets_of_others(ranks: Any) -> None:
    sim = ranks(3)
    pair = sim.process_set([0, 1])

    def body(rank: int) -> float:
        w, x = keras.Variable(0.0), keras.Variable(0.0)
        if rank < 2:
            inside = DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=pair)
            inside.apply([tf.constant(1.0 + rank)], [x])
        DistributedOptimizer(keras.optimizers.SGD(1.0)).apply([tf.constant(1.0 + rank)], [w])
        return float(w.numpy())

    assert sim.run(body) == [-2.0] * 3


@MODES
def test_tape(ranks: Any, graph: bool) -> None:
    sim = ranks(3)
    pair = sim.process_set([0, 2])

    def body(rank: int) -> float:
        w = tf.Variable(1.0)

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                loss = w * float(rank + 1)
            return DistributedGradientTape(tape, process_set=pair).gradient(loss, w)

        return float(call(gradient, graph))

    assert sim.run(body) == [2.0, 2.0, 2.0]  # the last-named is rank 1's own


def test_errors_name_ranks_of_the_job(ranks: Any) -> None:
    sim = ranks(4)
    members = sim.process_set([1, 3])

    w = [keras.Variable(0.0, name=f"w{rank}") for rank in range(4)]

    def fresh(rank: int) -> None:
        optimizer = DistributedOptimizer(
            keras.optimizers.SGD(1.0), process_set=members, strict=True
        )
        optimizer.apply([None if rank == 3 else tf.ones(())], [w[rank]])

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"ranks \[3\]"):
        sim.run(fresh)


def test_different_shapes_name_ranks_of_the_job(ranks: Any) -> None:
    sim = ranks(4)
    members = sim.process_set([1, 3])

    def body(rank: int) -> None:
        if rank in (1, 3):
            v = keras.Variable([0.0] * rank)
            optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=members)
            optimizer.apply([tf.ones(rank)], [v])

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 1 has .*, rank 3 has"):
        sim.run(body)
