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
import tensorflow as tf

from tfring import collectives
from tfring._autograph import as_it_stands
from tfring._options import Options
from tfring.constants import Sum

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


def poisoned(
    gradients: list[Any], unreduced: Sequence[int], options: Options, name: str
) -> list[Any]:
    """Makes a gradient NaN on every rank when a rank's own gradients are not finite.

    Ranks would otherwise skip an update, and change the loss scale, on their own. One
    collective of one number.

    Args:
        gradients: Gradients, or None.
        unreduced: Places of those that are not the same on all ranks.
        options: How gradients are reduced.
        name: Name of the collective.
    """
    if not options.takes_part() or all(gradient is None for gradient in gradients):
        return gradients
    return with_poison(gradients, poison(gradients, unreduced, options, name))


def poison(gradients: Sequence[Any], unreduced: Sequence[int], options: Options, name: str) -> Any:
    """Returns 0 where gradients are finite on all ranks, else NaN, on every rank.

    Args:
        gradients: As for `poisoned`, and so are the others.
        unreduced: Places of those that count.
        options: How gradients are reduced.
        name: Name of the collective; none where this rank takes no part.
    """
    values = [_values(gradients[i]) for i in unreduced if gradients[i] is not None]
    finite = tf.reduce_all([True, *(tf.reduce_all(tf.math.is_finite(v)) for v in values)])
    own = tf.where(finite, tf.constant(0.0), tf.constant(float("nan")))
    if not options.takes_part():
        return own
    return collectives.allreduce(own, op=Sum, name=name, process_set=options.process_set)


def with_poison(gradients: list[Any], amount: Any) -> list[Any]:
    """Adds what `poison` returns to the smallest gradient."""
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if not present:
        return gradients
    result = list(gradients)
    place = min(present, key=lambda i: gradients[i].shape.num_elements() or float("inf"))
    # Dense: slices without a row could not hold it.
    dense = tf.convert_to_tensor(result[place])
    result[place] = dense + tf.cast(amount, dense.dtype)
    return result


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
