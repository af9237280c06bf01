"""DistributedGradientTape between real ranks. Run under tfringrun with at least 2 ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = [
    pytest.mark.skipif(hvd.size() < 2, reason="needs at least 2 ranks"),
    pytest.mark.timeout(120),
]
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
MEAN_RANK = (hvd.size() - 1) / 2


def call(body: Any, graph: bool) -> Any:
    return (tf.function(body) if graph else body)()


@MODES
def test_sources_keep_their_structure(graph: bool) -> None:
    w, k, x = tf.Variable(1.0), keras.Variable(1.0), tf.constant(1.0)

    def body() -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            tape.watch(x)
            loss = w * float(hvd.rank()) + 2.0 * k + 3.0 * x * float(hvd.rank())
        return tape.gradient(loss, {"w": w, "rest": [k, x]})

    gradients = call(body, graph)
    assert float(gradients["w"]) == MEAN_RANK
    assert [float(g) for g in gradients["rest"]] == [2.0, 3.0 * MEAN_RANK]


@MODES
def test_persistent(graph: bool) -> None:
    w = tf.Variable(1.0)

    def body() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            one, two = w * float(hvd.rank()), w * 5.0
        tape = hvd.DistributedGradientTape(tape)
        return tape.gradient(one, w), tape.gradient(two, w)

    assert [float(g) for g in call(body, graph)] == [MEAN_RANK, 5.0]


@MODES
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_with_a_distributed_optimizer_reduced_once(graph: bool, op: int) -> None:
    w = keras.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op)
    optimizer.build([w])

    def body() -> None:
        with tf.GradientTape() as tape:
            loss = w * (1.0 + hvd.rank())
        gradient = hvd.DistributedGradientTape(tape, op=op).gradient(loss, w)
        optimizer.apply_gradients([(gradient, w)])

    call(body, graph)
    total = hvd.size() * (1.0 + MEAN_RANK)
    assert float(w.numpy()) == (-total if op == hvd.Sum else -total / hvd.size())


def test_custom_loop_with_a_stock_optimizer() -> None:
    w = keras.Variable(np.zeros(3, "float32"))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([w])
    generator = np.random.default_rng(hvd.rank())

    @tf.function
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * w) ** 2 + tf.reduce_sum(x * w)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, [w])
        optimizer.apply_gradients(zip(gradients, [w], strict=True))

    for _ in range(5):
        step(tf.constant(generator.normal(size=3), tf.float32))
    mine = w.numpy().tobytes()
    assert hvd.allgather_object(mine) == [mine] * hvd.size()


@MODES
def test_sparse(graph: bool) -> None:
    table = tf.Variable(np.zeros((hvd.size() + 1, 2), "float32"))

    def body() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), hvd.rank(), hvd.size()]))
        return tf.convert_to_tensor(hvd.DistributedGradientTape(tape).gradient(loss, table))

    expected = np.array([2.0 / hvd.size()] * hvd.size() + [1.0], "float32")
    np.testing.assert_allclose(call(body, graph), np.outer(expected, [1, 1]), rtol=1e-6)


def test_missing_on_other_ranks_and_everywhere() -> None:
    a, b = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = a * 4.0 if hvd.rank() == 0 else tf.constant(1.0)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, [a, b])
    assert float(gradients[0]) == pytest.approx(4.0 / hvd.size())
    assert gradients[1] is None


def test_ids_of_dead_variables_do_not_matter() -> None:
    """Ranks must agree on what needs a new plan, whatever their memory allocators do."""
    for step in range(30):
        junk = [tf.Variable(1.0) for _ in range((step * (hvd.rank() + 1)) % 4)]
        w = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = w * (1.0 + hvd.rank())
        del junk
        gradient = hvd.DistributedGradientTape(tape).gradient(loss, w)
        assert float(gradient) == 1.0 + MEAN_RANK
