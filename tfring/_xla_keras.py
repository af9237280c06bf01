"""Keras models whose step is compiled by XLA."""

from __future__ import annotations

import functools
import sys
import warnings
from types import ModuleType
from typing import Any

from tfring import _xla, world

# Says of a layer's class that it has collectives.
MARK = "_tfring_has_collectives"

# What a model overrides to have collectives of its own.
_STEPS = ("train_step", "test_step", "compute_loss", "compute_metrics")

_stocks: dict[ModuleType, property] = {}


def install_loaded() -> None:
    """Does `install` for each Keras that is loaded by now."""
    for name in ("keras", "tf_keras"):
        # One that is half loaded has no models yet.
        if hasattr(sys.modules.get(name), "Model"):
            install(sys.modules[name])


def install(keras: ModuleType) -> None:
    """Lets a model's `jit_compile` be False where collectives cannot be compiled.

    Keras 3 turns XLA on by itself as soon as a GPU is visible. It and Keras 2 ask the property
    when the first batch comes; `compile` may have been looked up before this is called, in one
    line with `DistributedOptimizer`, so it is no place to step in. Once per process.

    Args:
        keras: Keras 3, or Keras 2, which uses XLA only where it is told to.
    """
    stock = getattr(keras.Model, "jit_compile", None)
    if keras in _stocks or not isinstance(stock, property) or stock.fget is None:
        return
    get = stock.fget

    def jit_compile(self: Any) -> Any:
        """Whether XLA compiles the model's functions."""
        value = get(self)
        if not value or not _may_have_collectives(self, keras.Model):
            return value
        reason = _xla.unusable()
        if reason:
            _warn(reason)
        return False if reason else value

    _stocks[keras] = stock
    keras.Model.jit_compile = property(jit_compile, stock.fset, stock.fdel, stock.__doc__)


def _may_have_collectives(model: Any, base: type) -> bool:
    """Whether a model's steps have collectives, or hold code of the user's that may."""
    if _is_distributed(getattr(model, "optimizer", None)):
        return True
    layers = getattr(model, "_flatten_layers", lambda: ())()
    if any(getattr(layer, MARK, False) for layer in layers):
        return True
    return world.is_initialized() and any(_is_overridden(model, base, name) for name in _STEPS)


def _is_distributed(optimizer: Any) -> bool:
    # Who has not loaded it has distributed nothing.
    module = sys.modules.get("tfring.optimizer")
    return module is not None and optimizer is not None and module.is_distributed(optimizer)


def _is_overridden(model: Any, base: type, name: str) -> bool:
    of_base = getattr(base, name, None)
    return name in vars(model) or getattr(type(model), name, None) is not of_base


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"The model runs with jit_compile=False: XLA cannot compile collectives here, since "
        f"{reason}.",
        stacklevel=4,
    )
