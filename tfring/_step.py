"""What happens between a call of `apply` and the stock `apply` of one optimizer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import _accumulation, _adasum, _clipping, _loss_scale, _plan, collectives
from tfring._aggregation import LocalAggregation
from tfring._autograph import as_it_stands
from tfring._options import Options, is_overwritten
from tfring._order import Order
from tfring._sharing import Share, Sharing
from tfring.constants import Adasum, Sum

ATTRIBUTE = "_tfring_step"


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call of `apply`."""

    outer: Any  # the optimizer that was called: this one, or one that scales its loss
    stock: Callable[..., None]  # its own `apply`
    variables: list[Any]
    share: Share


class Step:
    """Takes the place of one optimizer's `apply`."""

    def __init__(
        self, optimizer: Any, name: str, options: Options, aggregation: LocalAggregation | None
    ) -> None:
        self._optimizer = optimizer
        self._options = self.options = options
        self._aggregation = aggregation
        self._accumulates = bool(_loss_scale.innermost(optimizer).gradient_accumulation_steps)
        self._densify = self._accumulates or aggregation is not None or options.op == Adasum
        passes = aggregation.passes if aggregation else 1
        self._sharing = Sharing(name, options, densify=self._densify, passes=passes)
        self._seen = Order()
        self.local = self._sharing.local
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

    def all_accumulators(
        self, variables: Sequence[Any]
    ) -> tuple[list[tf.Variable], dict[int, tf.Variable], dict[int, tf.Variable]]:
        """Makes and returns the counter, and by place the accumulators, shared and own ones."""
        if self._aggregation is None or not variables:
            return [], {}, {}
        places = self._seen.places(variables)
        self._aggregation.build(variables, places)
        of = {i: self._aggregation.variables_at([place])[1] for i, place in enumerate(places)}
        shared, own = self.local.split(variables)
        counter = self._aggregation.variables_at([])
        return counter, {i: of[i] for i in shared}, {i: of[i] for i in own}

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
        known = _loss_scale.innermost(outer)._trainable_variables
        share = self._sharing.agree(gradients, variables, known)
        call = _Call(outer, stock, variables, share)
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
        return found

    def _filled(self, call: _Call, gradients: list[Any]) -> list[Any]:
        result = self._sharing.filled(call.share, gradients, call.variables)
        for i in call.share.own:
            if self._densify and isinstance(result[i], tf.IndexedSlices):
                result[i] = tf.convert_to_tensor(result[i])
        return result

    def _update(self, call: _Call, gradients: list[Any]) -> None:
        gradients = self._sharing.with_maxima(call.share, gradients)
        with self._activated():
            if self._options.op == Adasum and self._options.takes_part():
                self._apply_adasum(call, gradients)
            elif self._accumulates:
                self._apply_deferred(call, gradients)
            else:
                self._apply_reduced(call, gradients)

    def _apply_reduced(self, call: _Call, gradients: list[Any]) -> None:
        reduced = self._sharing.reduced(call.share, gradients)
        reduced = self._agreed_if_finite(call, reduced, call.share.own)
        inner = _loss_scale.innermost(call.outer)
        clip = self._clip(call, _clipped(call, reduced))
        with contextlib.nullcontext() if clip is None else _clipping.replaced(inner, clip):
            call.stock(reduced, call.variables)

    def _apply_deferred(self, call: _Call, gradients: list[Any]) -> None:
        # Keras drops a pass that is not finite: it must do so on all ranks. One number.
        gradients = self._agreed_if_finite(call, gradients, range(len(gradients)))
        places = _clipped(call, gradients)
        inner = _loss_scale.innermost(call.outer)
        _accumulation.apply_deferred(
            inner,
            functools.partial(call.stock, gradients, call.variables),
            places,
            lambda totals: self._sharing.reduced(call.share, _padded(totals, len(gradients))),
            self._clip(call, places) or inner._clip_gradients,
        )

    def _apply_adasum(self, call: _Call, gradients: list[Any]) -> None:
        gradients = self._sharing.with_own_scaled(call.share, gradients)
        gradients = self._agreed_if_finite(call, gradients, range(len(gradients)))
        _adasum.apply(
            _loss_scale.innermost(call.outer),
            [call.variables[i] for i in call.share.shared],
            functools.partial(call.stock, gradients, call.variables),
            functools.partial(self._sharing.reducer.reduce, call.share.plan),
            [entry.kind is _plan.Kind.DENSE for entry in call.share.plan.entries],
        )

    def _clip(self, call: _Call, places: list[int]) -> _clipping.Clip | None:
        """How to clip where ranks that have variables of their own would differ."""
        inner, options = _loss_scale.innermost(call.outer), self._options
        is_global = inner.global_clipnorm and not inner.clipnorm
        if not (is_global and call.share.own and options.takes_part()):
            return None
        name = f"{call.share.plan.name}/norm"

        def sum_over_ranks(value: Any) -> Any:
            return collectives.allreduce(value, op=Sum, name=name, process_set=options.process_set)

        stock = inner._clip_gradients
        return _clipping.with_common_norm(stock, places, call.share.own, sum_over_ranks)

    def _agreed_if_finite(
        self, call: _Call, gradients: list[Any], unreduced: Sequence[int]
    ) -> list[Any]:
        """Lets all ranks skip an update together that Keras would skip on some."""
        if not (unreduced and _loss_scale.is_loss_scale(call.outer)):
            return gradients
        return _loss_scale.poisoned(
            gradients, unreduced, self._options, f"{call.share.plan.name}/finite"
        )

    @contextlib.contextmanager
    def _activated(self) -> Iterator[None]:
        self.active = True
        try:
            yield
        finally:
            self.active = False


def _clipped(call: _Call, gradients: Sequence[Any]) -> list[int]:
    """Places of the gradients that Keras clips."""
    return [
        i
        for i, (gradient, variable) in enumerate(zip(gradients, call.variables, strict=True))
        if gradient is not None and not is_overwritten(variable)
    ]


def _padded(items: list[Any], length: int) -> list[Any]:
    return items + [None] * (length - len(items))
