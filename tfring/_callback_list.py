"""Hooks that Keras' list of callbacks lacks, in the list itself.

Keras calls a hook of each callback in the order of the list. A callback that prepares the epoch's
logs for others must not depend on its place there, so `keras.callbacks.CallbackList`, through which
every hook goes, learns one more: a callback with a method `before_epoch_end(epoch, logs)` has it
called before any callback's `on_epoch_end`. One with a method `after_train_begin(callbacks)` has it
called with the list itself after every callback's `on_train_begin`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_INSTALLED = "_tfring_installed"

Method = Callable[..., Any]


def install(keras: Any) -> None:
    """Adds the hooks to the class of a Keras, once per process.

    Args:
        keras: The module: Keras 3, or Keras 2 (`tf_keras`).
    """
    cls = keras.callbacks.CallbackList
    if getattr(cls, _INSTALLED, False):
        return
    arounds = {"on_train_begin": _around_train_begin, "on_epoch_end": _around_epoch_end}
    for name, around in arounds.items():
        setattr(cls, name, around(getattr(cls, name)))
    setattr(cls, _INSTALLED, True)


def _around_train_begin(stock: Method) -> Method:
    @functools.wraps(stock)
    def on_train_begin(self: Any, logs: dict[str, Any] | None = None) -> None:
        stock(self, logs)
        for callback in self.callbacks:  # those in lists within the list have had it
            if hasattr(callback, "after_train_begin"):
                callback.after_train_begin(self)

    return on_train_begin


def _around_epoch_end(stock: Method) -> Method:
    @functools.wraps(stock)
    def on_epoch_end(self: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not any(True for _ in _with(self, "before_epoch_end")):
            return stock(self, epoch, logs)
        # In the dictionary of `fit`, which gives it to `on_train_end`, too.
        logs = {} if logs is None else logs
        _make_plain(logs)
        for method in _with(self, "before_epoch_end"):
            method(epoch, logs)
        return stock(self, epoch, logs)

    return on_epoch_end


def _with(callbacks: Any, name: str) -> Iterator[Method]:
    """The methods of this name of all callbacks, also of those in lists within the list."""
    for callback in callbacks.callbacks:
        if isinstance(callback, type(callbacks)):
            yield from _with(callback, name)
        elif hasattr(callback, name):
            yield getattr(callback, name)


def _make_plain(logs: dict[str, Any]) -> None:
    """Makes numbers of tensors, and one dictionary of nested ones, as Keras does for callbacks."""
    for name, value in list(logs.items()):
        if isinstance(value, dict):
            del logs[name]
            _make_plain(value)
            logs.update(value)
        elif tf.is_tensor(value) or isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            logs[name] = array if array.ndim else float(array)
