"""Arithmetic on `tf.IndexedSlices` of one process."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def merge_duplicates(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns `slices` with each index once, values of equal indices summed.

    Indices keep the order of their first occurrence. 16-bit floats are summed in
    float32.
    """
    indices, segments = tf.unique(slices.indices)
    values = slices.values
    summed = tf.math.unsorted_segment_sum(widened(values), segments, tf.size(indices))
    return tf.IndexedSlices(tf.cast(summed, values.dtype), indices, slices.dense_shape)


def widened(values: Any) -> Any:
    """Returns 16-bit floats as float32, other values as they are."""
    is_half = values.dtype.is_floating and values.dtype.size == 2
    return tf.cast(values, tf.float32) if is_half else values


def empty_like(shape: tf.TensorShape, dtype: tf.DType) -> tf.IndexedSlices:
    """Returns slices without a row for a variable of the given shape and dtype."""
    dims = shape.as_list()
    return tf.IndexedSlices(
        tf.zeros([0, *dims[1:]], dtype),
        tf.zeros([0], tf.int64),
        tf.constant(dims, tf.int64),
    )
