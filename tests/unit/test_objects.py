from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

pytestmark = pytest.mark.usefixtures("world")


@pytest.mark.parametrize(
    "obj", [None, 0, "text", {"a": [1, 2.5]}, b"", lambda: 3], ids=lambda obj: type(obj).__name__
)
def test_object_of_one(obj: object) -> None:
    assert hvd.broadcast_object(obj) is obj
    (copy,) = hvd.allgather_object(obj)
    assert copy() == 3 if callable(obj) else copy == obj


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "bfloat16", "int64", "uint32", "uint64", "bool", "complex64"]
)
def test_variables_keep_their_values(dtype: str) -> None:
    variable = tf.Variable(tf.cast([1, 0, 1], dtype))
    hvd.broadcast_variables([variable], 0)
    np.testing.assert_array_equal(variable, tf.cast([1, 0, 1], dtype))


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_models_variables_are_one_collective(graph: bool) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    before = hvd.stats().collectives

    def broadcast() -> None:
        hvd.broadcast_variables(model.variables, 0)

    (tf.function(broadcast) if graph else broadcast)()
    assert hvd.stats().collectives - before == 1


def test_no_variables() -> None:
    hvd.broadcast_variables([], 0)


def test_text_variable_is_refused() -> None:
    with pytest.raises(TypeError, match="`variables` must have one of the dtypes"):
        hvd.broadcast_variables([tf.Variable("text")], 0)
