"""`BestModelCheckpoint` in real `fit` calls over simulated ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from tfring import world
from tfring.callbacks import BestModelCheckpoint


def fit_and_save(best: BestModelCheckpoint, losses: list[float], **kwargs: Any) -> Any:
    """Fits a model whose `val_loss` is set to each of `losses`."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    given = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(val_loss=losses[epoch])
    )
    x = np.ones((2, 1), "float32")
    epochs = len(losses)
    model.fit(x, x, batch_size=1, epochs=epochs, callbacks=[given, best], verbose=0, **kwargs)
    return model


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_writes(monkeypatch: Any, ranks: Any, tmp_path: Any, rank: int) -> None:
    ranks(2)
    monkeypatch.setattr(world, "rank", lambda: rank)
    best = BestModelCheckpoint()
    best.filepath = str(tmp_path / "{epoch}-{val_loss:.1f}.keras")
    fit_and_save(best, [3.0, 4.0, 2.0])
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ([] if rank else ["1-3.0.keras", "3-2.0.keras"])


def test_weights_only(ranks: Any, tmp_path: Any) -> None:
    ranks(2)
    best = BestModelCheckpoint(save_weights_only=True)
    best.filepath = tmp_path / "best.weights.h5"
    model = fit_and_save(best, [3.0])
    again = keras.models.clone_model(model)
    again.load_weights(tmp_path / "best.weights.h5")
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])


def test_by_batches(ranks: Any, tmp_path: Any) -> None:
    ranks(2)
    best = BestModelCheckpoint(monitor="loss", save_freq=1)
    best.filepath = str(tmp_path / "{batch}.keras")
    fit_and_save(best, [3.0])
    assert [path.name for path in tmp_path.iterdir()] == ["1.keras"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("path", "weights_only", "text"),
    [
        (None, False, "`filepath` must be set before fit"),
        ("best", False, "must end in `.keras`"),
        ("best.keras", True, r"must end in `.weights.h5`"),
    ],
)
def test_bad_path(
    monkeypatch: Any, ranks: Any, rank: int, path: Any, weights_only: bool, text: str
) -> None:
    ranks(2)
    monkeypatch.setattr(world, "rank", lambda: rank)
    best = BestModelCheckpoint(save_weights_only=weights_only)
    assert best.filepath is None
    best.filepath = path
    with pytest.raises(ValueError, match=text):
        fit_and_save(best, [3.0])
