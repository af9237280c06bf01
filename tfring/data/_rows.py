"""Cuts batches of all ranks into rows for each rank, inside a tf.data pipeline."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

_WEIGHTED = (
    "remainder='pad' marks what it repeats by sample weights of 0, so elements must be tuples "
    "(x, y) or (x, y, sample_weight). "
)


class Cut(NamedTuple):
    """Which rows are whose.

    Attributes:
        size: number of ranks.
        place: this rank's place among them.
        remainder: "drop", "pad" or "keep".
    """

    size: int
    place: int
    remainder: str


def rows_of(dataset: Any, cut: Cut) -> Any:
    """Returns a dataset with this rank's rows of each batch: row k is that of rank k mod size.

    Raises:
        TypeError: its elements are no batches, or hold what cannot be cut.
        ValueError: there is no place for the weights of padded rows.
    """
    spec = dataset.element_spec
    _require_batches(spec, cut)
    if cut.remainder == "drop" and not _always_enough(spec, cut.size):
        dataset = dataset.filter(called(spec, lambda batch: row_count(batch) >= cut.size))
    return dataset.map(called(spec, lambda batch: _cut(batch, cut)))


def require_weights(spec: Any) -> None:
    """Raises ValueError unless elements have a place for sample weights.

    Args:
        spec: an element, or a structure like it.
    """
    if not is_tuple(spec) or len(spec) not in (2, 3):
        count = f" of length {len(spec)}" if isinstance(spec, (tuple, list, dict)) else ""
        raise ValueError(f"{_WEIGHTED}Received: a {type(spec).__name__}{count}")


def is_tuple(spec: Any) -> bool:
    """Returns whether functions of a dataset get the parts of an element as arguments."""
    return isinstance(spec, tuple) and not hasattr(spec, "_fields")


def row_count(batch: Any) -> Any:
    """Returns the number of rows, as int64."""
    first = next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first, out_type=tf.int64)[0]


def weighted(element: Any, weights: Any) -> Any:
    """Returns (x, y, sample_weight) with the weights multiplied in.

    Args:
        element: (x, y) or (x, y, sample_weight), with rows in the first dimension.
        weights: float32, one for each row.
    """
    given = element[2] if len(element) == 3 else None
    if given is None:
        return (element[0], element[1], weights)
    return (*element[:2], tf.nest.map_structure(lambda w: _times(w, weights), given))


def _times(given: Any, weights: Any) -> Any:
    given = tf.convert_to_tensor(given)
    if not given.dtype.is_floating:
        given = tf.cast(given, weights.dtype)
    rank = given.shape.rank or 1
    return given * tf.cast(tf.reshape(weights, [-1] + [1] * (rank - 1)), given.dtype)


def called(spec: Any, function: Any) -> Any:
    """Returns the function as `map` calls it."""
    takes_parts = is_tuple(spec)

    @tf.autograph.experimental.do_not_convert
    def call(*parts: Any) -> Any:
        return function(parts if takes_parts else parts[0])

    return call


def _require_batches(spec: Any, cut: Cut) -> None:
    if cut.remainder == "pad":
        require_weights(spec)
    for part in tf.nest.flatten(spec):
        if isinstance(part, tf.SparseTensorSpec) and cut.remainder == "pad":
            raise TypeError(
                "remainder='pad' repeats rows, which it cannot with sparse tensors. Received: "
                f"elements with {part}. Map them with tf.sparse.to_dense, or drop the remainder."
            )
        if type(part).__name__ == "NoneTensorSpec":  # not public in every TensorFlow
            continue
        known = isinstance(part, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec))
        if not known or part.shape.rank == 0:
            raise TypeError(
                "by='batch' cuts the rows of tensors, so elements must be batches of tensors. "
                f"Received: elements with {part}. Batch the dataset first, or use by='element'."
            )


def _always_enough(spec: Any, size: int) -> bool:
    """Returns whether every batch is known to have a row for each rank."""
    shapes = [part.shape for part in tf.nest.flatten(spec) if hasattr(part, "shape")]
    rows = shapes[0][0] if shapes and shapes[0].rank else None
    return rows is not None and rows >= size


def _cut(batch: Any, cut: Cut) -> Any:
    rows = row_count(batch)
    if cut.remainder == "keep":
        # An error, the same on all ranks, in place of a loss of no samples.
        tf.debugging.assert_greater_equal(
            rows,
            tf.constant(cut.size, tf.int64),
            "tfring.data.shard: a batch has fewer rows than there are ranks, so that "
            "remainder='keep' leaves ranks without any; use 'drop' or 'pad'.",
        )
        own = (rows - cut.place + cut.size - 1) // cut.size
    elif cut.remainder == "drop":
        own = rows // cut.size
    else:
        own = (rows + cut.size - 1) // cut.size
    places = cut.place + cut.size * tf.range(own)
    picked = tf.nest.map_structure(lambda leaf: _pick(leaf, places % rows, cut), batch)
    if cut.remainder != "pad":
        return picked
    # Means over a batch divide by the rows, those that only fill up included.
    scale = tf.cast(cut.size * own, tf.float64) / tf.cast(rows, tf.float64)
    weights = tf.where(places < rows, tf.cast(scale, tf.float32), 0.0)
    return weighted(picked, weights)


def _pick(leaf: Any, places: Any, cut: Cut) -> Any:
    if leaf is None:
        return None
    if not isinstance(leaf, tf.SparseTensor):
        picked = tf.gather(leaf, places)
        static = leaf.shape[0] if leaf.shape.rank else None
        if static is not None and static % cut.size == 0 and not isinstance(leaf, tf.RaggedTensor):
            picked.set_shape([static // cut.size, *leaf.shape[1:]])
        return picked
    row = leaf.indices[:, 0]
    count = tf.size(places, out_type=tf.int64)
    mine = tf.logical_and(row % cut.size == cut.place, row // cut.size < count)
    kept = tf.sparse.retain(leaf, mine)
    indices = tf.concat([kept.indices[:, :1] // cut.size, kept.indices[:, 1:]], axis=1)
    shape = tf.concat([[count], leaf.dense_shape[1:]], axis=0)
    return tf.SparseTensor(indices, kept.values, shape)
