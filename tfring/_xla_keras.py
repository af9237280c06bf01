"""Keras models whose step is compiled by XLA."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tfring import _xla

_INSTALLED = "_tfring_jit_checked"


def install(keras: ModuleType, is_distributed: Callable[[Any], bool]) -> None:
    """Lets `compile` fall back to `jit_compile=False` where collectives cannot be compiled.

    Keras turns XLA on by itself as soon as a GPU is visible. `jit_compile` is read when the first
    batch comes, so it is looked at once `compile` is done. Once per process.

    Args:
        keras: The module: Keras 3, or Keras 2 (`tf_keras`).
        is_distributed: Says whether an optimizer's steps hold collectives.
    """
    stock = keras.Model.compile
    if getattr(stock, _INSTALLED, False):
        return

    @functools.wraps(stock)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        if not getattr(self, "jit_compile", False) or not is_distributed(self.optimizer):
            return result
        reason = _xla.unusable()
        if reason:
            self.jit_compile = False
            _warn(reason)
        return result

    setattr(compile, _INSTALLED, True)
    keras.Model.compile = compile


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"The model runs with jit_compile=False: XLA cannot compile collectives here, since "
        f"{reason}.",
        stacklevel=4,
    )
