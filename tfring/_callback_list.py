"""Hooks that Keras' list of callbacks lacks, in the list itself.

Every hook of `fit`, `evaluate` and `predict` goes through `keras.callbacks.CallbackList`, which
calls it of each callback in the order of the list. Some things must not depend on that order, or on
which callbacks a rank has, so methods of that class learn them:

* `after_train_begin(callbacks)` of callbacks is called with the list itself after every callback's
  `on_train_begin`.
* `before_epoch_end(epoch, logs)` of callbacks is called before any callback's `on_epoch_end`, so
  that others see the logs that it prepared.
* `after_last_batch()` of callbacks is called when the batches of an epoch are over, before
  validation and before `before_epoch_end`.
* `before_test_end(logs)` of callbacks is called before any callback's `on_test_end`, with the
  results that `evaluate` is going to return.
* Where the optimizer is distributed, ranks agree on what callbacks decided (`_agreement`). This is
  for `fit`, which makes a list with `epochs` and `steps`: a loop of one's own may well call
  callbacks on one rank only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _keras
from tfring._agreement import Agreement

_INSTALLED = "_tfring_installed"
_AGREEMENT = "_tfring_agreement"  # of the `fit` that goes on
_INNER = "_tfring_inner"  # whether a list is in another one
_MODULE = "tfring.callbacks."
_ROOT_ONLY = "_tfring_root_only"  # what RootOnly wraps
# In these, callbacks of ours wait for those of other ranks, in the order of the list.
_WAITING_HOOKS = ("after_train_begin", "after_last_batch", "before_epoch_end")
# These wait within a batch, wherever they stand.
_WAITING_ANYWHERE = ("BroadcastGlobalVariablesCallback",)

Method = Callable[..., Any]
# (model, parameters of `fit`, names of callbacks that must be on all ranks)
AgreementOf = Callable[[Any, dict[str, Any], list[str]], Agreement | None]

# Callbacks of Keras that leave weights alone, whatever hook.
_HARMLESS = (
    "BackupAndRestore",
    "CSVLogger",
    "History",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "TensorBoard",
    "TerminateOnNaN",
)


def install(keras: Any, agreement_of: AgreementOf) -> None:
    """Adds the hooks to the class of a Keras, once per process.

    Args:
        keras: The module: Keras 3, or Keras 2 (`tf_keras`).
        agreement_of: Gives the agreement for a `fit`; None where nothing is shared.

    Raises:
        RuntimeError: This Keras has no such list.
    """
    cls = keras.callbacks.CallbackList
    if _INSTALLED in vars(cls):
        return
    around: dict[str, Callable[[Method], Method]] = {
        "on_train_begin": functools.partial(_train_begin, agreement_of),
        "on_epoch_begin": _epoch_begin,
        "on_train_batch_end": _train_batch_end,
        "on_test_begin": _test_begin,
        "on_test_end": _test_end,
        "on_epoch_end": _epoch_end,
        "on_train_end": _train_end,
    }
    missing = [name for name in around if not callable(getattr(cls, name, None))]
    if missing:
        raise RuntimeError(
            f"{cls.__module__}.{cls.__name__} of Keras {keras.__version__} lacks {missing}, so "
            "tfring cannot keep ranks together. Use the version of Keras that came with "
            "TensorFlow."
        )
    for name, wrap in around.items():
        stock = getattr(cls, name)
        setattr(cls, name, functools.wraps(stock)(wrap(stock)))
    setattr(cls, _INSTALLED, True)


def _train_begin(agreement_of: AgreementOf, stock: Method) -> Method:
    def on_train_begin(self: Any, logs: Any = None) -> None:
        for callback in self.callbacks:
            if _is_list(callback):
                setattr(callback, _INNER, True)  # this one speaks for it
        setattr(self, _AGREEMENT, None)
        if not vars(self).pop(_INNER, False) and _is_of_fit(self):
            agreement = agreement_of(self.model, self.params, _partners(self))
            setattr(self, _AGREEMENT, agreement)
            if agreement is not None:  # before a callback waits for one that others lack
                agreement.begin()
        stock(self, logs)
        for callback in self.callbacks:  # those in lists within the list have had it
            if hasattr(callback, "after_train_begin"):
                callback.after_train_begin(self)

    return on_train_begin


def _epoch_begin(stock: Method) -> Method:
    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        agreement = _agreement(self)
        if agreement is None:
            return stock(self, epoch, logs)
        may_change = _may_change(self, "on_epoch_begin")
        with agreement.around(f"begin of epoch {epoch}", may_change=may_change):
            stock(self, epoch, logs)
        return agreement.stop_wish.begin_epoch()

    return on_epoch_begin


def _train_batch_end(stock: Method) -> Method:
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        stock(self, batch, logs)
        agreement = _agreement(self)
        if agreement is not None:
            agreement.stop_wish.after_batch()

    return on_train_batch_end


def _test_begin(stock: Method) -> Method:
    def on_test_begin(self: Any, logs: Any = None) -> None:
        for method in _methods(self, "after_last_batch"):
            method()
        stock(self, logs)

    return on_test_begin


def _test_end(stock: Method) -> Method:
    def on_test_end(self: Any, logs: dict[str, Any] | None = None) -> None:
        logs = {} if logs is None else logs
        for method in _methods(self, "before_test_end"):
            method(logs)
        stock(self, logs)

    return on_test_end


def _epoch_end(stock: Method) -> Method:
    def on_epoch_end(self: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        agreement = _agreement(self)
        for method in _methods(self, "after_last_batch"):
            method()
        if agreement is not None:
            agreement.stop_wish.before_epoch_end()
        # In the dictionary of `fit`, which gives it to `on_train_end`, too.
        logs = {} if logs is None else logs
        hooks = list(_methods(self, "before_epoch_end"))
        if hooks:
            _make_plain(logs)
        for method in hooks:
            method(epoch, logs)
        if agreement is None:
            return stock(self, epoch, logs)
        may_change = _may_change(self, "on_epoch_end")
        place = f"end of epoch {epoch}"
        with agreement.around(place, may_change=may_change, after_epoch=True):
            return stock(self, epoch, logs)

    return on_epoch_end


def _train_end(stock: Method) -> Method:
    def on_train_end(self: Any, logs: Any = None) -> None:
        agreement = _agreement(self)
        if agreement is None:
            return stock(self, logs)
        setattr(self, _AGREEMENT, None)
        may_change = _may_change(self, "on_train_end")
        with agreement.around("end of training", may_change=may_change):
            return stock(self, logs)

    return on_train_end


def _agreement(callbacks: Any) -> Agreement | None:
    agreement: Agreement | None = getattr(callbacks, _AGREEMENT, None)
    return agreement


def _is_of_fit(callbacks: Any) -> bool:
    params = getattr(callbacks, "params", None) or {}
    has_model = getattr(callbacks, "model", None) is not None
    return has_model and "epochs" in params and "steps" in params


def _is_list(callback: Any) -> bool:
    return isinstance(callback, _keras.of(callback).callbacks.CallbackList)


def _partners(callbacks: Any) -> list[str]:
    """Names of the callbacks that wait for the same ones of other ranks."""
    ordered, anywhere = [], []
    for callback in flat(callbacks):
        name = type(callback).__name__
        inner = getattr(callback, _ROOT_ONLY, None)
        if not type(callback).__module__.startswith(_MODULE):
            continue
        if inner is not None:
            ordered.append(f"{name}({type(inner).__name__})")
        elif any(hasattr(callback, hook) for hook in _WAITING_HOOKS):
            ordered.append(name)
        elif name in _WAITING_ANYWHERE:
            anywhere.append(name)
    return [*ordered, *sorted(anywhere)]


def _may_change(callbacks: Any, hook: str) -> bool:
    """Whether a callback may change weights in a hook: it has the hook, and is not known."""
    for each in flat(callbacks):
        callback = getattr(each, _ROOT_ONLY, each)
        cls = type(callback)
        known = _keras.of(callback).callbacks
        if cls.__module__.startswith(_MODULE) or cls in [
            getattr(known, name, None) for name in _HARMLESS
        ]:
            continue
        method = getattr(callback, hook)
        if getattr(method, "__func__", None) is not vars(known.Callback)[hook]:
            return True
    return False


def flat(callbacks: Any) -> Iterator[Any]:
    """The callbacks of a list, also those in lists within it."""
    for callback in callbacks.callbacks:
        if _is_list(callback):
            yield from flat(callback)
        else:
            yield callback


def _methods(callbacks: Any, name: str) -> Iterator[Method]:
    """The methods of this name of all callbacks, also of those in lists within the list."""
    for callback in flat(callbacks):
        method = getattr(callback, name, None)
        if method is not None:
            yield method


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
