"""Sparse gradients (`tf.IndexedSlices`) over ranks: merged, sent, merged again.

A row that occurs several times on a rank is summed before it travels, and what arrives from
all ranks is summed once more: the result names each row once, so that optimizers that are not
linear in the gradient see what one process on the whole batch would see.

There are two ways for the rows of a variable, and the same numbers come out of both, bit for bit
inside one host (over several hosts the engine adds up the hosts' sums, so rounding differs):

* gathered: each rank sends its rows and their numbers, and sums what it gets, in the order of
  ranks, as the engine sums dense tensors;
* dense: each rank puts its rows into a table of the variable's size; the engine sums the
  tables. A mask tells which rows any rank had.

How many rows all ranks sent together arrives with either, so every rank knows it without
asking: it chooses the way of the next sum. The first is gathered. No message is needed for the
choice, and it follows the data; a sum whose rows differ much from those before it takes the
slower way once, with the right result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _slices, collectives
from tfring._options import Options
from tfring._ways import Ways
from tfring.constants import Average

# Gathered while the rows of all ranks, with their numbers, have fewer bytes than this many
# times the variable. Measured on 2 ranks on 2 cores, milliseconds gathered : dense, by that ratio:
#   table        0.2           0.4           0.8           1.6
#   0.6 MB       0.53 : 1.03   0.83 : 1.32   1.87 : 1.68   2.23 : 2.21
#   5.1 MB       1.91 : 2.43   2.36 : 5.76   15.1 : 17.5   17.7 : 26.5
#   5.1 MB       1.57 : 5.42   4.52 : 10.4   13.6 : 13.5   34.0 : 19.1    (rows of 1 KiB)
GATHER_BELOW = 0.8

# Rows of the mask are counted in it: 2 bytes for each row of the variable.
_MASK = tf.float16


@dataclasses.dataclass(frozen=True)
class Table:
    """A variable with sparse gradients.

    Args:
        shape: Its shape, as far as it is known.
        dtype: The gradient's dtype.
    """

    shape: tuple[int | None, ...]
    dtype: tf.DType

    def dense_from(self) -> float:
        """From how many rows, of all ranks together, the dense way is taken."""
        if None in self.shape or not self.dtype.is_floating:
            return float("inf")
        row = self.dtype.size
        for dim in self.shape[1:]:
            row *= dim or 0
        return GATHER_BELOW * (self.shape[0] or 0) * row / (row + tf.int64.size)


class SparseSum:
    """Sums the slices of several variables over ranks; remembers which way is best.

    Args:
        name: Prefix of the collectives' names, alike on all ranks.
        tables: The variables.
        options: How to reduce.
        factors: Factors before and after the sum.
    """

    def __init__(
        self, name: str, tables: Sequence[Table], options: Options, factors: tuple[float, float]
    ) -> None:
        self._name = name
        self._tables = tables
        self._options = options
        self._prescale, self._postscale = factors
        # A v1 graph would leave it to the user to initialize a variable: it always gathers.
        has_variables = tf.compat.v1.executing_eagerly_outside_functions()
        self._ways = Ways(len(tables)) if has_variables else None

    def __call__(self, slices: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        """Sums over all ranks; every rank must call it, with any numbers of rows.

        Returns:
            Slices with each index once, the same on all ranks.

        Raises:
            tf.errors.AbortedError: When a peer is lost.
        """
        merged = [_slices.merge_duplicates(s) for s in slices]
        sent = [self._options.compression.compress(m.values) for m in merged]
        values = [value for value, _ in sent]
        indices = [tf.cast(m.indices, tf.int64) for m in merged]
        if self._ways is None:
            every = tf.zeros([len(values)], tf.bool)
            pairs, _ = self._gathered(values, indices, every)
        else:
            pairs = self._chosen(values, indices, self._ways.are_dense)
        result = []
        for (value, index), (_, context), old in zip(pairs, sent, slices, strict=True):
            value = self._options.compression.decompress(value, context)
            value.set_shape([None, *old.values.shape[1:]])
            result.append(tf.IndexedSlices(value, index, old.dense_shape))
        return result

    def _chosen(
        self, values: list[Any], indices: list[Any], ways: tf.Variable
    ) -> list[tuple[Any, Any]]:
        is_dense = ways.read_value()
        # One is_dense for all ranks: none waits for another in a branch that it did not take.
        *gathered, gathered_rows = tf.cond(
            tf.reduce_all(is_dense),
            lambda: self._nothing(values),
            lambda: _flat(*self._gathered(values, indices, is_dense)),
        )
        *summed, summed_rows = tf.cond(
            tf.reduce_any(is_dense),
            lambda: _flat(*self._summed(values, indices, is_dense)),
            lambda: self._nothing(values),
        )
        limits = tf.constant([table.dense_from() for table in self._tables], tf.float64)
        ways.assign(gathered_rows + summed_rows >= limits)
        both = (_pairs(gathered), _pairs(summed))
        return [
            (tf.concat([a[0], b[0]], 0), tf.concat([a[1], b[1]], 0))
            for a, b in zip(*both, strict=True)
        ]

    def _gathered(
        self, values: list[Any], indices: list[Any], skipped: Any
    ) -> tuple[list[tuple[Any, Any]], Any]:
        """Sums by gathering rows; returns them, and how many came for each variable."""
        ends = [tf.where(skipped[i], 0, tf.size(index)) for i, index in enumerate(indices)]
        rows = [value[:end] for value, end in zip(values, ends, strict=True)]
        numbers = [index[:end] for index, end in zip(indices, ends, strict=True)]
        arrived, counts = collectives.gather_with_counts(
            [*rows, *numbers], name=f"{self._name}/rows", process_set=self._options.process_set
        )
        pairs = [self._added_up(*pair) for pair in zip(*_halves(arrived), strict=True)]
        total = tf.reduce_sum(counts[:, : len(values)], axis=0)
        return pairs, tf.cast(total, tf.float64)

    def _added_up(self, values: Any, indices: Any) -> tuple[Any, Any]:
        # As the engine does it: scale, add in the order of ranks, divide, scale, round once.
        wide = _scaled(_slices.widened(values), self._prescale)
        total = _slices.merge_duplicates(tf.IndexedSlices(wide, indices))
        wide = total.values
        if self._options.op == Average:
            # Not `/`: graphs may divide by a constant as they multiply by its reciprocal.
            wide = tf.math.divide_no_nan(wide, tf.cast(self._options.size(), wide.dtype))
        return tf.cast(_scaled(wide, self._postscale), values.dtype), total.indices

    def _summed(
        self, values: list[Any], indices: list[Any], taken: Any
    ) -> tuple[list[tuple[Any, Any]], Any]:
        """Sums by tables of the variables' sizes; returns as `_gathered` does."""
        tables, masks, counts = [], [], []
        for i, (value, index) in enumerate(zip(values, indices, strict=True)):
            end = tf.where(taken[i], tf.size(index), 0)
            height = tf.where(taken[i], tf.constant(self._tables[i].shape[0] or 0, tf.int64), 0)
            where = index[:end, tf.newaxis]
            shape = [height, *tf.unstack(tf.shape(value, out_type=tf.int64))[1:]]
            tables.append(tf.scatter_nd(where, value[:end], tf.stack(shape)))
            masks.append(tf.scatter_nd(where, tf.ones([end], _MASK), [height]))
            counts.append(tf.cast(end, tf.float64))
        options = self._options
        results = collectives.grouped_allreduce(
            [*tables, *masks, tf.stack(counts)],
            op=options.op,
            prescale_factor=self._prescale,
            postscale_factor=self._postscale,
            name=f"{self._name}/table",
            process_set=options.process_set,
        )
        total = results.pop() * (options.size() if options.op == Average else 1)
        return [_touched(*pair) for pair in zip(*_halves(results), strict=True)], total

    def _nothing(self, values: list[Any]) -> list[Any]:
        empty = [value[:0] for value in values]
        numbers = [tf.zeros([0], tf.int64)] * len(values)
        return [*empty, *numbers, tf.zeros([len(values)], tf.float64)]


def _scaled(values: Any, factor: float) -> Any:
    return values if factor == 1.0 else values * tf.constant(factor, values.dtype)


def _touched(table: Any, mask: Any) -> tuple[Any, Any]:
    rows = tf.where(mask > 0)[:, 0]
    return tf.gather(table, rows), rows


def _halves(items: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    return items[: len(items) // 2], items[len(items) // 2 :]


def _flat(pairs: Sequence[tuple[Any, Any]], total: Any) -> list[Any]:
    return [*(value for value, _ in pairs), *(index for _, index in pairs), total]


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(*_halves(flat), strict=True))
