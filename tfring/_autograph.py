"""Keeps AutoGraph out of this package: what users' functions call here is traced as it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_it_stands(function: _Function) -> _Function:
    """Marks a function that AutoGraph must not rewrite when a `tf.function` calls it."""
    return tf.autograph.experimental.do_not_convert(function)
