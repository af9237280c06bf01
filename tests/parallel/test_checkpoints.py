"""Checkpoints between real ranks. Run under tfringrun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tfring as hvd
from tfring.callbacks import MetricAverageCallback, RootOnly, TrainingCheckpoint

pytestmark = pytest.mark.timeout(120)
k = keras.callbacks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(hvd.broadcast_object(str(tmp_path)))


def fit(callbacks: list[Any], epochs: int = 3) -> tuple[list[bytes], Any]:
    keras.utils.set_random_seed(1 + hvd.rank())
    glorot = keras.initializers.GlorotUniform
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(4, kernel_initializer=glorot(1)),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1, kernel_initializer=glorot(2), dtype="mixed_float16"),
        ]
    )
    stock = keras.optimizers.Adam(0.05, use_ema=True)
    scaled = keras.optimizers.LossScaleOptimizer(stock, dynamic_growth_steps=2)
    model.compile(
        hvd.DistributedOptimizer(scaled, backward_passes_per_step=2), "mse", metrics=["mae"]
    )
    x = np.random.default_rng(hvd.rank()).normal(size=(6, 4)).astype("float32")
    history = model.fit(
        *(x, x[:, :1]),
        batch_size=2,
        epochs=epochs,
        shuffle=False,
        callbacks=[MetricAverageCallback(), *callbacks],
        verbose=0,
    )
    variables = [*model.variables, *model.optimizer.variables]
    return [variable.numpy().tobytes() for variable in variables], history.history


class Interruption(k.Callback):
    """Ends the training before the epoch `at` or the second batch of it."""

    def __init__(self, at: int, batch: int) -> None:
        super().__init__()
        self._at, self._batch, self._epoch = at, batch, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == (self._at, self._batch):
            raise KeyError("interrupted")


def test_interrupted_and_going_on(folder: Path) -> None:
    expected = fit([])
    with pytest.raises(KeyError):
        fit([TrainingCheckpoint(folder, every=1), Interruption(1, 1)])
    saved = TrainingCheckpoint(folder, every=1)
    assert fit([saved]) == expected
    assert (saved.first_epoch, saved.first_step) == (1, 1)
    names = sorted(path.name for path in folder.glob("*.npz"))
    assert len(hvd.allgather_object(names)[0]) == 2


def test_a_failure_on_rank_0_reaches_all(folder: Path) -> None:
    if hvd.rank() == 0:
        (folder / "file").write_text("")
    errors = (FileExistsError, NotADirectoryError) if hvd.rank() == 0 else RuntimeError
    with pytest.raises(errors) as caught:
        fit([TrainingCheckpoint(folder / "file")])
    assert hvd.rank() == 0 or "Rank 0 could not read a checkpoint" in str(caught.value)
    with pytest.raises(errors) as caught:
        fit([RootOnly(k.ModelCheckpoint(str(folder / "file" / "m.keras")))])
    assert hvd.rank() == 0 or "could not run ModelCheckpoint.on_epoch_end" in str(caught.value)
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


def test_backup_and_model_file(folder: Path) -> None:
    def writers() -> list[Any]:
        model = k.ModelCheckpoint(str(folder / "m.keras"))
        return [RootOnly(model), RootOnly(k.BackupAndRestore(str(folder / "backup")))]

    with pytest.raises(KeyError):
        fit([*writers(), Interruption(2, 0)])
    _, history = fit(writers())
    assert len(history["loss"]) == 1
    loaded = keras.models.load_model(folder / "m.keras")
    assert len(set(hvd.allgather_object(b"".join(w.tobytes() for w in loaded.get_weights())))) == 1
    assert not (folder / "backup").exists()


def test_loop_of_ones_own(folder: Path) -> None:
    variable = keras.Variable(0.0)
    own = keras.Variable(float(hvd.rank()))
    hvd.Checkpoint(folder, variables=[variable, own]).save(step=1)
    own.assign(9.0)
    assert hvd.Checkpoint(folder, variables=[variable, own]).restore() == {"step": 1}
    assert float(own.numpy()) == hvd.rank()
