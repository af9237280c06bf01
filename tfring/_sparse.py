"""Sparse gradients (`tf.IndexedSlices`): merged, gathered, merged again.

A row that occurs several times is summed before it travels, and what arrives from
all ranks is summed once more: the result names each row once, so that optimizers that
are not linear in the gradient see what one process on the whole batch would see.
"""

from __future__ import annotations

import tensorflow as tf

from tfring import collectives
from tfring.compression import Compressor
from tfring.process_sets import ProcessSet, global_process_set


def merge_duplicates(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns `slices` with each index once, values of equal indices summed.

    Indices keep the order of their first occurrence. 16-bit floats are summed in
    float32.
    """
    indices, segments = tf.unique(slices.indices)
    values = slices.values
    wide = tf.cast(values, tf.float32) if values.dtype.size == 2 else values
    summed = tf.math.unsorted_segment_sum(wide, segments, tf.size(indices))
    return tf.IndexedSlices(tf.cast(summed, values.dtype), indices, slices.dense_shape)


def empty_like(shape: tf.TensorShape, dtype: tf.DType) -> tf.IndexedSlices:
    """Returns slices without a row for a variable of the given shape and dtype."""
    dims = shape.as_list()
    return tf.IndexedSlices(
        tf.zeros([0, *dims[1:]], dtype),
        tf.zeros([0], tf.int64),
        tf.constant(dims, tf.int64),
    )


def reduce_sparse(
    slices: tf.IndexedSlices,
    *,
    name: str,
    prescale: float,
    postscale: float,
    compression: type[Compressor],
    process_set: ProcessSet = global_process_set,
) -> tf.IndexedSlices:
    """Sums `slices` over all ranks by gathering their rows.

    Every rank must call it; ranks may hold different numbers of rows, also none.

    Args:
        slices: Rows of this rank, values of shape (rows, ...).
        name: Name of the collective, alike on all ranks.
        prescale: Factor of the values before they travel.
        postscale: Factor of the sums.
        compression: How values travel.
        process_set: The ranks that take part.

    Returns:
        Slices with each index once, bitwise alike on all ranks.

    Raises:
        tf.errors.AbortedError: When a peer is lost.
    """
    merged = merge_duplicates(slices)
    compressed, context = compression.compress(_scale(merged.values, prescale))
    (gathered, indices), _ = collectives.gather_with_counts(
        [compressed, tf.cast(merged.indices, tf.int64)], name=name, process_set=process_set
    )
    gathered = compression.decompress(gathered, context)
    total = merge_duplicates(tf.IndexedSlices(gathered, indices, slices.dense_shape))
    return tf.IndexedSlices(_scale(total.values, postscale), total.indices, total.dense_shape)


def _scale(values: tf.Tensor, factor: float) -> tf.Tensor:
    return values if factor == 1.0 else values * tf.cast(factor, values.dtype)
