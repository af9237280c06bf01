"""Gradients in a world of one; tests/parallel has those that cross ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

pytestmark = pytest.mark.usefixtures("world")

FUNCTIONS = {
    "sum": lambda x: hvd.allreduce(x, op=hvd.Sum),
    "average": lambda x: hvd.allreduce(x, op=hvd.Average),
    "scaled sum": lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2, postscale_factor=0.5),
    "min": lambda x: hvd.allreduce(x, op=hvd.Min),
    "max": lambda x: hvd.allreduce(x, op=hvd.Max),
    "scaled max": lambda x: hvd.allreduce(x, op=hvd.Max, prescale_factor=2.0, postscale_factor=0.5),
    "product": lambda x: hvd.allreduce(x, op=hvd.Product),
    "allgather": hvd.allgather,
    "broadcast": lambda x: hvd.broadcast(x, 0),
    "named": lambda x: hvd.allreduce(x, name="named"),
    "compressed": lambda x: hvd.allreduce(x, compression=hvd.Compression.bf16),
}


def gradient(function, x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(function(x) * tf.constant([3.0, 5.0], x.dtype))
    return tape.gradient(y, x)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_gradient_of_one_is_the_cotangent(function, graph: bool) -> None:
    compute = tf.function(gradient) if graph else gradient
    np.testing.assert_array_equal(compute(function, tf.constant([0.0, 2.0])), [3.0, 5.0])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64], ids=lambda d: d.name)
def test_gradient_has_the_inputs_dtype(dtype: tf.DType) -> None:
    assert gradient(FUNCTIONS["allgather"], tf.zeros([2], dtype)).dtype == dtype


def test_integers_in_a_group_have_none() -> None:
    x, n = tf.constant(2.0), tf.constant(2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, m = hvd.grouped_allreduce([x, n], op=hvd.Sum)
        z = y * tf.cast(m, tf.float32)
    assert float(tape.gradient(z, x)) == 2.0


def test_unused_results_in_a_group() -> None:
    a, b = tf.constant(2.0), tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        y, _ = hvd.grouped_allreduce([a, b], op=hvd.Sum)
    first, second = tape.gradient(y, [a, b])
    assert float(first) == 1.0
    assert second is None or float(second) == 0.0


def test_sparse_cotangent() -> None:
    table = tf.Variable(tf.ones([4, 2]))
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.gather(hvd.allreduce(table, op=hvd.Sum), [1, 1]))
    expected = [[0, 0], [2, 2], [0, 0], [0, 0]]
    np.testing.assert_array_equal(tf.convert_to_tensor(tape.gradient(y, table)), expected)


def test_second_derivative() -> None:
    x = tf.Variable(3.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = hvd.allreduce(x, op=hvd.Sum) ** 3
        first = inner.gradient(y, x)
    assert (float(first), float(outer.gradient(first, x))) == (27.0, 18.0)


def test_function_called_in_a_tape() -> None:
    x = tf.Variable([1.0, 2.0])
    square = tf.function(lambda: tf.reduce_sum(hvd.allgather(hvd.allreduce(x)) ** 2))
    with tf.GradientTape() as tape:
        y = square()
    np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0])


def test_loop() -> None:
    @tf.function
    def compute(x: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(n):
                y = hvd.allreduce(y * 2.0, op=hvd.Sum)
        return tape.gradient(y, x)

    assert float(compute(tf.constant(1.0), tf.constant(5))) == 32.0
