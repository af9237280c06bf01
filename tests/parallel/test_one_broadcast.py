"""However many variables there are, they are broadcast by one collective."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _records


def model_of(rank: int) -> keras.Model:
    """Its variables differ between ranks."""
    keras.utils.set_random_seed(rank)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    return model


def by_variables(model: keras.Model) -> int:
    hvd.broadcast_variables(model.weights, root_rank=0)
    return len(model.weights)


def in_a_function(model: keras.Model) -> int:
    @tf.function
    def start() -> None:
        hvd.broadcast_variables(model.weights, root_rank=0)

    start()
    return len(model.weights)


def by_callback(model: keras.Model) -> int:
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=callbacks)
    # Adam's: two for each trainable variable, how many updates, the learning rate.
    return len(model.weights) + 2 * len(model.trainable_variables) + 2


@pytest.mark.parametrize("way", [by_variables, in_a_function, by_callback])
def test_variables_are_broadcast_in_one_collective(
    way: Callable[[keras.Model], int], rank: int
) -> None:
    model = model_of(rank)
    recording = _records.Recording(4096)
    try:
        expected = way(model)
    finally:
        records = recording.stop()
    assert [record.tensors for record in records if record.kind == "broadcast"] == [expected]
