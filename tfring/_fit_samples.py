"""Keras' `fit` and `train_on_batch` tell how many samples each batch has.

For models whose optimizer asks for it (`sample_weighted=True`) `train_step`, stock or the user's
own, runs inside of `batch_samples` with the number of rows of its batch, as Keras' own loss tracker
counts. Where `compute_loss` is Keras', what the loss was divided by takes its place:

* "sum_over_batch_size" (and "mean") divides by the number of values, whatever weights the samples
  have: so do we. With a mask, Keras divides by the values that it leaves; so do we.
* "mean_with_sample_weight" divides by the sum of the weights: so do we.
* "sum" and None divide by nothing: an error, because such losses' gradients are to be added up.

A loss with several outputs that are divided by different numbers has no one number: rows count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfring import _samples
from tfring._autograph import as_it_stands

_INSTALLED = "_tfring_tells_samples"
_MEAN_OVER_WEIGHTS = "mean_with_sample_weight"


def install(is_sample_weighted: Callable[[Any], bool]) -> None:
    """Lets `keras.Model` tell the numbers; changes the class once per process.

    Args:
        is_sample_weighted: Whether an optimizer asks for them; other models are as before.
    """
    cls = keras.Model
    if getattr(cls, _INSTALLED, False):
        return
    setattr(cls, _INSTALLED, True)
    stock_make, stock_loss = cls.make_train_function, cls.compute_loss

    @functools.wraps(stock_make)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_sample_weighted(self.optimizer) and "train_step" not in vars(self):
            # Past Keras' attribute tracking. For good: some versions look it up when they trace.
            object.__setattr__(self, "train_step", _telling(self, is_sample_weighted))
        return stock_make(self, *args, **kwargs)

    @as_it_stands
    @functools.wraps(stock_loss)
    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _training(self):
            _refine(self, *args, **kwargs)
        return stock_loss(self, *args, **kwargs)

    cls.make_train_function = make_train_function
    cls.compute_loss = compute_loss


def _telling(model: Any, is_sample_weighted: Callable[[Any], bool]) -> Callable[[Any], Any]:
    stock = model.train_step

    @functools.wraps(stock)
    def train_step(data: Any) -> Any:
        rows = _rows(data)
        if rows is None or not is_sample_weighted(model.optimizer):
            return stock(data)
        with _samples.batch_samples(rows), _samples.training(model):
            return stock(data)

    return train_step


def _training(model: Any) -> bool:
    return _samples.trained() is model


def _rows(data: Any) -> Any:
    """The number of rows of a batch, None where there is nothing to count."""
    for part in tf.nest.flatten(data):
        if part is not None and getattr(part, "shape", None) is not None and len(part.shape):
            return tf.shape(part)[0]
    return None


def _refine(
    model: Any,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    training: bool = True,
) -> None:
    del x, y, training
    reductions = {getattr(loss, "reduction", "mean") for loss in _losses(model.loss)}
    if reductions & {"sum", "none", None}:
        raise ValueError(
            "`sample_weighted=True` needs losses that are means over samples. Received a loss with "
            f"one of the reductions {sorted(map(str, reductions))}. Let it be a mean, or leave "
            "sample_weighted=False and use op=tfring.Sum."
        )
    outputs, weights = tf.nest.flatten(y_pred), tf.nest.flatten(sample_weight)
    if len(outputs) != 1 or len(weights) > 1:
        return
    number = _divisor(outputs[0], weights[0], _MEAN_OVER_WEIGHTS in reductions)
    if number is not None:
        _samples.say(number)


def _losses(loss: Any) -> list[Any]:
    return [part for part in tf.nest.flatten(loss) if part is not None]


def _divisor(output: Any, weight: Any, is_over_weights: bool) -> Any:
    """What the loss of one output is divided by, or something proportional; None: rows."""
    mask = getattr(output, "_keras_mask", None)
    if mask is not None and not is_over_weights:
        return tf.reduce_sum(tf.cast(mask, tf.float32))
    if is_over_weights and (weight is not None or mask is not None):
        factors = [tf.cast(factor, tf.float32) for factor in (weight, mask) if factor is not None]
        return tf.reduce_sum(functools.reduce(_times, factors))
    inner = output.shape[1:-1]
    if None in tuple(inner):  # rows are not alike: their lengths differ between batches
        return tf.reduce_prod(tf.shape(output)[:-1])
    return None


def _times(a: Any, b: Any) -> Any:
    """The product, as Keras makes it: a last dimension of 1 that only one has goes away."""
    if a.shape.rank == b.shape.rank + 1 and a.shape[-1] == 1:
        a = tf.squeeze(a, -1)
    if b.shape.rank == a.shape.rank + 1 and b.shape[-1] == 1:
        b = tf.squeeze(b, -1)
    return a * b
