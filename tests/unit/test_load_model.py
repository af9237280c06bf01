"""load_model in one process: state, formats, and files that need no tfring."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest

import tfring.keras as hvd
from tfring.optimizer import is_distributed

WITHOUT_TFRING = "import sys; sys.modules['tfring'] = None\n"
ENDINGS = pytest.mark.parametrize("ending", ["keras", "h5"])
X = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
Y = X[:, :1] * 2

pytestmark = pytest.mark.usefixtures("world")


class OwnSGD(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""


def trained(optimizer: Any, loss: Any = "mse", **kwargs: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(hvd.DistributedOptimizer(optimizer), loss, **kwargs)
    model.fit(X, Y, batch_size=4, verbose=0)
    return model


def state(model: Any) -> list[np.ndarray]:
    return [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


def assert_same(actual: Any, expected: Any) -> None:
    for a, b in zip(state(actual), state(expected), strict=True):
        np.testing.assert_array_equal(a, b)


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.05),
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.05), initial_scale=8.0, dynamic_growth_steps=3
    ),
}


@ENDINGS
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_state_and_further_training(tmp_path: pathlib.Path, ending: str, make: Any) -> None:
    model = trained(make())
    path = tmp_path / f"model.{ending}"
    model.save(path)
    again = hvd.load_model(path)
    assert is_distributed(again.optimizer)
    assert type(again.optimizer) is type(model.optimizer)
    assert_same(again, model)
    for each in (model, again):
        each.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    assert int(again.optimizer.iterations) == 4
    assert_same(again, model)


@ENDINGS
def test_mixed_precision(tmp_path: pathlib.Path, ending: str) -> None:
    """`compile` puts a LossScaleOptimizer around the distributed one."""
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="mixed_float16")(inputs))
    scaled = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(OPTIMIZERS["Adam"]()))
    model.compile(scaled, "mae")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / f"model.{ending}")
    again = hvd.load_model(tmp_path / f"model.{ending}")
    assert type(again.optimizer) is keras.optimizers.LossScaleOptimizer
    assert is_distributed(again.optimizer)
    assert_same(again, model)


@ENDINGS
def test_learning_rate(tmp_path: pathlib.Path, ending: str) -> None:
    model = trained(keras.optimizers.SGD(0.05))
    model.optimizer.learning_rate = 0.01
    model.save(tmp_path / f"model.{ending}")
    again = hvd.load_model(tmp_path / f"model.{ending}")
    assert float(again.optimizer.learning_rate) == np.float32(0.01)


@ENDINGS
@pytest.mark.parametrize("loss", ["mse", "MAE", "binary_crossentropy"])
def test_short_names(tmp_path: pathlib.Path, ending: str, loss: str) -> None:
    model = trained(keras.optimizers.SGD(0.0), loss, metrics=["mae", "accuracy", "mse"])
    model.save(tmp_path / f"model.{ending}")
    again = hvd.load_model(tmp_path / f"model.{ending}")
    assert again.evaluate(X, Y, verbose=0) == model.evaluate(X, Y, verbose=0)


@ENDINGS
def test_optimizer_that_was_never_used(tmp_path: pathlib.Path, ending: str) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.5)), "mae")
    model.save(tmp_path / f"model.{ending}")
    again = hvd.load_model(tmp_path / f"model.{ending}")
    again.fit(X, Y, batch_size=4, verbose=0)
    assert int(again.optimizer.iterations) == 2
    assert float(again.optimizer.learning_rate) == 0.5


@ENDINGS
def test_model_that_is_not_compiled(tmp_path: pathlib.Path, ending: str) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.save(tmp_path / f"model.{ending}")
    again = hvd.load_model(tmp_path / f"model.{ending}", backward_passes_per_step=2)
    assert getattr(again, "optimizer", None) is None
    assert again.predict(X, verbose=0).shape == (8, 1)


@ENDINGS
def test_custom_optimizers(tmp_path: pathlib.Path, ending: str) -> None:
    model = trained(OwnSGD(0.05, momentum=0.5))
    model.save(tmp_path / f"model.{ending}")
    again = hvd.load_model(tmp_path / f"model.{ending}", custom_optimizers=[OwnSGD])
    assert type(again.optimizer) is OwnSGD
    assert_same(again, model)


@ENDINGS
def test_custom_objects(tmp_path: pathlib.Path, ending: str) -> None:
    def own_loss(y: Any, prediction: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y - prediction), axis=-1)

    model = trained(keras.optimizers.SGD(0.05), own_loss)
    model.save(tmp_path / f"model.{ending}")
    again = hvd.load_model(tmp_path / f"model.{ending}", custom_objects={"own_loss": own_loss})
    assert again.evaluate(X, Y, verbose=0) == model.evaluate(X, Y, verbose=0)


def test_options_of_the_optimizer(tmp_path: pathlib.Path) -> None:
    trained(keras.optimizers.SGD(0.05)).save(tmp_path / "model.keras")
    again = hvd.load_model(
        tmp_path / "model.keras",
        compression=hvd.Compression.fp16,
        op=hvd.Sum,
        backward_passes_per_step=4,
    )
    again.fit(X, Y, batch_size=2, verbose=0)
    assert int(again.optimizer.iterations) == 2 + 1


def test_many_variables(tmp_path: pathlib.Path) -> None:
    """HDF5 spreads more than 64 KiB of names over several attributes."""
    keras.utils.set_random_seed(1)
    name = "n" * 120
    layers = [keras.layers.Dense(1, name=f"{name}_{i}") for i in range(130)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mae")
    model.optimizer.build(model.trainable_variables)
    for i, variable in enumerate(model.optimizer.variables[2:]):
        variable.assign(keras.ops.ones_like(variable) * i)
    model.save(tmp_path / "model.h5")
    assert_same(hvd.load_model(tmp_path / "model.h5"), model)


@pytest.mark.parametrize(
    ("kwargs", "kind", "text"),
    [
        ({"legacy_opts": True}, ValueError, "Received: legacy_opts=True"),
        ({"custom_optimizers": [OwnSGD(0.1)]}, TypeError, "subclasses of keras.optimizers"),
        ({"custom_optimizers": ["Adam"]}, TypeError, "Received: 'Adam' in custom_optimizers"),
        ({"compression": "fp16"}, TypeError, "compression"),
        ({"backward_passes_per_step": 0}, ValueError, "backward_passes_per_step=0"),
        ({"backward_passes": 2}, TypeError, "backward_passes"),
    ],
)
def test_bad_arguments(tmp_path: pathlib.Path, kwargs: Any, kind: Any, text: str) -> None:
    trained(keras.optimizers.SGD(0.05)).save(tmp_path / "model.keras")
    with pytest.raises(kind, match=text):
        hvd.load_model(tmp_path / "model.keras", **kwargs)


@pytest.mark.parametrize("name", ["none.keras", "none.h5"])
def test_no_file(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises((ValueError, OSError), match="none"):
        hvd.load_model(tmp_path / name)


def test_lambda_needs_trust(tmp_path: pathlib.Path) -> None:
    keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x)]).save(
        tmp_path / "model.keras"
    )
    with pytest.raises(ValueError, match="safe_mode"):
        hvd.load_model(tmp_path / "model.keras")
    assert hvd.load_model(tmp_path / "model.keras", safe_mode=False).built


@pytest.mark.parametrize("optimizer", ["Adam", "loss scale"])
def test_file_needs_no_tfring(tmp_path: pathlib.Path, optimizer: str) -> None:
    model = trained(OPTIMIZERS[optimizer]())
    path = str(tmp_path / "model.keras")
    model.save(path)
    code = WITHOUT_TFRING + (
        "import json, keras\n"
        f"model = keras.models.load_model({path!r})\n"
        "values = [v.numpy().tolist() for v in [*model.weights, *model.optimizer.variables]]\n"
        "print(json.dumps([type(model.optimizer).__name__, values]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    kind, values = json.loads(done.stdout.splitlines()[-1])
    assert kind == type(model.optimizer).__name__
    assert values == [value.tolist() for value in state(model)]
