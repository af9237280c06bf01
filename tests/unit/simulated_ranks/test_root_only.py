"""`RootOnly` around callbacks of Keras and others, in `fit` over simulated ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tfring as hvd
from tfring import world
from tfring.callbacks import MetricAverageCallback, RootOnly, TrainingCheckpoint
from tfring.optimizer import DistributedOptimizer, state_variables

k = keras.callbacks


def fit(rank: int, callbacks: list[Any], epochs: int = 2, **kwargs: Any) -> Any:
    glorot = keras.initializers.GlorotUniform(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer=glorot)])
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse", run_eagerly=True)
    x = np.random.default_rng(rank).normal(size=(4, 2)).astype("float32")
    history = model.fit(
        x, x[:, :1], batch_size=2, epochs=epochs, callbacks=callbacks, verbose=0, **kwargs
    )
    return model, history


class Recorder(k.Callback):
    """Tells on which rank which hooks were called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.seen.append("set_model")

    def on_train_begin(self, logs: Any = None) -> None:
        self.seen.append("on_train_begin")

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append("on_batch_end")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append("on_epoch_end")


def test_hooks_are_called_on_rank_0(ranks: Any) -> None:
    def body(rank: int) -> list[str]:
        recorder = Recorder()
        fit(rank, [RootOnly(recorder)], epochs=1)
        return recorder.seen

    hooks = ["set_model", "on_train_begin", "on_batch_end", "on_batch_end", "on_epoch_end"]
    assert ranks(2).run(body) == [hooks, []]


def test_files_are_there_when_others_go_on(ranks: Any, tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        seen = []
        check = k.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append((tmp_path / f"{epoch + 1}.keras").exists())
        )
        writers = [
            RootOnly(k.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))),
            RootOnly(k.CSVLogger(str(tmp_path / "log.csv"))),
        ]
        fit(rank, [*writers, check])
        return seen

    assert ranks(2).run(body) == [[True, True]] * 2
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["1.keras", "2.keras", "log.csv"]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize("weights", [False, True])
def test_the_former_file_stays_until_the_new_one_is_whole(
    ranks: Any, tmp_path: Path, weights: bool
) -> None:
    path = tmp_path / ("m.weights.h5" if weights else "m.keras")
    path.write_text("former")
    seen = []

    class Model(keras.Sequential):
        def save(self, filepath: Any, **kwargs: Any) -> None:
            super().save(filepath, **kwargs)
            seen.append(path.read_text())

        def save_weights(self, filepath: Any, **kwargs: Any) -> None:
            super().save_weights(filepath, **kwargs)
            seen.append(path.read_text())

    def body(rank: int) -> None:
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        model = Model([keras.Input((1,)), dense])
        model.compile(DistributedOptimizer(keras.optimizers.SGD()), "mse", run_eagerly=True)
        saver = RootOnly(k.ModelCheckpoint(str(path), save_weights_only=weights))
        model.fit(np.ones((2, 1)), np.ones((2, 1)), callbacks=[saver], verbose=0)

    ranks(2).run(body)
    assert seen == ["former"]
    assert path.read_bytes() != b"former"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end", "on_train_end"])
def test_a_hook_that_only_rank_0_has(ranks: Any, hook: str) -> None:
    def body(rank: int) -> int:
        seen: list[Any] = []
        hooks = {hook: lambda *args: seen.append(args)} if rank == 0 else {}
        fit(rank, [RootOnly(k.LambdaCallback(**hooks))], epochs=1)
        return len(seen)

    assert ranks(2).run(body) == [1, 0]


