"""The state of callbacks."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfring import world
from tfring.checkpoints import _trees

_BATCHES = ("_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch")
# What the callbacks of Keras, and those of tfring, remember from epoch to epoch.
_ATTRIBUTES = {
    "BackupAndRestore": _BATCHES,
    "EarlyStopping": ("best", "wait", "stopped_epoch", "best_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": ("best", *_BATCHES),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
}
_OWN = {
    "BroadcastGlobalVariablesCallback": ("_done",),
    "LearningRateWarmupCallback": ("_done", "_epoch"),
}


def get_states(callbacks: Sequence[Any], arrays: _trees.Arrays) -> dict[str, Any]:
    """Returns the states of callbacks as JSON, by name; their arrays go to `arrays`.

    Raises:
        TypeError: a callback's `get_state` gives something that files cannot hold.
    """
    states = {}
    for name, callback in _named(callbacks):
        state = _get(callback)
        if state is None:
            continue
        try:
            states[name] = _trees.pack(state, f"callback/{name}", arrays)
        except TypeError as error:
            kind = type(callback).__name__
            raise TypeError(f"`{kind}` cannot be stored in a checkpoint: {error}") from None
    return states


def set_states(callbacks: Sequence[Any], states: dict[str, Any], arrays: _trees.Arrays) -> None:
    """Gives callbacks the states that others of the same classes had, in their order."""
    for name, callback in _named(callbacks):
        if name in states:
            _set(callback, _trees.unpack(states[name], arrays))
        if type(callback).__name__ == "BroadcastGlobalVariablesCallback":
            callback._done = True  # or ranks would lose what is their own


def _named(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The callbacks of this rank, as "EarlyStopping/0"; those inside of `RootOnly` on rank 0."""
    counts: dict[str, int] = collections.defaultdict(int)
    for callback in callbacks:
        wrapped = getattr(callback, "_tfring_root_only", None)
        inner = callback if wrapped is None else wrapped
        name = type(inner).__name__
        if wrapped is None or world.rank() == 0:
            yield f"{name}/{counts[name]}", inner
        counts[name] += 1


def _get(callback: Any) -> Any:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return callback.get_state()
    return {n: getattr(callback, n) for n in _names(callback) if hasattr(callback, n)} or None


def _set(callback: Any, state: Any) -> None:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    known = _names(callback)
    for name, value in state.items():
        if name in known:
            setattr(callback, name, value)


def _names(callback: Any) -> tuple[str, ...]:
    for name, attributes in _ATTRIBUTES.items():
        if isinstance(callback, getattr(keras.callbacks, name, ())):
            return attributes
    return _OWN.get(type(callback).__name__, ())
