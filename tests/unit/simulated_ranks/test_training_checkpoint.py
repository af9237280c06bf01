"""Trainings that are interrupted and go on: the same bits as without, over simulated ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tfring import checkpoints
from tfring.callbacks import RootOnly, TrainingCheckpoint
from tfring.optimizer import DistributedOptimizer, state_variables

optimizers = keras.optimizers
EPOCH = 3  # batches


class Interrupted(Exception):
    """What ends a training."""


class Interruption(keras.callbacks.Callback):
    """Ends the training after so many batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self._left = batches

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left < 0:
            raise Interrupted


def sgd() -> Any:
    return DistributedOptimizer(optimizers.SGD(0.05, momentum=0.9))


def adam_with_averages() -> Any:
    stock = optimizers.Adam(0.05, use_ema=True, ema_overwrite_frequency=2)
    return DistributedOptimizer(stock)


def passes() -> Any:
    return DistributedOptimizer(optimizers.Adam(0.05), backward_passes_per_step=2)


def native_passes() -> Any:
    return DistributedOptimizer(optimizers.Adam(0.05, gradient_accumulation_steps=2))


def scaled() -> Any:
    stock = optimizers.SGD(0.05, momentum=0.9)
    return optimizers.LossScaleOptimizer(
        DistributedOptimizer(stock), initial_scale=2.0**15, dynamic_growth_steps=2
    )


def make_model(optimizer: Any, seed: int, policy: str = "float32") -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(4, "tanh", kernel_initializer=keras.initializers.GlorotUniform(1)),
            layers.Dropout(0.5, seed=seed, dtype=policy),
            layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2), dtype=policy),
        ]
    )
    model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
    return model


def fit(model: Any, rank: int, callbacks: list[Any], epochs: int = 2) -> Any:
    x = np.random.default_rng(rank).normal(size=(2 * EPOCH, 4)).astype("float32")
    return model.fit(
        x, x[:, :1], batch_size=2, shuffle=False, epochs=epochs, callbacks=callbacks, verbose=0
    )


def bits(model: Any) -> list[bytes]:
    variables = [*model.variables, *state_variables(model.optimizer)]
    return [variable.numpy().tobytes() for variable in variables]


@pytest.mark.parametrize(
    ("make_optimizer", "policy"),
    [
        (adam_with_averages, "float32"),
        (native_passes, "float32"),
        (passes, "mixed_float16"),
        (scaled, "mixed_float16"),
    ],
)
def test_inside_of_an_epoch(ranks: Any, tmp_path: Path, make_optimizer: Any, policy: str) -> None:
    def body(rank: int) -> Any:
        def make() -> Any:
            return make_model(make_optimizer(), rank, policy)

        whole = make()
        expected = fit(whole, rank, [])
        with pytest.raises(Interrupted):
            fit(make(), rank, [TrainingCheckpoint(tmp_path, every=1), Interruption(batches=5)])
        again, saved = make(), TrainingCheckpoint(tmp_path, every=1)
        history = fit(again, rank, [saved])
        assert (saved.first_epoch, saved.first_step) == (1, 2)
        return (bits(again), history.history), (bits(whole), expected.history)

    for actual, expected in ranks(2).run(body):
        assert actual == expected


def test_callbacks_go_on(ranks: Any, tmp_path: Path) -> None:
    class Counter(keras.callbacks.Callback):
        """One with a state of its own."""

        count = np.float32(0.0)

        def get_state(self) -> Any:
            return {"count": self.count, "more": ("text", [None, 1.5, True])}

        def set_state(self, state: Any) -> None:
            assert state["more"] == ("text", [None, 1.5, True])
            self.count = state["count"]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.count += np.float32(1.0)

    def callbacks() -> list[Any]:
        k = keras.callbacks
        return [
            Counter(),
            k.EarlyStopping("loss", patience=2, min_delta=100.0, restore_best_weights=True),
            k.ReduceLROnPlateau("loss", patience=2, min_delta=100.0),
            RootOnly(k.ModelCheckpoint(str(tmp_path / "best.keras"), "loss", save_best_only=True)),
        ]

    def body(rank: int) -> Any:
        results = []
        for folder, parts in (("whole", [6]), ("parts", [2, 6])):
            for epochs in parts:
                model, others = make_model(sgd(), rank), callbacks()
                saved = TrainingCheckpoint(tmp_path / folder)
                history = fit(model, rank, [saved, *others], epochs)
            results.append(
                (bits(model), history.history, others[0].count, others[1].wait, others[3].callback)
            )
        return results

    for rank, (whole, parts) in enumerate(ranks(2).run(body)):
        assert whole[:4] == parts[:4]
        assert len(whole[1]["loss"]) == 3  # stopped by patience
        if rank == 0:
            assert whole[4].best == parts[4].best