def test_a_failure_reaches_all(ranks: Any, tmp_path: Path) -> None:
    class Full(k.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise OSError(28, "No space left on device")

    def body(rank: int) -> tuple[str, str]:
        with pytest.raises((OSError, RuntimeError)) as caught:
            fit(rank, [RootOnly(Full())])
        return type(caught.value).__name__, str(caught.value)

    text = "[Errno 28] No space left on device"
    assert ranks(2).run(body) == [
        ("OSError", text),
        ("RuntimeError", f"Rank 0 could not run Full.on_epoch_end: OSError: {text}"),
    ]


def test_files_of_a_callback_that_evaluates(ranks: Any, tmp_path: Path) -> None:
    class Evaluates(k.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            x = np.ones((2, 2), "float32")
            inner = RootOnly(k.LambdaCallback(on_test_end=lambda logs: None))
            self.model.evaluate(x, x[:, :1], verbose=0, callbacks=[inner])
            self.model.save(tmp_path / "whole.keras")

    def body(rank: int) -> bool:
        model, _ = fit(rank, [RootOnly(Evaluates())], epochs=1)
        return "save" in vars(model)

    assert ranks(2).run(body) == [False, False]
    assert [p.name for p in tmp_path.iterdir()] == ["whole.keras"]


def test_what_it_decides_counts_on_all_ranks(ranks: Any) -> None:
    class Decider(k.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.5**epoch

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["own"] = 3.0 * epoch
            self.model.stop_training = epoch == 2

    def body(rank: int) -> Any:
        model, history = fit(rank, [RootOnly(Decider())], epochs=9)
        return history.history["own"], float(model.optimizer.learning_rate.numpy())

    assert ranks(2).run(body) == [([0.0, 3.0, 6.0], 0.25)] * 2


def test_weights_that_it_restores_reach_all(ranks: Any) -> None:
    def body(rank: int) -> list[float]:
        stop = k.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
        model, history = fit(rank, [MetricAverageCallback(), RootOnly(stop)], epochs=9)
        assert len(history.epoch) < 9
        return [float(w) for w in model.get_weights()[0].ravel()]

    first, second = ranks(2).run(body)
    assert first == second


def test_backup_and_restore(ranks: Any, tmp_path: Path) -> None:
    class Stop(k.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyError

    def body(rank: int) -> Any:
        def backup() -> RootOnly:
            return RootOnly(k.BackupAndRestore(str(tmp_path / "backup")))

        with pytest.raises(KeyError):
            fit(rank, [backup(), Stop()], epochs=4)
        model, history = fit(rank, [backup()], epochs=4)
        variables = [*model.variables, *state_variables(model.optimizer)]
        return history.epoch, int(model.optimizer.iterations), [v.numpy() for v in variables]

    (epochs, iterations, mine), (*other, theirs) = ranks(2).run(body)
    assert (epochs, iterations) == tuple(other) == ([2, 3], 8)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_hooks_without_work_cost_no_exchange(ranks: Any, monkeypatch: Any) -> None:
    ranks(2)
    monkeypatch.setattr(world, "rank", lambda: 1)
    log = RootOnly(k.Callback())
    assert log.async_safe
    log.on_train_end()
    for name in ("on_epoch_begin", "on_epoch_end", "on_train_batch_end", "on_test_batch_end"):
        getattr(log, name)(0)


@pytest.mark.parametrize(
    "wrong", [None, keras.callbacks.History, MetricAverageCallback(), RootOnly(k.History())]
)
def test_what_cannot_be_wrapped(wrong: Any) -> None:
    with pytest.raises(TypeError, match="`callback` must"):
        RootOnly(wrong)


@pytest.mark.parametrize("every", [0, -1, True, 1.5, "batch", None])
def test_every(tmp_path: Path, every: Any) -> None:
    with pytest.raises(ValueError, match=r'`every` must be "epoch" or a number of batches'):
        TrainingCheckpoint(tmp_path, every=every)


def test_one_training_checkpoint_per_fit(ranks: Any, tmp_path: Path) -> None:
    ranks(1)
    two = [TrainingCheckpoint(tmp_path), TrainingCheckpoint(tmp_path / "b")]
    with pytest.raises(ValueError, match="must hold one TrainingCheckpoint"):
        fit(0, two)


def test_a_checkpoint_of_another_kind(ranks: Any, tmp_path: Path) -> None:
    ranks(1)
    hvd.Checkpoint(tmp_path, variables=[keras.Variable(0.0)]).save(step=3)
    with pytest.raises(ValueError, match=r"is another's: .'step': 3"):
        fit(0, [TrainingCheckpoint(tmp_path)])
