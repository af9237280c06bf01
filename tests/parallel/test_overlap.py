"""Buckets are reduced while the backward pass still runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _records

LIMIT_S = 15.0
STEPS = 2


class Watch:
    """Sees what has been reduced while a backward pass is on its way."""

    def __init__(self, recording: _records.Recording) -> None:
        self.recording = recording
        self.records: list[_records.Record] = []
        self.waits: list[int] = []  # when each ended in time; by time.monotonic_ns

    def ended(self, bucket: int) -> list[_records.Record]:
        """That bucket in each step so far."""
        self.records += self.recording.take()
        return [record for record in self.records if record.name.endswith(f"/bucket{bucket}")]

    def wait(self, gradient: np.ndarray) -> np.ndarray:
        """Holds the backward pass up until the first bucket of this step has been reduced."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if len(self.ended(0)) > len(self.waits):
                self.waits.append(time.monotonic_ns())
                break
            time.sleep(0.001)
        return gradient


class Held(keras.layers.Layer):
    """The identity, whose gradient comes when the watch lets it pass."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()

        def backward(upstream: Any) -> Any:
            gradient = tf.numpy_function(watch.wait, [upstream], upstream.dtype)
            return tf.ensure_shape(gradient, upstream.shape)

        self._identity = tf.custom_gradient(lambda x: (tf.identity(x), backward))

    def call(self, x: Any) -> Any:
        return self._identity(x)


@pytest.fixture
def watch() -> Iterator[Watch]:
    recording = _records.Recording(4096)
    yield Watch(recording)
    recording.stop()


def model_of(watch: Watch) -> keras.Model:
    """Its last layer's gradients are there before those of its first one."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4), Held(watch), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,)), *layers])


def batches(rank: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rank)
    return generator.random((4 * STEPS, 3), "float32"), generator.random((4 * STEPS, 1), "float32")


def fit(model: keras.Model, rank: int) -> None:
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), groups=2), "mse")
    model.fit(*batches(rank), batch_size=4, verbose=0)


def fit_compiled_in_one(model: keras.Model, rank: int) -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), groups=2)
    model.compile(optimizer, "mse", steps_per_execution=STEPS)
    model.fit(*batches(rank), batch_size=4, verbose=0)


def loop_with_tape(model: keras.Model, rank: int) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape(), groups=2) as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    x, y = batches(rank)
    for i in range(STEPS):
        step(tf.constant(x[4 * i : 4 * i + 4]), tf.constant(y[4 * i : 4 * i + 4]))


@pytest.mark.parametrize("train", [fit, fit_compiled_in_one, loop_with_tape])
def test_the_first_bucket_does_not_wait_for_the_backward_pass(
    watch: Watch, train: Callable[[keras.Model, int], None], rank: int
) -> None:
    train(model_of(watch), rank)
    # Would a bucket wait for all gradients, the last ones would have waited in vain.
    assert len(watch.waits) == STEPS
    first, second = watch.ended(0), watch.ended(1)
    assert [len(first), len(second)] == [STEPS, STEPS]
    for early, held_until, late in zip(first, watch.waits, second, strict=True):
        assert early.ended_ns < held_until < late.submitted_ns
