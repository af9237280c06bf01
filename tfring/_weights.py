"""Means over samples instead of over ranks: sum(n_i g_i) / sum(n_i).

Each rank multiplies its gradient by its number of samples, ranks average the products and, in the
same collective, the numbers; the quotient is the mean over all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring import _samples, _xla, _xla_calls
from tfring._options import Options

# Numbers count in units of a usual batch, so that products keep to the range of float16. A power
# of two: nothing is rounded by it.
_UNIT = 64.0

_MISSING = (
    "`sample_weighted=True` needs the number of samples of each batch, on every rank, and at least "
    "one did not tell it. Apply the optimizer (or ask the tape) inside of `with "
    "tfring.batch_samples(n):`. Keras' `fit` tells it itself, unless the model replaces "
    "`make_train_function`."
)

# Takes gradients and numbers; returns both averaged over the ranks.
Reduce = Callable[[list[Any], Any], tuple[list[Any], Any]]


def numbers() -> Any:
    """This rank's numbers for the pass at hand: float32, of shape (2,).

    How many samples, in units; and 1 when it was not told, else 0. They can be added up.
    """
    samples = _samples.current()
    missing = tf.math.is_nan(samples)
    return tf.stack([tf.where(missing, 0.0, samples / _UNIT), tf.cast(missing, tf.float32)])


def like_numbers() -> Any:
    """Numbers of no samples."""
    return tf.zeros([2], tf.float32)


def weighed(gradients: Sequence[Any], finished: frozenset[int], own: Any) -> list[Any]:
    """Multiplies gradients by this rank's numbers.

    Args:
        gradients: Tensors, slices or None.
        finished: Places of those that are means over all samples already.
        own: What `numbers` returned. Without a sample there is 0, whatever a gradient is.
    """
    return [
        gradient
        if gradient is None or i in finished
        else _map(tf.math.multiply_no_nan, gradient, own)
        for i, gradient in enumerate(gradients)
    ]


def means(
    gradients: Sequence[Any],
    finished: frozenset[int],
    local: Sequence[int],
    own: Any,
    reduce: Reduce,
    options: Options,
    factor: float = 1.0,
) -> list[Any]:
    """Reduces weighed gradients to means over samples; every rank must call it.

    Args:
        gradients: What `weighed` made, or sums of such.
        finished: Places of what is not to be touched.
        local: Places of this rank's own, which are not reduced.
        own: This rank's numbers, or sums of them.
        reduce: Takes the gradients and `own`, and averages both over the ranks.
        options: How gradients are reduced.
        factor: Multiplies the means.

    Raises:
        tf.errors.InvalidArgumentError: On all ranks, when one did not tell its number.
    """
    if all(i in finished or gradient is None for i, gradient in enumerate(gradients)):
        return list(gradients)
    takes_part = options.takes_part()
    reduced, average = reduce(list(gradients), own) if takes_part else (list(gradients), own)
    samples = _told(average) / factor
    # What all ranks' losses together say about a local variable: this rank's part of the sum.
    every = samples * (options.size() if takes_part else 1)
    of_local = every if options.scale_local_gradients else own[0] / factor
    for i, gradient in enumerate(reduced):
        if gradient is not None and i not in finished:
            by = of_local if i in local else samples
            reduced[i] = _map(tf.math.divide_no_nan, gradient, [by])
    return reduced


def _told(average: Any) -> Any:
    """The number of samples, if all ranks told theirs."""
    if _xla.context() is not None:
        return _xla_calls.checked(average, _MISSING)[0]
    check = tf.debugging.assert_less_equal(average[1], 0.0, message=_MISSING)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(average[0])


def _map(function: Callable[[Any, Any], Any], gradient: Any, numbers: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = _map(function, gradient.values, numbers)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    dtype = gradient.dtype
    wide = tf.float32 if dtype.size < tf.float32.size else dtype
    result = function(tf.cast(gradient, wide), tf.cast(numbers[0], wide))
    return tf.cast(result, dtype)
