"""Several backward passes per update in v1 graphs: what they keep, and which of them updates.

Kept is in local variables of the graph, so that checkpoints hold what the stock optimizer saves.
What is due is told by one tensor per pass, on which all later operations depend: a session keeps
no order that the graph does not ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def require_graph(passes: int) -> None:
    """Raises ValueError where there is no v1 graph to keep something in."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        raise ValueError(
            "`backward_passes_per_step` must be 1 for an optimizer of tf.compat.v1 outside of a v1 "
            "graph: in eager mode and tf.function use an optimizer of Keras. "
            f"Received: backward_passes_per_step={passes}"
        )


class Adder:
    """Adds up the gradients of several passes; the last one reduces and updates.

    Args:
        passes: Passes per update.
        average: Divide the sum by `passes`.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        self._due: Any = None  # bool: the pass that computed it is the last of its round

    @property
    def passes(self) -> int:
        """Passes per update."""
        return self._passes

    def add(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        reduce: Callable[[list[Any]], list[Any]],
    ) -> list[Any]:
        """Adds gradients; returns the reduced sum when due, else the gradients, all dense."""
        require_graph(self._passes)
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        own = [tf.convert_to_tensor(gradients[i]) for i in present]
        totals = [_zeros(variables[i], "total", wide=True) for i in present]
        added = [
            total.assign_add(tf.cast(gradient, total.dtype)).op
            for total, gradient in zip(totals, own, strict=True)
        ]
        with tf.control_dependencies(added):
            self._due = _ends_round(_counter(), self._passes)

        def finish() -> list[Any]:
            complete: list[Any] = [None] * len(gradients)
            for i, value in zip(present, self._take(totals, own), strict=True):
                complete[i] = value
            reduced = reduce(complete)
            return [tf.convert_to_tensor(reduced[i]) for i in present]

        result: list[Any] = [None] * len(gradients)
        if present:
            chosen = _cond(self._due, finish, lambda: [tf.identity(g) for g in own])
            for i, gradient in zip(present, chosen, strict=True):
                result[i] = gradient
        return result

    def apply(self, update: Callable[[], Any], global_step: Any, name: str) -> Any:
        """Updates when due; counts the pass in `global_step` in any case."""
        if self._due is None or self._due.graph is not tf.compat.v1.get_default_graph():
            raise ValueError(
                "With `backward_passes_per_step`, apply_gradients takes the gradients of "
                "compute_gradients of the same optimizer, called before it in the same graph."
            )
        updated = _cond(self._due, lambda: _true_after([update()]), lambda: tf.constant(False))
        if global_step is None:
            return tf.group(updated, name=name)
        with tf.control_dependencies([updated]):
            step = global_step.assign_add(tf.ones([], global_step.dtype.base_dtype))
        return tf.group(step, name=name)

    def _take(self, totals: Sequence[Any], like: Sequence[Any]) -> list[Any]:
        values = [total.read_value() for total in totals]
        if self._average:
            values = [value / tf.cast(self._passes, value.dtype) for value in values]
        values = [tf.cast(value, g.dtype) for value, g in zip(values, like, strict=True)]
        with tf.control_dependencies(values):
            # Assigned, not multiplied by zero: an infinite total must not leave NaN behind.
            resets = [total.assign(tf.zeros(total.shape, total.dtype)).op for total in totals]
        with tf.control_dependencies(resets):
            return [tf.identity(value) for value in values]


class Rounds:
    """Local updates, after the last of which the whole change of the weights is handed on.

    Args:
        passes: Updates per round.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes

    def apply(
        self,
        variables: Sequence[Any],
        update: Callable[[], Any],
        combine: Callable[[Sequence[Any]], list[Any]],
        name: str,
    ) -> Any:
        """Updates; after the last update of a round calls `combine` with the weights before it."""
        if not variables:
            return update()
        if self._passes > 1:
            require_graph(self._passes)
            return self._apply_in_round(variables, update, combine, name)
        starts = [_copy(variable) for variable in variables]
        with tf.control_dependencies(starts):
            updated = update()
        if tf.executing_eagerly():
            combine(starts)
            return updated
        with tf.control_dependencies([updated]):
            return tf.group(*combine(starts), name=name)

    def _apply_in_round(
        self,
        variables: Sequence[Any],
        update: Callable[[], Any],
        combine: Callable[[Sequence[Any]], list[Any]],
        name: str,
    ) -> Any:
        starts = [_zeros(variable, "start") for variable in variables]
        count = _counter()

        def remember() -> Any:
            return _true_after(
                [start.assign(_copy(v)).op for start, v in zip(starts, variables, strict=True)]
            )

        begins = tf.equal(count % self._passes, 1)
        begun = _cond(begins, remember, lambda: tf.constant(False))
        with tf.control_dependencies([begun]):
            updated = update()
        with tf.control_dependencies([updated]):
            due = tf.equal(count % self._passes, 0)
        combined = _cond(
            due,
            lambda: _true_after(combine([start.read_value() for start in starts])),
            lambda: tf.constant(False),
        )
        return tf.group(combined, name=name)


def _cond(predicate: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """A `tf.cond` of v1 control flow, whose branches may update variables without a resource."""
    is_v2 = tf.compat.v1.control_flow_v2_enabled()
    tf.compat.v1.disable_control_flow_v2()
    try:
        return tf.cond(predicate, yes, no)
    finally:
        if is_v2:
            tf.compat.v1.enable_control_flow_v2()


def _counter() -> Any:
    """Counts this pass; returns its number, from 1."""
    return _local(lambda: tf.zeros([], tf.int64), "passes").assign_add(1)


def _ends_round(count: Any, passes: int) -> Any:
    return tf.equal(count % passes, 0)


def _zeros(variable: Any, name: str, *, wide: bool = False) -> Any:
    """A local variable like `variable`; `wide` sums 16-bit floats in float32."""
    dtype = variable.dtype.base_dtype
    if wide and dtype in (tf.float16, tf.bfloat16):
        dtype = tf.float32
    return _local(lambda: tf.zeros(variable.shape, dtype), name)


def _local(initial: Callable[[], Any], name: str) -> Any:
    # Outside of any branch and of the caller's control dependencies.
    with tf.init_scope():
        return tf.compat.v1.Variable(
            initial,
            trainable=False,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
            name=f"tfring/{name}",
        )


def _copy(variable: Any) -> Any:
    # Variables without a resource are updated in place: a read may see what comes later.
    return tf.raw_ops.DeepCopy(x=variable.read_value())


def _true_after(operations: Sequence[Any]) -> Any:
    with tf.control_dependencies(operations):
        return tf.constant(True)
