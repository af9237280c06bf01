"""Callbacks between real ranks. Run under tfringrun with at least 2 ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd

hvd.init()
pytestmark = [
    pytest.mark.skipif(hvd.size() < 2, reason="needs at least 2 ranks"),
    pytest.mark.timeout(120),
]
EAGERLY = pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eager"])


def same_everywhere(arrays: list[Any]) -> bool:
    mine = [np.asarray(array).tobytes() for array in arrays]
    return hvd.allgather_object(mine) == [mine] * hvd.size()


def dense(seed: int) -> Any:
    return keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed))


class BeforeFirstUpdate:
    """Keeps the variables as they are when the first eager update begins."""

    def __init__(self, optimizer: Any) -> None:
        self.values: list[np.ndarray] = []
        stock = optimizer.apply

        def apply(grads: Any, trainable_variables: Any = None) -> None:
            if not self.values:
                self.values = [v.numpy() for v in [*trainable_variables, *optimizer.variables]]
            stock(grads, trainable_variables)

        object.__setattr__(optimizer, "apply", apply)


def test_unbuilt_model_and_a_peer_that_has_trained() -> None:
    generator = np.random.default_rng(hvd.rank())
    x, y = (generator.random((4, 3)).astype("float32") for _ in range(2))
    model = keras.Sequential([dense(hvd.rank()), dense(hvd.rank() + 10)])
    optimizer = keras.optimizers.Adam(0.1)
    if hvd.rank() == 1:
        model.compile(optimizer, "mse", run_eagerly=True)
        for _ in range(3):
            model.train_on_batch(x, y)
    model.compile(hvd.DistributedOptimizer(optimizer), "mse", run_eagerly=True)
    before = BeforeFirstUpdate(optimizer)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[callback])
    assert len(before.values) == 4 + 2 + 8
    assert int(before.values[4]) == 0
    assert same_everywhere(before.values)
    assert same_everywhere(model.get_weights())


@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
@EAGERLY
def test_start_from_the_root(root: int, built: bool, eagerly: bool) -> None:
    inputs = [keras.Input((2,))] if built else []
    initial = keras.initializers.Constant(hvd.rank())
    model = keras.Sequential([*inputs, keras.layers.Dense(1, kernel_initializer=initial)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0), backward_passes_per_step=2)
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    x = np.ones((4, 2), "float32")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=root)
    model.fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=[callback])
    assert model.get_weights()[0].ravel().tolist() == [float(root)] * 2


def test_different_models() -> None:
    width = 1 if hvd.rank() == 0 else 2
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(width)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    x = np.ones((2, 2), "float32")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"\(2, 1\).*rank 1 .*\(2, 2\)"):
        model.fit(x, x[:, :width], verbose=0, callbacks=[callback])


@EAGERLY
def test_metrics_are_weighted_by_samples(eagerly: bool) -> None:
    """Losses 1, 1, 1 on rank 0 and one 5 on each other rank."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)),
        "mse",
        metrics=["mae"],
        run_eagerly=eagerly,
    )
    values = [1.0, 1.0, 1.0] if hvd.rank() == 0 else [5.0]
    y = np.sqrt(np.array(values, "float32"))[:, None]
    x = np.ones((2, 1), "float32")
    history = model.fit(
        x,
        x * (1.0 + hvd.rank()),
        validation_data=(np.ones_like(y), y),
        validation_batch_size=2,
        verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback()],
    ).history
    others = hvd.size() - 1
    assert history["val_loss"][0] == pytest.approx((3 + 5 * others) / (3 + others), rel=1e-6)
    assert history["val_mae"][0] == pytest.approx((3 + 5**0.5 * others) / (3 + others), rel=1e-6)
    assert history["loss"][0] == pytest.approx(
        np.mean([(1.0 + r) ** 2 for r in range(hvd.size())]), rel=1e-6
    )
    assert same_everywhere([history[name] for name in sorted(history)])


