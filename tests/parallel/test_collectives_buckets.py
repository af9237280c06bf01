"""Gradients in buckets: the bits do not depend on timing or on the buckets' size."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

TENSORS = 40
RUNS = 10


@pytest.fixture
def bucket_bytes() -> Iterator[pytest.MonkeyPatch]:
    """Changes the setting, then gives the world that was there before back."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    hvd.shutdown()
    hvd.init()


def gradients_of(rank: int) -> list[np.ndarray]:
    """Sums of these depend on the order of additions."""
    generator = np.random.default_rng(rank)
    return [
        generator.choice([1e8, 1.0, -1e8, 3e-5], 50 + i).astype("float32") for i in range(TENSORS)
    ]


def late(x: np.ndarray) -> np.ndarray:
    time.sleep(random.random() * 0.02)
    return x


def digests(rank: int) -> set[str]:
    """The different results of several runs of one optimizer."""
    gradients = gradients_of(rank)
    variables = [keras.Variable(np.zeros_like(g)) for g in gradients]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.build(variables)

    @tf.function
    def step() -> None:
        for v in variables:
            v.assign(tf.zeros(v.shape))
        delayed = [tf.numpy_function(late, [tf.constant(g)], tf.float32) for g in gradients]
        for x, v in zip(delayed, variables, strict=True):
            x.set_shape(v.shape)
        optimizer.apply(delayed, variables)

    found = set()
    for _ in range(RUNS):
        step()
        bits = b"".join(v.numpy().tobytes() for v in variables)
        found.add(hashlib.sha256(bits).hexdigest())
    return found


@pytest.mark.ranks(3)
def test_bits_do_not_depend_on_time_or_bucket_size(
    bucket_bytes: pytest.MonkeyPatch, rank: int
) -> None:
    found: set[str] = set()
    for size in (1 << 10, 32 << 20):
        hvd.shutdown()
        bucket_bytes.setenv("TFRING_FUSION_THRESHOLD", str(size))
        hvd.init()
        before = hvd.stats().collectives
        found |= digests(rank)
        # The limit had its effect: 13 KiB of gradients in many buckets, or in one.
        assert (hvd.stats().collectives - before > 5 * RUNS) == (size == 1 << 10)
    assert len({*found, *hvd.allgather_object(next(iter(found)))}) == 1
