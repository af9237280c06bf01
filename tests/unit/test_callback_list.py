"""What tfring relies on in Keras' list of callbacks."""

from __future__ import annotations

import types
from typing import Any

import keras
import numpy as np
import pytest

from tfring import _callback_list

HOOKS = [
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_end",
    "on_epoch_end",
    "on_train_end",
]


def never(model: Any, epochs: Any, partners: Any) -> None:
    raise AssertionError("no fit has begun")


def keras_with(**methods: Any) -> Any:
    cls = type("CallbackList", (), methods)
    return types.SimpleNamespace(
        callbacks=types.SimpleNamespace(CallbackList=cls), __version__="9.9"
    )


def test_a_list_without_a_hook_is_an_error() -> None:
    some = {name: print for name in HOOKS if name != "on_test_begin"}
    with pytest.raises(RuntimeError, match=r"Keras 9\.9 lacks \['on_test_begin'\]"):
        _callback_list.install(keras_with(**some), never)


def test_hooks_are_added_once() -> None:
    fake = keras_with(**dict.fromkeys(HOOKS, print))
    _callback_list.install(fake, never)
    first = dict(vars(fake.callbacks.CallbackList))
    _callback_list.install(fake, never)
    assert dict(vars(fake.callbacks.CallbackList)) == first
    assert all(first[name] is not print for name in HOOKS)


def test_fit_calls_the_methods_of_the_public_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """And `fit` tells its list how many epochs there are, and looks at `stop_training` later."""
    cls = keras.callbacks.CallbackList
    seen: list[str] = []

    def note(name: str) -> Any:
        stock = getattr(cls, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> None:
            stock(self, *args, **kwargs)
            seen.append(name)
            assert (self.params["epochs"], self.params["steps"]) == (3, 2) or "test" in name
            if name == "on_train_batch_end":
                # As a wish is kept: fit must not have noticed in between.
                self.model.stop_training = False
            elif name == "on_epoch_end":
                self.model.stop_training = True

        return method

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    for name in HOOKS:
        monkeypatch.setattr(cls, name, note(name))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((2, 1), "float32")
    data = {"validation_data": (x, x), "batch_size": 1, "callbacks": [Stop()]}
    model.fit(x, x, epochs=3, verbose=0, **data)
    batch = "on_train_batch_end"
    assert seen == [*HOOKS[:2], batch, batch, *HOOKS[3:]]
