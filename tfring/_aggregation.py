"""Local aggregation: several backward passes make one reduced update."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring._options import is_overwritten


class Aggregation(abc.ABC):
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
        # By position; what they hold, the subclass knows.
        self._totals: dict[int, list[tf.Variable]] = {}

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
        return [self._counter, *(v for p in sorted(positions) for v in self._totals[p])]

    def build(self, variables: Sequence[Any], positions: Sequence[int]) -> None:
        """Makes the accumulators that are not there yet, eagerly also in a trace."""
        with tf.init_scope():
            if self._counter is None:
                self._counter = tf.Variable(0, dtype=tf.int64, trainable=False)
            for variable, position in zip(variables, positions, strict=True):
                if position not in self._totals:
                    zeros = self._zeros(position, variable)
                    self._totals[position] = [tf.Variable(z, trainable=False) for z in zeros]

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
            raise RuntimeError(f"{type(self).__name__}.build was not called")
        counter = self._counter
        dtypes = [None if gradient is None else gradient.dtype for gradient in gradients]
        for gradient, position in zip(gradients, positions, strict=True):
            if gradient is not None:
                self._add(position, gradient)

        def flush() -> None:
            pairs = zip(dtypes, positions, strict=True)
            apply([None if dtype is None else self._take(dtype, p) for dtype, p in pairs])
            counter.assign(0)

        tf.cond(counter.assign_add(1) >= self._passes, flush, lambda: None)

    def _taken(self, position: int) -> list[Any]:
        """The accumulators' values; they start over."""
        values = [total.read_value() for total in self._totals[position]]
        for total in self._totals[position]:
            # Assigned, not multiplied by zero: an infinite total must not leave NaN behind.
            total.assign(tf.zeros(total.shape, total.dtype))
        return values

    @abc.abstractmethod
    def _zeros(self, position: int, variable: Any) -> list[Any]:
        """What accumulators for the gradients of a variable start with."""

    @abc.abstractmethod
    def _add(self, position: int, gradient: Any) -> None:
        """Adds one gradient."""

    @abc.abstractmethod
    def _take(self, dtype: tf.DType, position: int) -> Any:
        """Returns the total of gradients of a dtype, and starts over."""


class LocalAggregation(Aggregation):
    """Adds up in floating point."""

    def __init__(self, passes: int, average: bool) -> None:
        super().__init__(passes, average)
        self._maxima: set[int] = set()  # positions whose total is the largest value

    def _zeros(self, position: int, variable: Any) -> list[Any]:
        if is_overwritten(variable):
            self._maxima.add(position)
        return [tf.zeros(variable.shape, _wide(tf.as_dtype(variable.dtype)))]

    def _add(self, position: int, gradient: Any) -> None:
        (total,) = self._totals[position]
        gradient = tf.cast(gradient, total.dtype)
        if position in self._maxima:  # as Keras adds up what overwrites a variable
            total.assign(tf.maximum(total, gradient))
        else:
            total.assign_add(gradient)

    def _take(self, dtype: tf.DType, position: int) -> Any:
        (value,) = self._taken(position)
        if self._average and position not in self._maxima:
            value = value / tf.cast(self._passes, value.dtype)
        return tf.cast(value, dtype)


def _wide(dtype: tf.DType) -> tf.DType:
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype
