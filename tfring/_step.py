"""What happens between a call of `apply` and the stock `apply` of one optimizer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import _accumulation, _adasum, _local, _loss_scale, _plan, _reducer
from tfring._aggregation import LocalAggregation, remark
from tfring._autograph import as_it_stands
from tfring._options import Options
from tfring._order import Order
from tfring.constants import Adasum

ATTRIBUTE = "_tfring_step"


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call of `apply`."""

    outer: Any  # the optimizer that was called: this one, or one that scales its loss
    stock: Callable[..., None]  # its own `apply`
    variables: list[Any]
    shared: list[int]  # places of what is reduced in `variables`; in the order of the plan
    own: list[int]  # places of this rank's own
    plan: _plan.Plan


class Step:
    """Takes the place of one optimizer's `apply`."""

    def __init__(
        self, optimizer: Any, name: str, options: Options, aggregation: LocalAggregation | None
    ) -> None:
        self._optimizer = optimizer
        self._options = options
        self._aggregation = aggregation
        self._accumulates = bool(_loss_scale.innermost(optimizer).gradient_accumulation_steps)
        self._densify = self._accumulates or aggregation is not None or options.op == Adasum
        self._reducer = _reducer.Reducer(name, options, densify=self._densify)
        self._seen = Order()
        self._shared_seen = Order()  # alike on all ranks, whatever each has of its own
        self._groups_checked = False
        self.local = _local.LocalVariables()
        self.active = False

    def attach(self) -> None:
        """Takes the place of the optimizer's `apply`, adds `register_local_var`."""
        stock = self._optimizer.apply

        @as_it_stands
        @functools.wraps(stock)
        def apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            self.run(self._optimizer, stock, grads, trainable_variables)

        def register_local_var(var: Any) -> None:
            """Lets each rank keep its own `var`: its gradient is not reduced.

            Call it before the first update, on all ranks. A gradient is still divided by
            the number of ranks, see `scale_local_gradients`.

            Args:
                var: A `tf.Variable` or `keras.Variable`.
            """
            self.local.add(var)

        # Past Keras' attribute tracking, which would follow them into checkpoints.
        object.__setattr__(self._optimizer, ATTRIBUTE, self)
        object.__setattr__(self._optimizer, "apply", apply)
        object.__setattr__(self._optimizer, "register_local_var", register_local_var)

    def accumulators(self, variables: Sequence[Any]) -> list[tf.Variable]:
        """Makes and returns the accumulators of what is reduced, if there are any."""
        if self._aggregation is None or not variables:
            return []
        places = self._seen.places(variables)
        self._aggregation.build(variables, places)
        shared, _ = self.local.split(variables)
        return self._aggregation.variables_at([places[i] for i in shared])

    @as_it_stands
    def run(
        self,
        outer: Any,
        stock: Callable[..., None],
        grads: Sequence[Any],
        trainable_variables: Any = None,
    ) -> None:
        """Aggregates, reduces, and hands on to the stock `apply` of `outer`."""
        gradients = list(grads)
        if self.active or not gradients:
            return stock(gradients, trainable_variables)
        variables = self._prepare(outer, gradients, trainable_variables)
        call = self._plan(outer, stock, gradients, variables)
        gradients = self._filled(call, gradients)
        update = functools.partial(self._update, call)
        if self._aggregation is None:
            return update(gradients)
        places = self._seen.places(variables)
        self._aggregation.build(variables, places)
        return self._aggregation.run(gradients, places, update)

    def _prepare(self, outer: Any, gradients: list[Any], variables: Any) -> list[Any]:
        """Builds the optimizer, so that no branch has to, and finds the variables."""
        if variables is not None:
            found = list(variables)
            if not outer.built:
                outer.build(found)
        elif outer.built:
            found = list(outer._trainable_variables)
        else:
            raise ValueError(
                "`trainable_variables` must be given until the optimizer is built; or call "
                "optimizer.build(variables) first. Received: trainable_variables=None"
            )
        if len(found) != len(gradients):
            raise ValueError(
                "`grads` must hold one gradient per variable. "
                f"Received: {len(gradients)} gradients for {len(found)} variables"
            )
        if not self._groups_checked:
            known = [*_loss_scale.innermost(outer)._trainable_variables, *found]
            self._options.check_known(known, "this optimizer")
            self._groups_checked = True
        return found

    def _plan(
        self, outer: Any, stock: Callable[..., None], gradients: list[Any], variables: list[Any]
    ) -> _Call:
        shared, own = self.local.split(variables)
        some = [variables[i] for i in shared]
        plan = self._reducer.plan_for(
            [gradients[i] for i in shared],
            some,
            self._shared_seen.places(some),
            remark=f"local variables={bool(own)}, {remark(self._aggregation)}",
        )
        return _Call(outer, stock, variables, shared, own, plan)

    def _filled(self, call: _Call, gradients: list[Any]) -> list[Any]:
        result = list(gradients)
        filled = self._reducer.fill(
            call.plan,
            [gradients[i] for i in call.shared],
            [call.variables[i] for i in call.shared],
        )
        for i, gradient in zip(call.shared, filled, strict=True):
            result[i] = gradient
        for i in call.own:
            if self._densify and isinstance(result[i], tf.IndexedSlices):
                result[i] = tf.convert_to_tensor(result[i])
        return result

    def _update(self, call: _Call, gradients: list[Any]) -> None:
        with self._activated():
            if self._options.op == Adasum and self._options.takes_part():
                gradients = self._with_own_scaled(call, gradients)
                gradients = self._agreed_if_finite(call, gradients, range(len(gradients)))
                _adasum.apply(
                    _loss_scale.innermost(call.outer),
                    [call.variables[i] for i in call.shared],
                    functools.partial(call.stock, gradients, call.variables),
                    functools.partial(self._reducer.reduce, call.plan),
                    [entry.kind is _plan.Kind.DENSE for entry in call.plan.entries],
                )
            elif self._can_defer(call):
                _accumulation.apply_deferred(
                    call.outer,
                    call.stock,
                    gradients,
                    call.variables,
                    functools.partial(self._reduced, call),
                )
            else:
                reduced = self._reduced(call, gradients)
                call.stock(self._agreed_if_finite(call, reduced, call.own), call.variables)

    def _reduced(self, call: _Call, gradients: Sequence[Any]) -> list[Any]:
        result = self._with_own_scaled(call, gradients)
        reduced = self._reducer.reduce(call.plan, [result[i] for i in call.shared])
        for i, gradient in zip(call.shared, reduced, strict=True):
            result[i] = gradient
        return result

    def _with_own_scaled(self, call: _Call, gradients: Sequence[Any]) -> list[Any]:
        result = list(gradients)
        for i in call.own:
            if not _reducer.is_reduced(result[i]):
                result[i] = _local.scaled(result[i], self._options)
        return result

    def _agreed_if_finite(
        self, call: _Call, gradients: list[Any], unreduced: Sequence[int]
    ) -> list[Any]:
        """Lets all ranks skip an update together that Keras would skip on some."""
        if not (unreduced and _loss_scale.is_loss_scale(call.outer)):
            return gradients
        return _loss_scale.poisoned(gradients, unreduced, self._options, f"{call.plan.name}/finite")

    @contextlib.contextmanager
    def _activated(self) -> Iterator[None]:
        self.active = True
        try:
            yield
        finally:
            self.active = False

    def _can_defer(self, call: _Call) -> bool:
        return (
            self._accumulates
            and not _loss_scale.is_loss_scale(call.outer)
            and not any(getattr(v, "overwrite_with_gradient", False) for v in call.variables)
        )
