"""Which variables data-parallel training keeps alike on all ranks, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring import _keras, _loss_scale
from tfring._options import key
from tfring.constants import Adasum


def of_optimizer(optimizer: Any, step: Any, state: Sequence[Any]) -> list[Any]:
    """What an optimizer keeps alike: what it trains, and its own variables.

    Left out are local variables and what is kept for them, sums of gradients that are not
    complete, and with Adasum the optimizer's state, which is each rank's own.

    Args:
        optimizer: Of Keras 3 or Keras 2.
        step: What reduces for it; None where nothing does.
        state: Its own variables, without those for local variables.
    """
    trained = _trained(optimizer, step)
    sums = set(map(key, sums_of(optimizer, step)))
    if step is None:
        return distinct([*trained, *(v for v in state if key(v) not in sums)])
    kept = [
        trained[i] for i in step.local.split(trained)[0] if key(trained[i]) not in step.unguarded
    ]
    if step.options.op == Adasum:
        return distinct(kept)
    return distinct([*kept, *(v for v in state if key(v) not in sums)])


def distinct(variables: Sequence[Any]) -> list[Any]:
    """Returns the variables, each once."""
    return list({key(v): v for v in variables}.values())


def _trained(optimizer: Any, step: Any) -> list[Any]:
    if _keras.is_legacy(optimizer):
        return [] if step is None else list(step.known)
    inner = _loss_scale.innermost(optimizer)
    return list(inner._trainable_variables) if inner.built else []


def sums_of(optimizer: Any, step: Any) -> list[Any]:
    """Returns what each rank adds up for an update to come, and the counters of these.

    Args:
        optimizer: Of Keras 3 or Keras 2.
        step: What reduces for it; None where nothing does.
    """
    ours = [] if step is None else list(step.accumulators(_trained(optimizer, step)))
    if _keras.is_legacy(optimizer):
        return ours
    native = getattr(_loss_scale.innermost(optimizer), "_accumulated_gradients", ())
    return [*ours, *(v for v in native if v is not None)]