def test_a_training_that_is_over_stays_so(ranks: Any, tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        for _ in range(2):
            model = make_model(sgd(), rank)
            stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100.0)
            history = fit(model, rank, [TrainingCheckpoint(tmp_path), stop], epochs=4)
        return history.epoch, model._initial_epoch

    assert ranks(1).run(body) == [([0, 1], None)]


def test_a_job_whose_time_is_over_goes_on(ranks: Any, tmp_path: Path) -> None:
    class Time(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    def body(rank: int) -> Any:
        for _ in range(2):
            model = make_model(sgd(), rank)
            history = fit(model, rank, [TrainingCheckpoint(tmp_path), Time()], epochs=4)
        return history.epoch

    assert ranks(1).run(body) == [[0, 1]]


def test_weights_that_are_no_numbers_are_not_saved(ranks: Any, tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        model = make_model(sgd(), rank)
        fit(model, rank, [TrainingCheckpoint(tmp_path)], epochs=1)
        model.layers[0].kernel.assign(model.layers[0].kernel * float("nan"))
        again = TrainingCheckpoint(tmp_path, resume=False)
        fit(model, rank, [again, keras.callbacks.TerminateOnNaN()], epochs=1)

    ranks(2).run(body)
    assert [path.name for path in tmp_path.glob("*.npz")] == ["checkpoint-000001-epoch-1.npz"]


# --- another number of ranks -----------------------------------------------------------------


def gradients_on_the_way(rank: int, op: int, native: bool) -> Any:
    """A variable and an optimizer that has added up one gradient, `rank + 1`, of two."""
    variable = keras.Variable(0.0)
    options = {"gradient_accumulation_steps": 2} if native else {}
    optimizer = DistributedOptimizer(
        optimizers.SGD(1.0, **options), op=op, backward_passes_per_step=1 if native else 2
    )
    optimizer.build([variable])
    return variable, optimizer


@pytest.mark.parametrize("native", [False, True], ids=["passes", "native"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("op", [0, 1], ids=["average", "sum"])
def test_the_next_update_is_the_same(
    ranks: Any, tmp_path: Path, op: int, size: int, native: bool
) -> None:
    def save(rank: int) -> None:
        variable, optimizer = gradients_on_the_way(rank, op, native)
        optimizer.apply([keras.ops.convert_to_tensor(rank + 1.0)], [variable])
        checkpoints.Checkpoint(tmp_path, None, optimizer, [variable]).save(step=1)

    def go_on(rank: int) -> float:
        variable, optimizer = gradients_on_the_way(rank, op, native)
        position = checkpoints.Checkpoint(tmp_path, None, optimizer, [variable]).restore()
        assert position == {"step": 1}
        optimizer.apply([keras.ops.convert_to_tensor(0.0)], [variable])
        return float(variable.numpy())

    ranks(2).run(save)
    # Of gradients 1 and 2: their mean, or their sum; Keras' own accumulation averages over steps.
    expected = -(1.0 + 2.0) / (1 if op else 2) / (2 if native else 1)
    assert ranks(size).run(go_on) == [expected] * size


def test_what_differs_goes_to_the_rank_of_the_same_number(ranks: Any, tmp_path: Path) -> None:
    def save(rank: int) -> None:
        own, same = keras.Variable([rank + 1.0]), keras.Variable([[5.0]])
        checkpoints.Checkpoint(tmp_path, variables=[own, same]).save()

    def load(rank: int) -> list[float]:
        own, same = keras.Variable([0.0]), keras.Variable([[0.0]])
        checkpoints.Checkpoint(tmp_path, variables=[own, same]).restore()
        return [*own.numpy(), *same.numpy()[0]]

    ranks(2).run(save)
    assert ranks(3).run(load) == [[1.0, 5.0], [2.0, 5.0], [1.0, 5.0]]


def test_ranks_at_different_steps_do_not_save(ranks: Any, tmp_path: Path) -> None:
    def body(rank: int) -> None:
        checkpoint = checkpoints.Checkpoint(tmp_path, variables=[keras.Variable(0.0)])
        with pytest.raises(RuntimeError, match=r"'step': 0. on rank 0, .'step': 1. on rank 1"):
            checkpoint.save(step=rank)

    ranks(2).run(body)


def test_a_rank_with_another_model_is_named(ranks: Any, tmp_path: Path) -> None:
    def save(rank: int) -> None:
        checkpoints.Checkpoint(tmp_path, variables=[keras.Variable([1.0], name="v")]).save()

    def load(rank: int) -> None:
        variable = keras.Variable([0.0] * (rank + 1), name="v")
        text = r"does not fit on rank 1: `v` has shape \(2,\) .* has shape \(1,\)"
        with pytest.raises(ValueError, match=text):
            checkpoints.Checkpoint(tmp_path, variables=[variable]).restore()
        assert not variable.numpy().any()

    ranks(2).run(save)
    ranks(2).run(load)
