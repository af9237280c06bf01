"""Keras models whose step is compiled by XLA."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tfring import _xla

_stocks: dict[ModuleType, property] = {}


def install(keras: ModuleType, is_distributed: Callable[[Any], bool]) -> None:
    """Lets a model's `jit_compile` be False where collectives cannot be compiled.

    Keras 3 turns XLA on by itself as soon as a GPU is visible. It and Keras 2 ask the property
    when the first batch comes; `compile` may have been looked up before this is called, in one
    line with `DistributedOptimizer`, so it is no place to step in. Once per process.

    Args:
        keras: Keras 3, or Keras 2, which uses XLA only where it is told to.
        is_distributed: Says whether an optimizer's steps hold collectives.
    """
    stock = getattr(keras.Model, "jit_compile", None)
    if keras in _stocks or not isinstance(stock, property) or stock.fget is None:
        return
    get = stock.fget

    def jit_compile(self: Any) -> Any:
        """Whether XLA compiles the model's functions."""
        value = get(self)
        if not value or not is_distributed(getattr(self, "optimizer", None)):
            return value
        reason = _xla.unusable()
        if reason:
            _warn(reason)
        return False if reason else value

    _stocks[keras] = stock
    keras.Model.jit_compile = property(jit_compile, stock.fset, stock.fdel, stock.__doc__)


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"The model runs with jit_compile=False: XLA cannot compile collectives here, since "
        f"{reason}.",
        stacklevel=4,
    )
