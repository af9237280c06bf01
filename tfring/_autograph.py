"""Keeps AutoGraph out of this package: what users' functions call here is traced as it stands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_it_stands(function: _Function) -> _Function:
    """Marks a function that AutoGraph must not rewrite when a `tf.function` calls it."""
    traced = tf.autograph.experimental.do_not_convert(function)

    # Also takes over AutoGraph's mark.
    @functools.wraps(traced)
    def call(*args: Any, **kwargs: Any) -> Any:
        # What runs eagerly is not rewritten in any case; telling AutoGraph costs microseconds.
        chosen = function if tf.executing_eagerly() else traced
        return chosen(*args, **kwargs)

    return cast(_Function, call)
