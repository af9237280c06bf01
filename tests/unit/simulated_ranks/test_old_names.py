"""Names that scripts of Keras 2 use on optimizers."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from tfring.optimizer import DistributedOptimizer
from tfring.tape import DistributedGradientTape


def scaled(optimizer: Any) -> Any:
    return keras.optimizers.LossScaleOptimizer(optimizer)


@pytest.fixture(params=[lambda o: o, scaled], ids=["plain", "loss scale"])
def optimizer(request: pytest.FixtureRequest, ranks: Any) -> Any:
    ranks(1)
    optimizer = DistributedOptimizer(request.param(keras.optimizers.SGD(0.5, momentum=0.9)))
    optimizer.build([keras.Variable(1.0)])
    return optimizer


def test_variables_is_a_list_that_may_be_called(optimizer: Any) -> None:
    assert isinstance(optimizer.variables, list)
    assert len(optimizer.variables) >= 3  # iteration, learning rate, momentum
    assert all(a is b for a, b in zip(optimizer.variables, optimizer.variables(), strict=True))


def test_lr_is_the_learning_rate(optimizer: Any) -> None:
    assert float(optimizer.lr) == 0.5
    optimizer.lr = 0.25
    assert float(optimizer.learning_rate) == 0.25


def test_a_stock_optimizer_beside_a_tape(ranks: Any) -> None:
    ranks(1)
    DistributedGradientTape(tf.GradientTape())
    optimizer = keras.optimizers.Adam(0.5)
    assert list(optimizer.variables()) == list(optimizer.variables)
    assert float(optimizer.lr) == 0.5


def test_what_is_saved_stays_the_stock_class(optimizer: Any, tmp_path: Any) -> None:
    config = keras.optimizers.serialize(optimizer)
    assert config["module"] == "keras.optimizers"
    assert "lr" not in config["config"]
