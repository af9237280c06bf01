"""Which variables data-parallel training keeps alike on all ranks, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring import _keras, _legacy_keras, _loss_scale, optimizer
from tfring._options import key
from tfring.constants import Adasum
from tfring.process_sets import ProcessSet, global_process_set


def process_set_of(model_optimizer: Any) -> ProcessSet:
    """The ranks that a distributed optimizer reduces over; all ranks for another one."""
    step = optimizer._step_of(model_optimizer) if model_optimizer is not None else None
    return global_process_set if step is None else step.options.process_set


def of_optimizer(model_optimizer: Any) -> list[Any]:
    """What an optimizer keeps alike: what it trains, and its own variables.

    Left out are local variables and what is kept for them, sums of gradients that are not
    complete, and with Adasum the optimizer's state, which is each rank's own.
    """
    trained = _trained(model_optimizer)
    step = optimizer._step_of(model_optimizer)
    if step is None:
        return _distinct([*trained, *_own(model_optimizer)])
    shared, _ = step.local.split(trained)
    kept = [trained[i] for i in shared]
    if step.options.op == Adasum:
        return _distinct(kept)
    sums = {key(v) for v in step.accumulators(trained)} | _native_sums(model_optimizer)
    state = [v for v in optimizer.state_variables(model_optimizer) if key(v) not in sums]
    return _distinct([*kept, *state])


def of_model(model: Any, non_trainable: bool) -> list[Any]:
    """What training keeps alike of a model and of its optimizer.

    Args:
        model: Of Keras 3 or Keras 2.
        non_trainable: Also its other weights, such as moving statistics.
    """
    model_optimizer = getattr(model, "optimizer", None)
    step = None if model_optimizer is None else optimizer._step_of(model_optimizer)
    weights = list(model.trainable_variables)
    if step is not None:
        weights = [weights[i] for i in step.local.split(weights)[0]]
    if non_trainable:
        weights += model.non_trainable_variables
    return _distinct(
        [*weights, *([] if model_optimizer is None else of_optimizer(model_optimizer))]
    )


def _trained(model_optimizer: Any) -> list[Any]:
    if _keras.is_legacy(model_optimizer):
        step = _legacy_keras.step_of(model_optimizer)
        return [] if step is None else list(step.known)
    inner = _loss_scale.innermost(model_optimizer)
    return list(inner._trainable_variables) if inner.built else []


def _own(model_optimizer: Any) -> list[Any]:
    if _keras.is_legacy(model_optimizer):
        return _legacy_keras.state_variables(model_optimizer)
    sums = _native_sums(model_optimizer)
    return [v for v in model_optimizer.variables if key(v) not in sums]


def _native_sums(model_optimizer: Any) -> set[int]:
    """Keras' own accumulators (`gradient_accumulation_steps`), reduced only when complete."""
    if _keras.is_legacy(model_optimizer):
        return set()
    inner = _loss_scale.innermost(model_optimizer)
    return {key(v) for v in getattr(inner, "_accumulated_gradients", ()) if v is not None}


def _distinct(variables: Sequence[Any]) -> list[Any]:
    return list({key(v): v for v in variables}.values())
