"""`evaluate` and `predict` between real ranks. Run under tfringrun with at least 2 ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring import data as data_module

hvd.init()
pytestmark = [
    pytest.mark.skipif(hvd.size() < 2, reason="needs at least 2 ranks"),
    pytest.mark.timeout(90),
]

ROWS = 4 * hvd.size() + 1
_random = np.random.default_rng(5)
X = _random.normal(size=(ROWS, 2)).astype("float32")
Y = _random.integers(0, 2, (ROWS, 1)).astype("float32")


def model_of() -> Any:
    start = keras.initializers.GlorotUniform(seed=2)
    dense = keras.layers.Dense(1, activation="sigmoid", kernel_initializer=start)
    model = keras.Sequential([keras.Input((2,)), dense])
    metrics = [keras.metrics.TruePositives(name="hits"), keras.metrics.AUC(name="auc")]
    model.compile("sgd", "mse", metrics=metrics)
    return model


def data(kind: str) -> Any:
    if kind == "arrays":
        return {"x": X, "y": Y, "batch_size": 2}
    whole = tf.data.Dataset.from_tensor_slices((X, Y))
    if kind == "unknown length":
        whole = whole.filter(lambda x, y: True)
    return {"x": whole.batch(2)}


KINDS = pytest.mark.parametrize("kind", ["arrays", "dataset", "unknown length"])


@KINDS
def test_evaluate(kind: str) -> None:
    """The counts are exact, and the same on all ranks."""
    logs = hvd.evaluate(model_of(), **data(kind), return_dict=True, verbose=0)
    alone = model_of().evaluate(**data(kind), return_dict=True, verbose=0)
    assert logs["hits"] == alone["hits"]
    assert logs == pytest.approx(alone, rel=1e-5)
    assert all(each == logs for each in hvd.allgather_object(logs))


@KINDS
def test_predict(kind: str) -> None:
    arguments = {name: value for name, value in data(kind).items() if name != "y"}
    actual = hvd.predict(model_of(), **arguments, verbose=0)
    np.testing.assert_allclose(actual, model_of().predict(X, verbose=0), rtol=1e-6)


def test_parts_that_shard_deals() -> None:
    """Of lengths that differ: nothing is dropped, repeated, or out of order."""
    x, y = data_module.shard((X, Y), remainder="keep")
    scores = hvd.predict(model_of(), x, sharded="interleaved", verbose=0)
    np.testing.assert_allclose(scores, model_of().predict(X, verbose=0), rtol=1e-5)
    logs = hvd.evaluate(model_of(), x, y, sharded=True, return_dict=True, verbose=0)
    alone = model_of().evaluate(X, Y, return_dict=True, verbose=0)
    assert logs == pytest.approx(alone, rel=1e-5)


def test_error_of_one_rank() -> None:
    """The others learn of it at once, and the next call works."""

    class Failing(keras.callbacks.Callback):
        def on_predict_begin(self, logs: Any = None) -> None:
            raise OSError("disk full")

    callbacks = [Failing()] if hvd.rank() == 1 else []
    kind, text = (
        (OSError, "^disk full") if hvd.rank() == 1 else (RuntimeError, "failed on rank 1: OSError")
    )
    with pytest.raises(kind, match=text):
        hvd.predict(model_of(), X, batch_size=2, callbacks=callbacks, verbose=0)
    assert len(hvd.predict(model_of(), X, verbose=0)) == ROWS


def test_large_metric_state() -> None:
    """A confusion matrix of 90,000 numbers, whose sums the engine makes."""
    classes = 300
    y = np.arange(ROWS) % classes
    prediction = np.where(y % 3 == 0, y + 1, y)
    inputs = keras.Input(())
    model = keras.Model(inputs, keras.layers.Rescaling(1.0)(inputs))
    model.compile(metrics=[keras.metrics.MeanIoU(classes, name="iou")], loss="mse")
    logs = hvd.evaluate(model, prediction, y, batch_size=2, return_dict=True, verbose=0)
    metric = keras.metrics.MeanIoU(classes)
    metric.update_state(y, prediction)
    assert logs["iou"] == pytest.approx(float(metric.result()))
