"""Parts of data sets, between real ranks. Run under tfringrun with at least 2 ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring import _first_batch
from tfring import data as tfdata

hvd.init()
pytestmark = [
    pytest.mark.skipif(hvd.size() < 2, reason="needs at least 2 ranks"),
    pytest.mark.timeout(60),
]


def constant_gradient(count: int, value: float, known: bool) -> Any:
    """Batches whose gradient is `value`, in the model below."""
    element = np.full((1, 1), value, "float32"), np.zeros((1, 1), "float32")
    if known:
        return tf.data.Dataset.from_tensors(element).repeat(count)

    def elements() -> Iterator[Any]:
        yield from [element] * count

    spec = tf.TensorSpec((None, 1), tf.float32)
    return tf.data.Dataset.from_generator(elements, output_signature=(spec, spec))


def linear_model(**options: Any) -> Any:
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer, loss=lambda y, p: keras.ops.mean(p), **options)
    return model


def weight(model: Any) -> float:
    return float(model.get_weights()[0][0, 0])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("steps", [1, 2], ids=["step by step", "two at once"])
def test_all_stop_with_the_shortest(rank: int, known: bool, steps: int) -> None:
    count, value = ((5, 1.0), (3, 3.0))[rank]
    batches = tfdata.shortest(constant_gradient(count, value, known))
    model = linear_model(steps_per_execution=steps)
    model.fit(batches, verbose=0)
    assert weight(model) == -6.0


@pytest.mark.ranks(2)
def test_epochs_that_end_early(rank: int) -> None:
    batches = tfdata.shortest(constant_gradient(9 + rank, 1.0, known=False))
    batches = batches.prefetch(1 + 7 * rank)  # one rank asks for more than the other
    model = linear_model()
    model.fit(batches, epochs=3, steps_per_epoch=2, verbose=0)
    assert weight(model) == -(3 * 2)
    model.fit(batches, validation_data=batches, epochs=2, verbose=0)
    assert weight(model) == -(6 + 2 * 9)
    assert hvd.allgather_object(rank) == [0, 1]


def small_model() -> Any:
    keras.utils.set_random_seed(2)
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
    )


@pytest.mark.parametrize("by", ["element", "batch"])
def test_padded_training_is_that_of_one_process(size: int, by: str) -> None:
    generator = np.random.default_rng(0)
    count = 8 * size + 3
    x, y = (generator.normal(size=(count, k)).astype("float32") for k in (4, 1))
    weights = generator.uniform(0.5, 2.0, size=count).astype("float32")
    # A shuffle goes on with other orders in each epoch, so there are two.
    samples, same = (
        tf.data.Dataset.from_tensor_slices((x, y, weights)).shuffle(count, seed=5) for _ in range(2)
    )

    alone = small_model()
    alone.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    alone.fit(samples.batch(4 * size), epochs=2, verbose=0)

    if by == "batch":
        mine = tfdata.shard(same.batch(4 * size), by="batch", remainder="pad")
    else:
        mine = tfdata.shard(same, remainder="pad", batch_size=4)
    model = small_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    model.fit(mine, epochs=2, verbose=0)
    for a, b in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_a_fault_of_one_rank_is_told_to_all(rank: int) -> None:
    text = "Received: batch_size=0" if rank == 1 else "failed on rank 1: ValueError: `batch_size`"
    with pytest.raises(ValueError, match=text):
        tfdata.shard(tf.data.Dataset.range(9), batch_size=0 if rank == 1 else 3)
    assert hvd.allgather_object(rank) == list(range(hvd.size()))


def test_forgotten_sharding_is_told(
    rank: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is told once: other tests in this process may have heard it.
    monkeypatch.setattr(_first_batch, "_told", set())
    x = np.arange(8, dtype="float32").reshape(8, 1)
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model = linear_model()
    with caplog.at_level(logging.WARNING, "tfring"):
        model.fit(x, x, batch_size=2, shuffle=False, verbose=0, callbacks=[start])
    assert weight(model) == -float(np.mean(x) * 4)
    told = [r for r in caplog.records if "first batch is the same on ranks 0" in r.getMessage()]
    assert len(told) == (rank == 0)
