"""What a checkpoint holds of a model and its optimizers, entry by entry."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _keras, _loss_scale
from tfring import optimizer as _optimizer
from tfring._options import key as _key
from tfring.constants import Sum

# How ranks get their values when there are more or fewer than when the checkpoint was written.
RANK = "rank"  # those of the rank of the same number, counted around
SEED = "seed"  # those of the rank of the same number; new ranks keep their own
MEAN = "mean"  # the mean over all
TOTAL = "sum"  # an equal part of the sum over all

Entries = dict[str, "Entry"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable, or one array.

    Args:
        label: how errors call it.
        value: a variable of TensorFlow or Keras, or an array.
        rule: what becomes of it on another number of ranks, where ranks differ.
    """

    label: str
    value: Any
    rule: str = RANK

    def array(self) -> np.ndarray:
        """Returns its value now."""
        value = self.value
        return np.asarray(value if isinstance(value, np.ndarray) else value.numpy())

    def fingerprint(self) -> bytes:
        """Returns 16 bytes that are the same where dtype, shape and all bits are."""
        array = self.array()
        digest = hashlib.blake2b(f"{array.dtype.name} {array.shape}".encode(), digest_size=16)
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.digest()

    def kind(self) -> tuple[str, list[int]]:
        """Returns dtype and shape."""
        value = self.value
        if isinstance(value, np.ndarray):
            return value.dtype.name, list(value.shape)
        return tf.as_dtype(value.dtype).name, list(value.shape)


def optimizers_of(model: Any) -> list[Any]:
    """Returns the optimizers of a model: that of `compile`, and those it has as attributes."""
    if model is None:
        return []
    found = [getattr(model, "optimizer", None), *vars(model).values()]
    kept: list[Any] = []
    for each in found:
        is_one = isinstance(each, _keras.of(model).optimizers.Optimizer)
        if is_one and not any(each is other for other in kept):
            kept.append(each)
    return kept


def collect(model: Any, optimizers: Sequence[Any], variables: Sequence[Any] = ()) -> Entries:
    """Returns what a checkpoint holds of these, in the same order on every rank.

    Built optimizers that add up gradients get their accumulators here if need be.
    """
    entries: Entries = {}
    for variable in [] if model is None else model.variables:
        _add(entries, "model", variable, SEED if _is_seed(variable) else RANK)
    for i, optimizer in enumerate(optimizers):
        _add_optimizer(entries, f"optimizer{i}", optimizer)
    for variable in variables:
        _add(entries, "variable", variable, RANK)
    return entries


def metrics(model: Any) -> Entries:
    """Returns the variables of a model's metrics."""
    entries: Entries = {}
    for variable in model.metrics_variables:
        _add(entries, "metric", variable, RANK)
    return entries


def is_finite(model: Any) -> bool:
    """Whether all weights of a model are numbers."""
    values = [v.value for v in model.weights if tf.as_dtype(v.dtype).is_floating]
    return all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in values)


def places(model: Any, optimizers: Sequence[Any]) -> list[list[int] | None]:
    """Returns which of a model's trainable variables each optimizer updates; None: not built."""
    known = [] if model is None else [_key(v) for v in model.trainable_variables]
    result: list[list[int] | None] = []
    for optimizer in optimizers:
        trained = getattr(_loss_scale.innermost(optimizer), "_trainable_variables", ())
        keys = [_key(v) for v in trained]
        is_known = optimizer.built and set(keys) <= set(known)
        result.append([known.index(k) for k in keys] if is_known else None)
    return result


def build(model: Any, optimizers: Sequence[Any], saved: Sequence[list[int] | None]) -> None:
    """Builds optimizers as they were when `places` was asked."""
    if model is None:
        return
    trainable = model.trainable_variables
    for optimizer, numbers in zip(optimizers, saved, strict=False):
        if not optimizer.built and numbers is not None and max(numbers, default=0) < len(trainable):
            optimizer.build([trainable[i] for i in numbers])


def _add(entries: Entries, group: str, variable: Any, rule: str, label: str = "") -> None:
    number = sum(name.startswith(f"{group}/") for name in entries)
    label = label or getattr(variable, "path", None) or variable.name
    entries[f"{group}/{number}"] = Entry(label, variable, rule)


def _add_optimizer(entries: Entries, group: str, optimizer: Any) -> None:
    inner = _loss_scale.innermost(optimizer)
    known = list(inner._trainable_variables) if optimizer.built else []
    step = _optimizer._step_of(optimizer)
    rule = RANK if step is None else _rule(step)
    shared = range(len(known)) if step is None else step.local.split(known)[0]
    native = getattr(inner, "_accumulated_gradients", None) or []
    reduced_later = {id(native[i]) for i in shared} if native else set()
    for variable in optimizer.variables:
        _add(entries, group, variable, rule if id(variable) in reduced_later else RANK)
    if step is None:
        return
    sums = step.all_accumulators(known)
    for variable in sums.counter:
        _add(entries, group, variable, RANK, "backward passes since the last update")
    for variable in sums.numbers:
        _add(entries, group, variable, rule, "samples since the last update")
    for i, variable in sums.shared.items():
        _add(entries, group, variable, rule, f"sum of gradients of {known[i].path}")
    for i, variable in sums.own.items():
        _add(entries, group, variable, RANK, f"sum of gradients of {known[i].path}")


def _rule(step: Any) -> str:
    """What becomes of gradients that are not reduced yet, so that the update stays the same."""
    options = step.options
    if not options.takes_part() or options.process_set.process_set_id != 0:
        return RANK
    return TOTAL if options.op == Sum else MEAN


def _is_seed(variable: Any) -> bool:
    name = getattr(variable, "path", None) or variable.name
    return str(name).endswith("seed_generator_state")
