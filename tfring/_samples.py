"""How many samples a rank's gradients come from: what users, or Keras' `fit`, say about it."""

from __future__ import annotations

import contextlib
import math
import numbers as _numbers
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._autograph import as_it_stands

__all__ = ["batch_samples"]


class _Here(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self._samples: tf.Variable | None = None  # float32, shape (), NaN outside of a batch
        self.models: list[Any] = []  # that are in their `train_step`

    @property
    def samples(self) -> tf.Variable:
        if self._samples is None:
            # A variable, not a tensor: a function that was traced in one batch is right in others.
            with tf.init_scope():
                self._samples = tf.Variable(math.nan, dtype=tf.float32, trainable=False)
        return self._samples


_here = _Here()


class _Batch:
    """Sets the number while it is entered."""

    def __init__(self, number: Any) -> None:
        self._number = number
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = _here.samples.read_value()
        say(self._number)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or tf.executing_eagerly():
            _here.samples.assign(self._before)


@as_it_stands
def batch_samples(number: Any) -> _Batch:
    """Tells how many samples this rank's next gradients are the mean of; a context manager.

    For custom loops with `DistributedOptimizer(..., sample_weighted=True)`, or a tape of that
    kind: apply the optimizer, or ask the tape for gradients, inside of it. Works eagerly and in a
    `tf.function`, and around a call of one. Keras' `fit` and `train_on_batch` tell it themselves.
    Nothing is exchanged.

    Args:
        number: The batch's number of samples, or the sum of their weights: what the loss was
            divided by. An int, a float or a scalar tensor, not negative; only the ratios
            between ranks (and between accumulated passes) count. A rank with 0 adds nothing.

    Returns:
        The context manager.

    Raises:
        TypeError: When `number` is no number.
        ValueError: When it is negative, not finite, or no scalar.

    Example:

    >>> import keras, tensorflow as tf, tfring as hvd
    >>> hvd.init()
    >>> w = keras.Variable(1.0)
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), sample_weighted=True)
    >>> with hvd.batch_samples(32):
    ...     optimizer.apply([tf.constant(1.0)], [w])
    >>> float(w)
    0.5
    """
    return _Batch(_checked(number))


def say(number: Any) -> None:
    """Sets the number of the batch that this thread is in."""
    _here.samples.assign(tf.cast(number, tf.float32))


def current() -> Any:
    """Returns the number of samples, float32; NaN when nobody has told it."""
    return _here.samples.read_value()


@contextlib.contextmanager
def training(model: Any) -> Iterator[None]:
    """Remembers that this thread is in the `train_step` of a model."""
    _here.models.append(model)
    try:
        yield
    finally:
        _here.models.pop()


def trained() -> Any:
    """Returns the model whose `train_step` this thread is in, or None."""
    return _here.models[-1] if _here.models else None


def _checked(number: Any) -> Any:
    if tf.is_tensor(number) or isinstance(number, tf.Variable):
        if not (number.dtype.is_floating or number.dtype.is_integer):
            _reject(number, TypeError)
        if number.shape.rank not in (None, 0):
            _reject(number, ValueError)
        return number
    number = number.item() if isinstance(number, (np.ndarray, np.generic)) else number
    if isinstance(number, bool) or not isinstance(number, _numbers.Real):
        _reject(number, TypeError)
    if not (math.isfinite(number) and number >= 0):
        _reject(number, ValueError)
    return number


def _reject(number: Any, kind: type[Exception]) -> None:
    raise kind(
        "`number` must be an int, a float or a scalar tensor, not negative: how many samples the "
        f"batch has. Received: number={number!r}"
    )
