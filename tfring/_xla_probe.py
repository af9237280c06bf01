"""Tries the hooks that collectives under XLA rely on, with functions that take no other rank."""

from __future__ import annotations

import tensorflow as tf

from tfring import _xla, _xla_calls


def failure() -> str:
    """Returns what does not work as it should; empty where all does."""
    try:
        return _retraced() or _error_kept()
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return f"a tiny compiled function failed: {lines[0]}"


def _retraced() -> str:
    contexts = []

    @tf.function(autograph=False)
    def inner() -> tf.Tensor:
        contexts.append(_xla.context())
        return tf.constant(1)

    @tf.function(jit_compile=True, autograph=False)
    def outer() -> tf.Tensor:
        _xla_calls.probe(fails=False)
        return inner()

    inner()
    outer()
    if len(contexts) != 2 or contexts[0] is not None or contexts[1] is None:
        return "TensorFlow does not tell when a function is traced for XLA"
    return ""


def _error_kept() -> str:
    @tf.function(jit_compile=True, autograph=False)
    def fail() -> tf.Tensor:
        _xla_calls.probe(fails=True)
        return tf.constant(1)

    try:
        fail()
    except tf.errors.AbortedError as error:
        known = "a probe's error" in error.message
        return "" if known else f"an error lost its text: {error.message}"
    except tf.errors.OpError as error:
        return f"an error changed its class to {type(error).__name__}: {error.message}"
    return "a call that failed was not reported"
