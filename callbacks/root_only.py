"""`RootOnly`: any Keras callback, on rank 0 only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tfring import _digest, _keras, _root, objects, optimizer, world
from tfring.callbacks import _learning_rate

_BATCH_ENDS = ("on_batch_end", "on_train_batch_end", "on_test_batch_end", "on_predict_batch_end")
_WAITED = ("on_epoch_begin", "on_epoch_end", "on_train_end")

Logs = dict[str, Any]


def _on_root(name: str) -> Callable[..., None]:
    def hook(self: RootOnly, *args: Any, **kwargs: Any) -> None:
        if world.rank() == 0 and self._has(name):
            with self._whole_saves():
                getattr(self.callback, name)(*args, **kwargs)

    hook.__name__ = name
    hook.__doc__ = f"Calls the callback's `{name}` on rank 0; nobody waits."
    return hook


class RootOnly(_keras.Callback):
    """Runs another callback on rank 0 only; the others wait where it may write files.

    Give it to `fit` on every rank: `RootOnly(keras.callbacks.ModelCheckpoint("best.keras"))`, or
    around `BackupAndRestore`, `CSVLogger`, `TensorBoard`, or a callback of your own that writes,
    prints, or sends somewhere. Rank 0 is that of the job; there is none for process sets.

    * At the begin and the end of training, and at the begin and the end of epochs, the other ranks
      wait until rank 0's callback is done: a file is there when they go on or exit. The wait ends
      with an error on all ranks when the callback fails, a full disk say, and at the latest when
      collectives do (`fail_after`). Elsewhere, as after a batch, nobody waits: ranks meet in the
      next update.
    * Files that the callback writes by `model.save` or `model.save_weights` appear whole: the
      former file stays until the new one is complete.
    * What the callback restores when training begins (`BackupAndRestore`) reaches all ranks:
      weights, state of the optimizer, and the epoch with which they go on.
    * When the callback changes the learning rate, the logs, or `stop_training`, all ranks follow.

    The callback sees rank 0's logs: `MetricAverageCallback` makes them those of all ranks. Wrap
    no callback that calls collectives; those of tfring are not accepted.

    Args:
        callback: of the Keras in use. Make one on every rank; elsewhere than on rank 0 none of its
            methods is called.

    Raises:
        TypeError: `callback` is no callback, or one that must run on all ranks.
        RuntimeError: by `fit`, on other ranks than 0, when the callback has failed; rank 0 raises
            what the callback did.
        tf.errors.AbortedError: by `fit`, when a peer is lost.

    Example:

    >>> import keras, tfring as hvd
    >>> hvd.init()
    >>> log = hvd.callbacks.RootOnly(keras.callbacks.CSVLogger("log.csv", append=True))
    """

    def __init__(self, callback: Any) -> None:
        super().__init__()
        if not isinstance(callback, _keras.Callback):
            raise TypeError(
                "`callback` must be a Keras callback. Received: "
                f"callback={callback!r} of type {type(callback).__name__}"
            )
        if type(callback).__module__.startswith("tfring."):
            raise TypeError(
                "`callback` must not be one of tfring, which run on all ranks. Received: "
                f"callback={callback!r}. Give it to fit as it is."
            )
        self.callback = callback
        self._waits: list[str] | None = None  # the hooks of rank 0's; None: not told yet

    @property
    def async_safe(self) -> bool:
        """Whether Keras may call the hooks for batches beside the training."""
        own = getattr(self.callback, "async_safe", False)
        return bool(own) or not any(self._has(name) for name in _BATCH_ENDS)

    def set_params(self, params: dict[str, Any]) -> None:
        """Hands on on rank 0."""
        super().set_params(params)
        if world.rank() == 0:
            self.callback.set_params(params)

    def set_model(self, model: Any) -> None:
        """Hands on on rank 0."""
        super().set_model(model)
        if world.rank() == 0:
            self.callback.set_model(model)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Waits for rank 0, then takes over what its callback restored."""

        def begin() -> tuple[bool, Any, list[str]]:
            restored = False
            if self._has("on_train_begin"):
                before = _digests(self.model)
                with self._whole_saves():
                    self.callback.on_train_begin(logs)
                restored = before != _digests(self.model)
            waits = [name for name in _WAITED if self._has(name)]
            return restored, _initial_epoch(self.model), waits

        restored, epoch, self._waits = _root.on_root(begin, f"run {self._name()}.on_train_begin")
        if hasattr(self.model, "_initial_epoch"):
            self.model._initial_epoch = epoch
        if restored:
            _broadcast(self.model)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Waits for rank 0."""
        self._wait("on_train_end", logs)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Waits for rank 0."""
        self._wait("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Waits for rank 0."""
        self._wait("on_epoch_end", epoch, logs)

    on_batch_begin = _on_root("on_batch_begin")
    on_batch_end = _on_root("on_batch_end")
    on_train_batch_begin = _on_root("on_train_batch_begin")
    on_train_batch_end = _on_root("on_train_batch_end")
    on_test_begin = _on_root("on_test_begin")
    on_test_end = _on_root("on_test_end")
    on_test_batch_begin = _on_root("on_test_batch_begin")
    on_test_batch_end = _on_root("on_test_batch_end")
    on_predict_begin = _on_root("on_predict_begin")
    on_predict_end = _on_root("on_predict_end")
    on_predict_batch_begin = _on_root("on_predict_batch_begin")
    on_predict_batch_end = _on_root("on_predict_batch_end")

    def _wait(self, name: str, *args: Any) -> None:
        """Calls a hook on rank 0; the other ranks wait, and follow what it decided."""
        # Rank 0's callback may have a hook that others lack: LambdaCallback(on_epoch_end=...).
        if not (self._has(name) if self._waits is None else name in self._waits):
            return
        logs = args[-1]

        def call() -> tuple[float | None, bool, Logs]:
            rate, before = _rate(self.model), dict(logs or {})
            with self._whole_saves():
                getattr(self.callback, name)(*args)
            new = _rate(self.model)
            stop = bool(getattr(self.model, "stop_training", False))
            return (None if new == rate else new), stop, _changed(before, logs or {})

        rate, stop, new_logs = _root.on_root(call, f"run {self._name()}.{name}")
        if world.rank() == 0:
            return
        if stop:
            self.model.stop_training = True
        if rate is not None:
            _learning_rate.set_rate(self.model.optimizer, rate, momentum_correction=False)
        if logs is not None:
            logs.update(new_logs)

    def _has(self, name: str) -> bool:
        """Whether this rank's callback does something there."""
        method = getattr(self.callback, name)
        if name.endswith(("_train_batch_begin", "_train_batch_end")):  # call the older names
            older = name.replace("_train", "")
            if self._has(older):
                return True
        return getattr(method, "__func__", method) is not getattr(_keras.Callback, name)

    @contextlib.contextmanager
    def _whole_saves(self) -> Iterator[None]:
        if self.model is None:
            yield
        else:
            with _root.whole_saves(self.model):
                yield

    def _name(self) -> str:
        return type(self.callback).__name__

    @property
    def _tfring_root_only(self) -> Any:
        return self.callback


def _initial_epoch(model: Any) -> Any:
    return getattr(model, "_initial_epoch", None)


def _rate(model: Any) -> float | None:
    chosen = getattr(model, "optimizer", None)
    return None if chosen is None else _learning_rate.get_rate(chosen)


def _changed(before: Logs, after: Logs) -> Logs:
    """The numbers of the logs that are new or others."""
    numbers = (bool, int, float, np.generic, np.ndarray)
    return {
        name: value
        for name, value in after.items()
        if isinstance(value, numbers) and (name not in before or before[name] is not value)
    }


def _variables(model: Any) -> list[Any]:
    """The weights and the state of the optimizer, but for what each rank keeps of its own."""
    if not model.built:
        return []
    has_optimizer = getattr(model, "optimizer", None) is not None
    return optimizer.shared_variables(model) if has_optimizer else list(model.weights)


def _digests(model: Any) -> list[int]:
    return list(map(int, _digest.digest(_variables(model))))


def _broadcast(model: Any) -> None:
    """Sends rank 0's weights and state of the optimizer to all ranks."""
    chosen: Any = getattr(model, "optimizer", None)
    built = chosen is None or getattr(chosen, "built", True)
    if any(objects.allgather_object(bool(built), name="built")) and not built:
        chosen.build(model.trainable_variables)
    objects.broadcast_variables(_variables(model), 0)
