"""Predictions of several ranks as one: gathered by chunks, in the order of the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfring import collectives, objects

# Of one rank, in one exchange.
_CHUNK_BYTES = 1 << 24


class Shape(NamedTuple):
    """What a rank tells of its predictions."""

    skeleton: Any  # of the predictions' nest, with numbers as leaves; None: there are none
    rows: int
    kinds: list[tuple[str, tuple[int, ...]]]  # of each leaf: dtype, and shape of a row
    is_plain: bool  # arrays of numbers
    sizes: list[int] | None  # of batches, where the ranks took turns
    error: str = ""


def shape(outputs: Any, sizes: list[int] | None = None, *, is_dealt: bool = False) -> Shape:
    """Returns what this rank tells of its predictions.

    Args:
        outputs: None where it has none.
        sizes: Of the batches, where the ranks take turns; there may be more, read in advance.
        is_dealt: Whether the ranks take turns with single rows.
    """
    if outputs is None:
        return Shape(None, 0, [], True, [])
    leaves = tf.nest.flatten(outputs)
    plain = all(isinstance(leaf, np.ndarray) and leaf.dtype.kind != "O" for leaf in leaves)
    kinds = [(str(leaf.dtype), tuple(leaf.shape[1:])) for leaf in leaves] if plain else []
    skeleton = tf.nest.pack_sequence_as(outputs, list(range(len(leaves))))
    first = leaves[0]
    rows = int(first.nrows()) if isinstance(first, tf.RaggedTensor) else len(first)
    if is_dealt:
        sizes = [1] * rows
    elif sizes is not None:
        sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), rows)) + 1]
        if sum(sizes) != rows:
            raise RuntimeError(
                "A model that predicts another number of rows than it is given needs data of known "
                f"length. Received: {rows} predictions for batches of {sizes} samples"
            )
    return Shape(skeleton, rows, kinds, plain, sizes)


def gathered(outputs: Any, shapes: Sequence[Shape], *, here: bool) -> Any:
    """Returns the predictions of all ranks, None where they are not wanted.

    All ranks must call it. Memory: the result, and a chunk of each rank.

    Args:
        outputs: This rank's, None where it has none.
        shapes: Of all ranks.
        here: Whether this rank gets the result.
    """
    some = [each for each in shapes if each.rows > 0]
    leaves = [] if outputs is None else tf.nest.flatten(outputs)
    places = _places(shapes)
    first = some[0]
    is_plain = all(each.is_plain and each.kinds == first.kinds for each in some)
    result = (
        _arrays(leaves, first.kinds, places, here)
        if is_plain
        else _ragged(leaves, len(tf.nest.flatten(first.skeleton)), places, here)
    )
    return tf.nest.pack_sequence_as(first.skeleton, result) if here else None


def _places(shapes: Sequence[Shape]) -> list[np.ndarray]:
    """Returns where each rank's rows lie in the result."""
    if any(each.sizes is None for each in shapes if each.rows > 0):
        ends = np.cumsum([each.rows for each in shapes])
        return [np.arange(e - s.rows, e) for e, s in zip(ends, shapes, strict=True)]
    sizes = [each.sizes or [] for each in shapes]
    turns = max(map(len, sizes))
    table = np.zeros((turns, len(shapes)), np.int64)
    for rank, of_rank in enumerate(sizes):
        table[: len(of_rank), rank] = of_rank
    ends = np.cumsum(table.ravel()).reshape(table.shape)
    starts = ends - table
    return [_runs(starts[:, r], table[:, r]) for r in range(len(shapes))]


def _runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns start, start + 1, ... of each run, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _arrays(
    leaves: Sequence[np.ndarray],
    kinds: Sequence[tuple[str, tuple[int, ...]]],
    places: Sequence[np.ndarray],
    here: bool,
) -> list[np.ndarray | None]:
    most = max(map(len, places))
    results: list[np.ndarray | None] = []
    for i, (dtype, row) in enumerate(kinds):
        result = np.empty((sum(map(len, places)), *row), dtype) if here else None
        row_bytes = np.dtype(dtype).itemsize * math.prod(row)
        step = max(1, _CHUNK_BYTES // max(1, row_bytes))
        for start in range(0, most if row_bytes else 0, step):
            mine = leaves[i][start : start + step] if leaves else np.empty((0, *row), dtype)
            # As bytes: the engine does not carry every dtype.
            flat = tf.constant(np.ascontiguousarray(mine).reshape(-1).view(np.uint8))
            (received,), _ = collectives.gather_with_counts([flat], "predictions")
            if result is not None:
                _place(result, received.numpy().view(dtype), places, start, step)
        results.append(result)
    return results


def _place(
    result: np.ndarray, received: np.ndarray, places: Sequence[np.ndarray], start: int, step: int
) -> None:
    """Puts a chunk of each rank where it belongs."""
    chunks = [place[start : start + step] for place in places]
    rows = received.reshape(-1, *result.shape[1:])
    ends = np.cumsum([len(chunk) for chunk in chunks])
    for chunk, end in zip(chunks, ends, strict=True):
        part = rows[end - len(chunk) : end]
        if len(chunk) and chunk[-1] - chunk[0] + 1 == len(chunk):  # much faster
            result[chunk[0] : chunk[-1] + 1] = part
        else:
            result[chunk] = part


def _ragged(
    leaves: Sequence[Any], count: int, places: Sequence[np.ndarray], here: bool
) -> list[Any]:
    """For rows of different shapes, and texts: all at once."""
    ranks = objects.allgather_object([_packed(leaf) for leaf in leaves], name="predictions")
    if not here:
        return []
    order = np.argsort(np.concatenate(places), kind="stable")
    present = [of_rank for of_rank in ranks if of_rank]
    return [_joined([of_rank[i] for of_rank in present], order) for i in range(count)]


def _packed(leaf: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.flat_values.numpy(), [s.numpy() for s in leaf.nested_row_splits]
    return np.asarray(leaf), []


def _joined(parts: Sequence[tuple[np.ndarray, list[np.ndarray]]], order: np.ndarray) -> Any:
    rows = {values.shape[1:] for values, splits in parts}
    if len(rows) == 1 and not any(splits for _, splits in parts):
        return np.concatenate([values for values, _ in parts])[order]
    tensors = [
        tf.RaggedTensor.from_nested_row_splits(values, splits)
        if splits
        else tf.RaggedTensor.from_tensor(values, ragged_rank=values.ndim - 1)
        for values, splits in parts
    ]
    return tf.gather(tf.concat(tensors, axis=0), order)
