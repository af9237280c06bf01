"""Ranks in `fit` that differ: in their numbers of batches, and in what their callbacks decide.

The model is a single weight w with the loss w * target, so a target is the gradient.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import tfring.keras as hvd
from tfring import _stop_wish

pytestmark = [pytest.mark.many_ranks, pytest.mark.timeout(90)]


def model_of(optimizer: Any = None, passes: int = 1, layers: Any = (), **kwargs: Any) -> Any:
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), *layers, layer])
    optimizer = optimizer or keras.optimizers.SGD(1.0)
    distributed = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    model.compile(distributed, loss=lambda y, p: p * y, **kwargs)
    return model


def fit(model: Any, batches: int, gradient: float, callbacks: list[Any], **kwargs: Any) -> Any:
    x = np.ones((batches, 1), "float32")
    return model.fit(x, gradient * x, batch_size=1, verbose=0, callbacks=callbacks, **kwargs)


def weight(model: Any) -> float:
    return float(model.get_weights()[-1][0, 0])


def everywhere(item: Any) -> bool:
    return hvd.allgather_object(item) == [item] * hvd.size()


def mean_of(batches: list[int], gradients: list[float]) -> float:
    """The sum over steps of the mean gradient of the ranks that have data."""
    active = [[g for n, g in zip(batches, gradients, strict=True) if n > i] for i in range(5)]
    return sum(sum(gs) / len(gs) for gs in active if gs)


BATCHES = [5, 3, 4, 1]  # by rank
GRADIENTS = [1.0, 3.0, 2.0, 4.0]


@pytest.mark.parametrize(
    "kwargs",
    [{"run_eagerly": True}, {"steps_per_execution": 2}],
    ids=["eager", "two steps per execution"],
)
def test_join_uses_all_data(kwargs: dict[str, Any], rank: int, size: int) -> None:
    """With two ranks w is -8 after each epoch's batches, as the updates are for all data."""
    model = model_of(**kwargs)
    fit(model, BATCHES[rank], GRADIENTS[rank], [hvd.callbacks.JoinCallback()])
    assert weight(model) == pytest.approx(-mean_of(BATCHES[:size], GRADIENTS[:size]), rel=1e-6)
    assert int(model.optimizer.iterations) == 5
    assert size > 2 or weight(model) == -8.0
    assert everywhere(weight(model))


def test_join_comes_before_validation_and_averages(rank: int, size: int) -> None:
    """First rank 0 has most data, then rank 1."""
    callbacks = [hvd.callbacks.MetricAverageCallback(), hvd.callbacks.JoinCallback()]
    model = model_of(keras.optimizers.SGD(1.0, momentum=0.5))
    one = np.ones((1, 1), "float32")
    for batches in (BATCHES, [1, 5, 2, 2]):
        validation = {"validation_data": (one, one)}
        logs = fit(model, batches[rank], GRADIENTS[rank], callbacks, **validation).history
        assert logs["val_loss"] == [weight(model)]
        assert everywhere([weight(model), float(model.optimizer.momentums[0].numpy()[0, 0]), logs])
    assert int(model.optimizer.iterations) == 10


@pytest.mark.parametrize("native", [False, True], ids=["passes", "native"])
@pytest.mark.ranks(2)
def test_join_with_gradients_left_over(native: bool, rank: int) -> None:
    """Two epochs of 5 and 4 batches make 5 updates of 2; the fifth batch opens the next epoch.

    Means of both ranks in an epoch's first two updates, then rank 0's fifth gradient on both.
    """
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2 if native else None)
    model = model_of(optimizer, passes=1 if native else 2)
    batches, gradient = (5, 1.0) if rank == 0 else (4, 3.0)
    fit(model, batches, gradient, [hvd.callbacks.JoinCallback()], epochs=2)
    # Sums of two: first epoch 2 and 6 (mean 4) twice; then 1 + 1 and 1 + 3 (mean 3), 2 and 6
    # (mean 4), and rank 0 alone 2.
    assert weight(model) == -(4 + 4 + 3 + 4 + 2) / (2 if native else 1)
    assert int(model.optimizer.iterations) == 5


def test_ranks_with_equal_batches_keep_what_is_theirs(rank: int) -> None:
    """Nothing is copied: moving statistics stay each rank's own."""
    model = model_of(layers=[keras.layers.BatchNormalization(momentum=0.0)])
    x = np.full((2, 1), float(rank), "float32")
    model.fit(x, x, batch_size=1, verbose=0, callbacks=[hvd.callbacks.JoinCallback()])
    assert float(model.layers[0].moving_mean.numpy()[0]) == rank


def test_stop_within_an_epoch_on_one_rank(rank: int, monkeypatch: Any) -> None:
    """The last rank stops after batch 6, and ranks ask each other after each batch."""
    monkeypatch.setattr(_stop_wish, "FIRST_BATCH", 1)
    monkeypatch.setattr(_stop_wish, "SECONDS", 0.0)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = self.model.stop_training or batch == 6

    model = model_of()
    fit(model, 20, 1.0, [Stop()] if rank == hvd.size() - 1 else [], epochs=2)
    assert int(model.optimizer.iterations) == 7
    assert everywhere([weight(model), model.stop_training])


def test_stop_wish_of_a_rank_that_has_joined(rank: int, monkeypatch: Any) -> None:
    """It is not asked any more; the others finish the epoch, and all stop."""
    monkeypatch.setattr(_stop_wish, "FIRST_BATCH", 3)
    monkeypatch.setattr(_stop_wish, "SECONDS", 0.0)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    model = model_of()
    stop = [Stop()] if rank == 1 else []
    batches = 2 if rank == 1 else 5
    fit(model, batches, 1.0, [*stop, hvd.callbacks.JoinCallback()], epochs=3)
    assert int(model.optimizer.iterations) == 5
    assert everywhere([weight(model), model.stop_training])


def test_best_weights_of_one_rank(rank: int) -> None:
    best = keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
    model = model_of()
    history = fit(model, 2, 1.0, [best] if rank == 1 else [], epochs=5)
    assert (len(history.epoch), weight(model)) == (2, -2.0)