@EAGERLY
def test_metrics_that_are_no_means(eagerly: bool) -> None:
    """4 samples, 3 of them on rank 0 and 1 on rank 1: the values of one process."""
    scores = np.array([[0.9], [0.2], [0.6], [0.7]], "float32")
    labels = np.array([[1.0], [0.0], [0.0], [1.0]], "float32")
    rows = slice(0, 3) if hvd.rank() == 0 else slice(2 + hvd.rank(), 3 + hvd.rank())
    scores, labels = (np.concatenate([a] + [a[:1]] * hvd.size()) for a in (scores, labels))
    whole = slice(0, 2 + hvd.size())

    def fit(rows: slice, optimizer: Any, callbacks: Any) -> dict[str, Any]:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), layer])
        kinds = (keras.metrics.AUC, keras.metrics.Precision, keras.metrics.Recall)
        metrics = [kind(name=kind.__name__) for kind in kinds]
        model.compile(optimizer, "mse", metrics=metrics, run_eagerly=eagerly)
        x, y = scores[rows], labels[rows]
        validation = (x, y)
        fitted = model.fit(
            x, y, batch_size=4, validation_data=validation, callbacks=callbacks, verbose=0
        )
        return {name: values[0] for name, values in fitted.history.items()}

    expected = fit(whole, keras.optimizers.SGD(0.0), [])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    actual = fit(rows, optimizer, [hvd.callbacks.MetricAverageCallback()])
    assert actual == pytest.approx(expected, rel=1e-6)
    assert same_everywhere([actual[name] for name in sorted(actual)])
    if hvd.size() == 2:
        assert actual["val_Precision"] == pytest.approx(2 / 3)


def test_a_metric_that_one_rank_lacks() -> None:
    class Extra(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if hvd.rank() == 1:
                logs["extra"] = 7.0

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    x = np.ones((2, 1), "float32")
    callbacks = [Extra(), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(x, x, verbose=0, callbacks=callbacks).history
    assert history["extra"] == [7.0]


def test_warmup_reaches_the_full_rate() -> None:
    class Rates(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.seen.append(float(self.model.optimizer.learning_rate.numpy()))

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    rates = Rates()
    x = np.ones((5, 1), "float32")
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=2)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callbacks = [first, warmup, rates]
    model.fit(x, x, batch_size=1, epochs=3, verbose=0, callbacks=callbacks)
    full = 0.1 * hvd.size()
    assert [rates.seen[i] for i in (0, 5, 10, 11)] == pytest.approx(
        [0.1, (0.1 + full) / 2, full, full], rel=1e-6
    )
    assert same_everywhere(model.get_weights())


@pytest.mark.parametrize("weights_only", [False, True], ids=["model", "weights"])
def test_best_model_by_the_average_of_ranks(tmp_path: Any, weights_only: bool) -> None:
    """Scores 1, 2, 3 on rank 0 and 5, 1, 9 on the others: epochs 1 and 3 are the best so far."""
    scores = [1.0, 2.0, 3.0] if hvd.rank() == 0 else [5.0, 1.0, 9.0]
    score = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(score=scores[epoch])
    )
    best = hvd.callbacks.BestModelCheckpoint("score", 0, weights_only, "max")
    ending = "weights.h5" if weights_only else "keras"
    best.filepath = tmp_path / ("{epoch}." + ending)  # a folder of each rank's own
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    x = np.ones((2, 1), "float32")
    callbacks = [score, hvd.callbacks.MetricAverageCallback(), best]
    model.fit(x, x, epochs=3, verbose=0, callbacks=callbacks)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ([f"1.{ending}", f"3.{ending}"] if hvd.rank() == 0 else [])
    if hvd.rank() == 0 and not weights_only:
        again = hvd.load_model(tmp_path / "3.keras")
        np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
        assert int(again.optimizer.iterations) == 3


def test_all_ranks_load_the_same_file(tmp_path: Any) -> None:
    path = hvd.broadcast_object(str(tmp_path / "model.keras"))
    keras.utils.set_random_seed(hvd.rank())
    x = np.random.default_rng(hvd.rank()).normal(size=(4, 2)).astype("float32")
    if hvd.rank() == 0:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.fit(x, x[:, :1], batch_size=2, verbose=0)
        model.save(path)
    hvd.broadcast_object("saved")
    model = hvd.load_model(path)
    assert same_everywhere([*model.get_weights(), *model.optimizer.variables])
    model.fit(x, x[:, :1], batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 4
    assert same_everywhere([*model.get_weights(), *model.optimizer.variables])
