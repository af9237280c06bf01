"""`DistributedOptimizer` for optimizers of `tf.compat.v1.train`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _plan, _v1_passes
from tfring._autograph import as_it_stands
from tfring._options import Options
from tfring._sharing import Share, Sharing
from tfring.constants import Adasum

_GradsAndVars = Sequence[tuple[Any, Any]]


def is_v1_optimizer(optimizer: Any) -> bool:
    """Whether `optimizer` is one of `tf.compat.v1.train`."""
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def distribute(
    optimizer: Any,
    name: str | None,
    options: Options,
    *,
    passes: int,
    average_passes: bool,
    use_locking: bool,
) -> Any:
    """Returns a v1 optimizer around a v1 optimizer.

    Args:
        optimizer: The one that makes the updates.
        name: Name of the new one. Default: that of the class of `optimizer`.
        options: How to reduce.
        passes: Calls of `compute_gradients` for one update.
        average_passes: Divide the sum over passes by their number.
        use_locking: As of `tf.compat.v1.train.Optimizer`.

    Raises:
        ValueError: When `optimizer` is distributed already, or there are several passes and no
            v1 graph.
    """
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            "`optimizer` is distributed already; DistributedOptimizer must be called once. "
            f"Received: optimizer={optimizer!r}"
        )
    if passes > 1:
        _v1_passes.require_graph(passes)
    if options.op != Adasum:
        adder = _v1_passes.Adder(passes, average_passes) if passes > 1 else None
        return GradientOptimizer(optimizer, name, use_locking, options, adder)
    if average_passes and passes > 1:
        raise ValueError(
            "`average_aggregated_gradients` has no meaning with `op=tfring.Adasum`, where each "
            "pass is a local update. Received: average_aggregated_gradients=True"
        )
    return AdasumOptimizer(optimizer, name, use_locking, options, passes)


class _Distributed(tf.compat.v1.train.Optimizer):
    """What both kinds share: all but the gradients is the inner optimizer's."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        options: Options,
        densify: bool,
        passes: int,
    ) -> None:
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer
        self._options = options
        self._sharing = Sharing(name or "optimizer", options, densify=densify, passes=passes)

    def register_local_var(self, var: Any) -> None:
        """Lets each rank keep its own `var`: its gradient is not reduced.

        Call it before the gradients are computed, on all ranks.
        """
        self._sharing.local.add(var)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As the inner optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """As the inner optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """As the inner optimizer's."""
        return self._optimizer.variables(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # not set yet: do not recurse
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def _agree(self, gradients: list[Any], variables: list[Any]) -> Share:
        known = tf.compat.v1.trainable_variables()
        return self._sharing.agree(gradients, variables, known)


class GradientOptimizer(_Distributed):
    """Reduces gradients where they are computed; updates are the inner optimizer's.

    With several passes, gradients add up in local variables of the graph (initialize them with
    `tf.compat.v1.local_variables_initializer`, as monitored sessions do); every pass counts for
    the global step, and the last one of a round updates.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        options: Options,
        adder: _v1_passes.Adder | None,
    ) -> None:
        passes = adder.passes if adder else 1
        super().__init__(optimizer, name, use_locking, options, adder is not None, passes)
        self._adder = adder

    @as_it_stands
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes gradients as the inner optimizer does and reduces them over all ranks.

        Returns:
            Pairs of gradient and variable. Before the last pass of a round the gradients are this
            rank's own, and `apply_gradients` does not use them.
        """
        pairs = list(self._optimizer.compute_gradients(*args, **kwargs))
        if not pairs:
            return pairs
        gradients, variables = map(list, zip(*pairs, strict=True))
        share = self._agree(gradients, variables)
        gradients = self._sharing.filled(share, gradients, variables)
        reduce = functools.partial(self._sharing.reduced, share)
        if self._adder is None:
            gradients = reduce(gradients)
        else:
            gradients = self._adder.add(gradients, variables, reduce)
        return list(zip(gradients, variables, strict=True))

    @as_it_stands
    def apply_gradients(
        self, grads_and_vars: _GradsAndVars, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Updates as the inner optimizer does, where a round of passes is complete."""
        if self._adder is None:
            return self._optimizer.apply_gradients(grads_and_vars, global_step, name)
        pairs = list(grads_and_vars)
        return self._adder.apply(
            lambda: self._optimizer.apply_gradients(pairs), global_step, name or self.get_name()
        )


class AdasumOptimizer(_Distributed):
    """Updates locally, then combines the ranks' changes of the weights by Adasum.

    With several passes, each is a local update, and the change over all of them is combined
    after the last. Maleki et al., arXiv:2006.02924.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        options: Options,
        passes: int,
    ) -> None:
        super().__init__(optimizer, name, use_locking, options, True, passes)
        self._rounds = _v1_passes.Rounds(passes)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As the inner optimizer's: what is reduced is the change that they make."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    @as_it_stands
    def apply_gradients(
        self, grads_and_vars: _GradsAndVars, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Updates locally and replaces the change by the Adasum of all ranks' changes."""
        pairs = list(grads_and_vars)
        gradients, variables = map(list, zip(*pairs, strict=True))
        share = self._agree(gradients, variables)
        gradients = self._sharing.with_own_scaled(share, gradients)
        pairs = list(zip(gradients, variables, strict=True))
        dense = [entry.kind is _plan.Kind.DENSE for entry in share.plan.entries]
        places = zip(share.shared, dense, strict=True)
        combined = [variables[i] for i, is_dense in places if is_dense]

        reduce = self._sharing.reducer.reduce

        def combine(starts: Sequence[Any]) -> list[Any]:
            own_changes = (v.read_value() - s for v, s in zip(combined, starts, strict=True))
            changes = [next(own_changes) if is_dense else None for is_dense in dense]
            total = [c for c in reduce(share.plan, changes) if c is not None]
            return [
                variable.assign(start + change)
                for variable, start, change in zip(combined, starts, total, strict=True)
            ]

        return self._rounds.apply(
            combined if self._options.takes_part() else [],
            lambda: self._optimizer.apply_gradients(pairs, global_step),
            combine,
            name or self.get_name(),
        )
