"""SyncBatchNormalization in one process: arguments, files, and the stock layer's numbers."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring.process_sets import ProcessSet, global_process_set
from tfring.sync_batch_norm import SyncBatchNormalization

# Stands before scripts that must do without this package.
WITHOUT_TFRING = "import sys; sys.modules['tfring'] = None\n"


def run_script(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def trained_model(layer: Any) -> Any:
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile("sgd", keras.losses.MeanSquaredError())
    x = np.random.default_rng(0).normal(size=(8, 2)).astype("float32") * 2 + 3
    model.fit(x, x, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model


def test_name() -> None:
    keras.utils.clear_session(free_memory=False)
    assert SyncBatchNormalization().name == "sync_batch_normalization"
    assert SyncBatchNormalization(name="norm").name == "norm"
    assert hvd.SyncBatchNormalization is hvd.keras.SyncBatchNormalization is SyncBatchNormalization


@pytest.mark.parametrize("fused", [True, None, 1, -1], ids=str)
def test_fused(fused: Any) -> None:
    with pytest.raises(ValueError, match=f"Received: fused={fused!r}"):
        SyncBatchNormalization(fused)


def test_synchronized_is_of_tf_distribute() -> None:
    with pytest.raises(ValueError, match="Received: synchronized=True"):
        SyncBatchNormalization(synchronized=True)


def test_arguments_of_the_stock_layer() -> None:
    layer = SyncBatchNormalization(axis=1, momentum=0.5, epsilon=0.1, center=False, scale=False)
    layer.build((None, 3, 4))
    assert [v.name for v in layer.weights] == ["moving_mean", "moving_variance"]
    assert layer.moving_mean.shape == (3,)


def test_training_needs_init() -> None:
    layer = SyncBatchNormalization()
    x = np.ones((2, 1), "float32")
    with pytest.raises(hvd.NotInitializedError, match="init"):
        layer(x, training=True)
    assert layer(x).shape == (2, 1)


def test_set_that_is_not_registered(world: None) -> None:
    layer = SyncBatchNormalization(process_set=ProcessSet([0, 1]))
    with pytest.raises(ValueError, match=r"must be registered.*ranks=\[0, 1\]"):
        layer(np.ones((2, 1), "float32"), training=True)


@pytest.mark.parametrize("eagerly", [False, True], ids=["function", "eager"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_alone_it_is_the_stock_layer(world: None, eagerly: bool, masked: bool) -> None:
    generator = np.random.default_rng(0)
    x = tf.constant(generator.normal(size=(6, 4, 2)), tf.float32)
    call = {"mask": tf.constant(generator.random((6, 4)) < 0.5)} if masked else {}

    def results(layer: Any) -> list[np.ndarray]:
        layer.build(x.shape)

        def body() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True, **call)
                loss = tf.reduce_sum(y**3)
            return y, tape.gradient(loss, x)

        outputs = (body if eagerly else tf.function(body))()
        return [r.numpy() for r in [*outputs, layer.moving_mean, layer.moving_variance]]

    stock = results(keras.layers.BatchNormalization())
    for actual, expected in zip(results(SyncBatchNormalization()), stock, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_config() -> None:
    layer = SyncBatchNormalization(momentum=0.5, axis=1)
    again = SyncBatchNormalization.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.process_set is layer.process_set is global_process_set
    stock = keras.layers.BatchNormalization.from_config(layer.get_config())
    assert (stock.momentum, stock.axis) == (0.5, 1)


def test_config_of_a_set(world: None) -> None:
    layer = SyncBatchNormalization(process_set=ProcessSet([1, 0]))
    again = SyncBatchNormalization.from_config(layer.get_config())
    assert again.process_set.ranks == [0, 1]


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_saved_model(world: None, tmp_path: pathlib.Path, ending: str) -> None:
    model = trained_model(SyncBatchNormalization())
    path = str(tmp_path / f"model.{ending}")
    model.save(path)
    again = keras.models.load_model(path)
    assert type(again.layers[-1]) is SyncBatchNormalization
    for actual, expected in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_saved_model_loads_without_tfring_as_the_stock_layer(
    world: None, tmp_path: pathlib.Path
) -> None:
    model = trained_model(SyncBatchNormalization())
    model.save(tmp_path / "model.keras")
    code = WITHOUT_TFRING + (
        "import keras, numpy as np\n"
        "class SyncBatchNormalization(keras.layers.BatchNormalization): pass\n"
        "stock = {'tfring>SyncBatchNormalization': SyncBatchNormalization}\n"
        f"model = keras.models.load_model({str(tmp_path / 'model.keras')!r}, stock)\n"
        "print(model(np.ones((1, 2), 'float32')).numpy().tolist())"
    )
    assert run_script(code) == str(model(np.ones((1, 2), "float32")).numpy().tolist())


def test_exported_model_needs_no_tfring(world: None, tmp_path: pathlib.Path) -> None:
    model = trained_model(SyncBatchNormalization())
    model.export(tmp_path / "exported", verbose=False)
    code = WITHOUT_TFRING + (
        "import tensorflow as tf\n"
        f"model = tf.saved_model.load({str(tmp_path / 'exported')!r})\n"
        "print(model.serve(tf.ones((1, 2))).numpy().tolist())"
    )
    np.testing.assert_allclose(
        np.array(eval(run_script(code))), model(np.ones((1, 2), "float32")).numpy(), rtol=1e-6
    )
