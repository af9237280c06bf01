"""Local aggregation: several backward passes make one reduced update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfring._options import is_overwritten


class Aggregation(Protocol):
    """What adds up gradients over several calls."""

    @property
    def passes(self) -> int:
        """Number of calls whose gradients make one total."""

    @property
    def average(self) -> bool:
        """Whether the total is divided by their number."""

    def variables_at(self, positions: Sequence[int]) -> list[tf.Variable]:
        """The counter, then the accumulators of some positions in their order."""

    def build(self, variables: Sequence[Any], positions: Sequence[int]) -> None:
        """Makes the accumulators that are not there yet, eagerly also in a trace."""

    def run(
        self,
        gradients: Sequence[Any],
        positions: Sequence[int],
        apply: Callable[[list[Any]], None],
    ) -> None:
        """Adds `gradients`; at every `passes`-th call gives the total to `apply`."""


class LocalAggregation:
    """Adds up gradients on this rank and hands on the total every few passes.

    The accumulators are no variables of the optimizer, so that what is saved stays
    what the stock optimizer saves; a total that is not complete is not saved.

    Args:
        passes: Number of calls whose gradients make one total.
        average: Divide the total by `passes`.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        self._counter: tf.Variable | None = None  # int64, calls since the last total
        self._totals: dict[int, tf.Variable] = {}  # by position, shape of the variable
        self._maxima: set[int] = set()  # positions whose total is the largest value

    @property
    def passes(self) -> int:
        """Number of calls whose gradients make one total."""
        return self._passes

    @property
    def average(self) -> bool:
        """Whether the total is divided by the number of passes."""
        return self._average

    def variables_at(self, positions: Sequence[int]) -> list[tf.Variable]:
        """The counter, then the accumulators of some positions in their order."""
        if self._counter is None:
            return []
        return [self._counter, *(self._totals[p] for p in sorted(positions))]

    def build(self, variables: Sequence[Any], positions: Sequence[int]) -> None:
        """Makes the accumulators that are not there yet, eagerly also in a trace."""
        with tf.init_scope():
            if self._counter is None:
                self._counter = tf.Variable(0, dtype=tf.int64, trainable=False)
            for variable, position in zip(variables, positions, strict=True):
                if position not in self._totals:
                    dtype = _wide(tf.as_dtype(variable.dtype))
                    zeros = tf.zeros(variable.shape, dtype)
                    self._totals[position] = tf.Variable(zeros, trainable=False)
                    if is_overwritten(variable):
                        self._maxima.add(position)

    def run(
        self,
        gradients: Sequence[Any],
        positions: Sequence[int],
        apply: Callable[[list[Any]], None],
    ) -> None:
        """Adds `gradients`; at every `passes`-th call gives the total to `apply`.

        Args:
            gradients: Dense tensors; None is left out and stays None in the total.
            positions: The position of each gradient.
            apply: Called inside a `tf.cond` when in a graph, on all ranks at the same
                call.
        """
        if self._counter is None:
            raise RuntimeError("LocalAggregation.build was not called")
        counter = self._counter
        dtypes = [None if gradient is None else gradient.dtype for gradient in gradients]
        for gradient, position in zip(gradients, positions, strict=True):
            if gradient is not None:
                self._add(position, gradient)

        def flush() -> None:
            apply(self._take(dtypes, positions))
            counter.assign(0)

        tf.cond(counter.assign_add(1) >= self._passes, flush, lambda: None)

    def _add(self, position: int, gradient: Any) -> None:
        total = self._totals[position]
        gradient = tf.cast(gradient, total.dtype)
        if position in self._maxima:  # as Keras adds up what overwrites a variable
            total.assign(tf.maximum(total, gradient))
        else:
            total.assign_add(gradient)

    def _take(
        self, dtypes: Sequence[tf.DType | None], positions: Sequence[int]
    ) -> list[tf.Tensor | None]:
        result: list[tf.Tensor | None] = []
        for dtype, position in zip(dtypes, positions, strict=True):
            if dtype is None:
                result.append(None)
                continue
            total = self._totals[position]
            value = total.read_value()
            # Assigned, not multiplied by zero: an infinite total must not leave NaN behind.
            total.assign(tf.zeros(total.shape, total.dtype))
            if self._average and position not in self._maxima:
                value = value / tf.cast(self._passes, value.dtype)
            result.append(tf.cast(value, dtype))
        return result


def _wide(dtype: tf.DType) -> tf.DType:
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype
