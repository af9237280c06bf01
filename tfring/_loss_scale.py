"""Keras' loss scaling and collectives: reduce before the finite check.

`compile` wraps an optimizer in a `keras.optimizers.LossScaleOptimizer` when the policy
is "mixed_float16". That class asks whether the *local* gradients are finite and calls
the inner optimizer only if so: a collective in the inner optimizer would leave the
other ranks waiting as soon as one rank alone overflows. So the outermost optimizer must
reduce, and that class learns to ask a distributed inner optimizer first. Ranks then
see the same gradients, infinities included, and skip together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfring._autograph import as_it_stands

_INSTALLED = "_tfring_installed"

# (outer optimizer, its stock apply, gradients, variables)
Run = Callable[[Any, Callable[..., None], Sequence[Any], Any], None]


def install(run_of: Callable[[Any], Run | None]) -> None:
    """Lets `LossScaleOptimizer.apply` pass through a distributed inner optimizer.

    Changes the class once per process; instances whose inner optimizer is not
    distributed behave as before. What is saved does not change.

    Args:
        run_of: Gives the chain of a distributed optimizer, None for others.
    """
    cls = keras.optimizers.LossScaleOptimizer
    if getattr(cls, _INSTALLED, False):
        return
    stock = cls.apply

    @as_it_stands
    @functools.wraps(stock)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        run = run_of(self.inner_optimizer)
        if run is None:
            return stock(self, grads, trainable_variables)
        return run(self, functools.partial(stock, self), grads, trainable_variables)

    cls.apply = apply
    setattr(cls, _INSTALLED, True)


def is_loss_scale(optimizer: Any) -> bool:
    """Whether `optimizer` is a `LossScaleOptimizer`."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer that makes the update."""
    while is_loss_scale(optimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer
