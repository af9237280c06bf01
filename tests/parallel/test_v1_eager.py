"""Optimizers of tf.compat.v1 in eager mode and in tf.function, where TensorFlow allows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

v1 = tf.compat.v1

MEAN_RANK = (hvd.size() - 1) / 2
FUNCTION = pytest.mark.parametrize("function", [False, True], ids=["eager", "function"])


def sgd(**arguments: Any) -> Any:
    return hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **arguments)


@FUNCTION
def test_gradients_are_reduced(rank: int, function: bool) -> None:
    w = tf.Variable(0.0)
    optimizer = sgd()

    def step() -> None:
        optimizer.minimize(lambda: w * float(rank), var_list=[w])

    call = tf.function(step) if function else step
    call()
    call()
    assert float(w) == -2 * MEAN_RANK


@FUNCTION
@pytest.mark.many_ranks
@pytest.mark.skipif(hvd.size() & (hvd.size() - 1) != 0, reason="needs a power of two of ranks")
def test_adasum_of_orthogonal_changes_is_their_sum(rank: int, size: int, function: bool) -> None:
    w = tf.Variable(np.arange(size, dtype=np.float32))
    optimizer = sgd(op=hvd.Adasum)

    def step() -> None:
        optimizer.minimize(lambda: w[rank] * (rank + 1.0), var_list=[w])

    (tf.function(step) if function else step)()
    np.testing.assert_array_equal(w, np.arange(size) - np.arange(1, size + 1))


def test_passes_need_a_v1_graph() -> None:
    with pytest.raises(ValueError, match="`backward_passes_per_step` must be 1"):
        sgd(backward_passes_per_step=2)


def test_global_variables_need_a_v1_graph() -> None:
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
