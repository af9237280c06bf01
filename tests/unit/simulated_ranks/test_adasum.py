"""Adasum optimizers over simulated ranks, checked against a model of the paper in NumPy."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring.compression import Compression
from tfring.constants import Adasum
from tfring.optimizer import DistributedOptimizer
from tfring.tape import DistributedGradientTape

MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def adasum(vectors: list[np.ndarray]) -> np.ndarray:
    """Maleki et al., arXiv:2006.02924: pairs, then pairs of pairs."""
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    a, b = adasum(vectors[:half]), adasum(vectors[half:])
    dot = float(a @ b)
    scale_a = 1 - dot / (2 * float(a @ a)) if a.any() else 1.0
    scale_b = 1 - dot / (2 * float(b @ b)) if b.any() else 1.0
    return scale_a * a + scale_b * b


def run(sim: Any, make: Any, gradients: Any, graph: bool) -> list[list[np.ndarray]]:
    """gradients[rank][step] -> weights of each rank after each step, from 1, 2, 3."""

    def body(rank: int) -> list[np.ndarray]:
        w = keras.Variable(np.array([1.0, 2.0, 3.0], "float32"))
        optimizer = make()
        optimizer.build([w])
        step = lambda g: optimizer.apply([g], [w])  # noqa: E731
        step = tf.function(step) if graph else step
        values = []
        for gradient in gradients[rank]:
            step(tf.constant(gradient, tf.float32))
            values.append(np.array(w.numpy()))
        return values

    return sim.run(body)


def random_gradients(ranks: int, steps: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(ranks, steps, 3))


@MODES
def test_two_by_hand(ranks: Any, graph: bool) -> None:
    """Orthogonal changes add up, parallel ones are averaged."""
    make = lambda: DistributedOptimizer(keras.optimizers.SGD(1.0), op=Adasum)  # noqa: E731
    gradients = [[[1.0, 0.0, 0.0], [4.0, 0.0, 0.0]], [[0.0, 2.0, 0.0], [2.0, 0.0, 0.0]]]
    for first, second in run(ranks(2), make, gradients, graph):
        assert first.tolist() == [0.0, 0.0, 3.0]
        # (1 - 8/32) * -4 + (1 - 8/8) * -2 = -3
        assert second.tolist() == [-3.0, 0.0, 3.0]


# Four ranks would block more of TensorFlow's threads than there are, in graphs.
@pytest.mark.parametrize(("graph", "size"), [(False, 2), (False, 4), (True, 2)])
def test_momentum_against_the_model(ranks: Any, graph: bool, size: int) -> None:
    gradients = random_gradients(size, 4)
    make = lambda: DistributedOptimizer(  # noqa: E731
        keras.optimizers.SGD(0.1, momentum=0.9), op=Adasum
    )
    w, velocity = np.array([1.0, 2.0, 3.0]), np.zeros((size, 3))
    expected = []
    for step in range(4):
        velocity = 0.9 * velocity - 0.1 * gradients[:, step]  # each rank's own
        w = w + adasum(list(velocity))
        expected.append(w)
    for values in run(ranks(size), make, gradients, graph):
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


@MODES
def test_one_update_for_several_passes(ranks: Any, graph: bool) -> None:
    sim = ranks(2)
    make = lambda: DistributedOptimizer(  # noqa: E731
        keras.optimizers.SGD(0.5), op=Adasum, backward_passes_per_step=2
    )
    gradients = random_gradients(2, 2)
    start = np.array([1.0, 2.0, 3.0])
    expected = start + adasum(list(-0.5 * gradients.sum(axis=1)))
    for first, second in run(sim, make, gradients, graph):
        np.testing.assert_array_equal(first, start)
        np.testing.assert_allclose(second, expected, rtol=1e-5)
    assert sim.names() == ["optimizer0/bucket0"]


@MODES
def test_native_accumulation_combines_once(ranks: Any, graph: bool) -> None:
    sim = ranks(2)
    make = lambda: DistributedOptimizer(  # noqa: E731
        keras.optimizers.SGD(0.5, gradient_accumulation_steps=2), op=Adasum
    )
    gradients = random_gradients(2, 2)
    expected = np.array([1.0, 2.0, 3.0]) + adasum(list(-0.5 * gradients.mean(axis=1)))
    for values in run(sim, make, gradients, graph):
        np.testing.assert_allclose(values[1], expected, rtol=1e-5)
    assert sim.names() == ["optimizer0/bucket0"]


@MODES
@pytest.mark.parametrize("inside", [True, False], ids=["scale(dist)", "dist(scale)"])
def test_overflow_on_one_rank_stops_all(ranks: Any, graph: bool, inside: bool) -> None:
    def body(rank: int) -> Any:
        w, sgd = keras.Variable(0.0), keras.optimizers.SGD(1.0)
        if inside:
            wrapped = DistributedOptimizer(sgd, op=Adasum)
            optimizer = keras.optimizers.LossScaleOptimizer(wrapped, initial_scale=4.0)
        else:
            scaled = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=4.0)
            optimizer = DistributedOptimizer(scaled, op=Adasum)
        optimizer.build([w])
        step = lambda g: optimizer.apply([g], [w])  # noqa: E731
        step = tf.function(step) if graph else step
        values = []
        for gradient in ([8.0, 8.0, 4.0], [8.0, np.inf, 4.0])[rank]:
            step(tf.constant(gradient))
            values.append(float(w.numpy()))
        return values, float(optimizer.dynamic_scale.numpy()), int(sgd.iterations)

    # Equal changes are averaged: -2, nothing, and -2 with the halved scale.
    assert ranks(2).run(body) == [([-2.0, -2.0, -4.0], 2.0, 2)] * 2


@MODES
def test_local_variables_are_left_out(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> tuple[float, float]:
        own, shared = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), op=Adasum)
        optimizer.register_local_var(own)
        optimizer.build([own, shared])
        gradients = [tf.constant(2.0 + 2.0 * rank), tf.constant(4.0 - 2.0 * rank)]
        step = lambda: optimizer.apply(gradients, [own, shared])  # noqa: E731
        (tf.function(step) if graph else step)()
        return float(own.numpy()), float(shared.numpy())

    assert ranks(2).run(body) == [(-1.0, -3.0), (-2.0, -3.0)]


@MODES
def test_sparse_gradients(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> list[float]:
        table = keras.Variable(np.zeros((3, 1), "float32"))
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), op=Adasum)
        optimizer.build([table])
        slices = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([rank, rank]), tf.constant([3, 1]))
        step = lambda: optimizer.apply([slices], [table])  # noqa: E731
        (tf.function(step) if graph else step)()
        return table.numpy().ravel().tolist()

    assert ranks(2).run(body) == [[-2.0, -2.0, 0.0]] * 2


def test_missing_on_one_rank_is_no_change_there(ranks: Any) -> None:
    def body(rank: int) -> Any:
        v, unused = keras.Variable(0.0), keras.Variable(7.0)
        sgd = keras.optimizers.SGD(1.0)
        optimizer = DistributedOptimizer(sgd, op=Adasum)
        optimizer.apply([None if rank else tf.constant(4.0), None], [v, unused])
        return float(v.numpy()), float(unused.numpy()), int(sgd.iterations)

    assert ranks(2).run(body) == [(-4.0, 7.0, 1)] * 2


def test_constraint_and_compression(ranks: Any) -> None:
    def body(rank: int) -> Any:
        w = keras.Variable(1.0)
        w.constraint = keras.constraints.NonNeg()
        optimizer = DistributedOptimizer(
            keras.optimizers.SGD(1.0), op=Adasum, compression=Compression.fp16
        )
        optimizer.apply([tf.constant([3.0, -2.0][rank])], [w])
        return float(w.numpy()), w.dtype

    # Local changes are -1 (stopped at 0) and 2: (1 + 2/2) * -1 + (1 + 2/8) * 2 = 0.5
    assert ranks(2).run(body) == [(1.5, "float32")] * 2


def test_in_a_process_set(ranks: Any) -> None:
    sim = ranks(3)
    pair = sim.process_set([0, 2])

    def body(rank: int) -> float:
        w = keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), op=Adasum, process_set=pair)
        optimizer.apply([tf.constant([4.0, 1.0, 2.0][rank])], [w])
        return float(w.numpy())

    assert sim.run(body) == [-3.0, -1.0, -3.0]


def test_one_rank_alone_makes_its_stock_step(ranks: Any) -> None:
    """Bit for bit: weights are not their start plus a difference then."""
    w, alone = (keras.Variable(np.float32(0.1)) for _ in range(2))
    keras.optimizers.Adam(0.3).apply([tf.constant(0.7)], [w])
    ranks(1)
    DistributedOptimizer(keras.optimizers.Adam(0.3), op=Adasum).apply([tf.constant(0.7)], [alone])
    assert w.numpy().tobytes() == alone.numpy().tobytes()


def test_moving_averages_of_weights_are_refused(ranks: Any) -> None:
    ranks(2)
    with pytest.raises(ValueError, match="use_ema"):
        DistributedOptimizer(keras.optimizers.SGD(1.0, use_ema=True), op=Adasum)


@MODES
def test_tape_combines_gradients(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> float:
        w = tf.Variable(1.0)

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                loss = w * (4.0 - 2.0 * rank)
            return DistributedGradientTape(tape, op=Adasum).gradient(loss, w)

        return float((tf.function(gradient) if graph else gradient)())

    assert ranks(2).run(body) == [3.0, 3.0]


def test_tape_with_sparse_gradients(ranks: Any) -> None:
    sim = ranks(2)

    def body(rank: int, **options: Any) -> Any:
        table = tf.Variable([[1.0], [1.0]])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank]))
        return DistributedGradientTape(tape, op=Adasum, **options).gradient(loss, table)

    with pytest.raises(NotImplementedError, match="sparse_as_dense=True"):
        sim.run(body)
    assert sim.calls == []
    for result in ranks(2).run(lambda rank: body(rank, sparse_as_dense=True)):
        assert result.numpy().tolist() == [[1.0], [1.0]]
