"""What scripts of Keras 2 call an optimizer's attributes: `opt.variables()` and `opt.lr`."""

from __future__ import annotations

from typing import Any

import keras

_INSTALLED = "_tfring_old_names"


class _Variables(list[Any]):
    """A list of variables that may be called, as in Keras 2, where it was a method."""

    def __call__(self) -> _Variables:
        return self


def install() -> None:
    """Lets Keras 3 optimizers answer to the old names as well.

    Changes the classes once per process. `variables` stays a property that gives a list, and what
    is saved does not change.
    """
    for cls in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        if _INSTALLED not in vars(cls):
            cls.variables = property(_callable(cls.variables.fget))
            cls.lr = property(_get_rate, _set_rate)
            setattr(cls, _INSTALLED, True)


def _callable(stock: Any) -> Any:
    return lambda optimizer: _Variables(stock(optimizer))


def _get_rate(optimizer: Any) -> Any:
    return optimizer.learning_rate


def _set_rate(optimizer: Any, rate: Any) -> None:
    optimizer.learning_rate = rate
