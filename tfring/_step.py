"""What happens between a call of `apply` and the stock `apply` of one optimizer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import _accumulation, _adasum, _clipping, _loss_scale, _plan, _weights, collectives
from tfring._aggregation import Aggregation
from tfring._autograph import as_it_stands
from tfring._options import Options, is_overwritten
from tfring._order import Order
from tfring._sharing import Share, Sharing
from tfring.constants import Adasum, Sum

ATTRIBUTE = "_tfring_step"
# Where sums of `_weights.numbers` are among the accumulators.
_NUMBERS_AT = -1


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call of `apply`."""

    outer: Any  # the optimizer that was called: this one, or one that scales its loss
    stock: Callable[..., None]  # its own `apply`
    variables: list[Any]
    share: Share


@dataclasses.dataclass(frozen=True)
class _Items:
    """What one update is made from.

    Args:
        gradients: One per variable, or None.
        numbers: Of samples, see `_weights.numbers`; None where ranks count alike.
    """

    gradients: list[Any]
    numbers: Any = None

    def flat(self) -> list[Any]:
        return self.gradients if self.numbers is None else [*self.gradients, self.numbers]


@dataclasses.dataclass(frozen=True)
class Accumulators:
    """What is added up since the last update."""

    counter: list[tf.Variable]  # backward passes
    numbers: list[tf.Variable]  # of samples, see `_weights.numbers`
    shared: dict[int, tf.Variable]  # by place among the variables
    own: dict[int, tf.Variable]


class Step:
    """Takes the place of one optimizer's `apply`."""

    def __init__(
        self, optimizer: Any, name: str, options: Options, aggregation: Aggregation | None
    ) -> None:
        self._optimizer = optimizer
        self._options = self.options = options
        self._aggregation = aggregation
        self._accumulates = bool(_loss_scale.innermost(optimizer).gradient_accumulation_steps)
        self._densify = (
            self._accumulates
            or aggregation is not None
            or options.op == Adasum
            or options.reproducible
        )
        passes = aggregation.passes if aggregation else 1
        self._sharing = Sharing(name, options, densify=self._densify, passes=passes)
        self._seen = Order()
        self._carried: tf.Variable | None = None  # float32, (2,), numbers since the last update
        self.local = self._sharing.local
        self.unguarded: dict[int, Any] = {}  # by key: what ranks need not have alike
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

    @property
    def sample_weighted(self) -> bool:
        """Whether it needs the numbers of samples."""
        return self._options.sample_weighted

    def accumulators(self, variables: Sequence[Any]) -> list[tf.Variable]:
        """Makes and returns the accumulators of what is reduced, if there are any."""
        if not variables:
            return []
        carried = [self._carrier()] if self._accumulates and self.sample_weighted else []
        if self._aggregation is None:
            return carried
        places = self._build_aggregation(self._aggregation, variables)
        _, own = self.local.split(variables)
        places = [place for i, place in enumerate(places) if i not in own]
        return [*carried, *self._aggregation.variables_at(places)]

    def _build_aggregation(self, aggregation: Aggregation, variables: Sequence[Any]) -> list[int]:
        """Makes accumulators; returns the places of the items of a call in them."""
        places = self._seen.places(variables)
        aggregation.build(variables, places)
        if self.sample_weighted:
            aggregation.build([_weights.like_numbers()], [_NUMBERS_AT])
            places = [*places, _NUMBERS_AT]
        return places

    def _carrier(self) -> tf.Variable:
        if self._carried is None:
            with tf.init_scope():
                self._carried = tf.Variable(_weights.like_numbers(), trainable=False)
        return self._carried

    def all_accumulators(self, variables: Sequence[Any]) -> Accumulators:
        """Makes and returns all that is added up since the last update."""
        if not variables:
            return Accumulators([], [], {}, {})
        carried = [self._carrier()] if self._accumulates and self.sample_weighted else []
        aggregation = self._aggregation
        if aggregation is None:
            return Accumulators([], carried, {}, {})
        places = self._build_aggregation(aggregation, variables)
        of = [aggregation.variables_at([place])[1] for place in places]
        shared, own = self.local.split(variables)
        return Accumulators(
            aggregation.variables_at([]),
            [*carried, *of[len(variables) :]],
            {i: of[i] for i in shared},
            {i: of[i] for i in own},
        )

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
        items = self._weighed(call, self._filled(call, gradients))
        if self._aggregation is None:
            return self._update(call, items)
        places = self._build_aggregation(self._aggregation, variables)

        def update(totals: list[Any]) -> None:
            self._update(call, _Items(totals[: len(variables)], *totals[len(variables) :]))

        return self._aggregation.run(items.flat(), places, update)

    def _weighed(self, call: _Call, gradients: list[Any]) -> _Items:
        if not self.sample_weighted:
            return _Items(gradients)
        numbers = _weights.numbers()
        return _Items(_weights.weighed(gradients, call.share.not_averaged, numbers), numbers)

    def _reduced(self, call: _Call, items: _Items) -> list[Any]:
        if items.numbers is None:
            return self._sharing.reduced(call.share, items.gradients)
        adds_up = self._aggregation is not None and not self._aggregation.average
        factor = self._aggregation.passes if self._aggregation and adds_up else 1
        return self._sharing.sample_means(call.share, items.gradients, items.numbers, factor)

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

    def _update(self, call: _Call, items: _Items) -> None:
        gradients = self._sharing.with_maxima(call.share, items.gradients)
        items = dataclasses.replace(items, gradients=gradients)
        with self._activated():
            if self._options.op == Adasum and self._options.takes_part():
                self._apply_adasum(call, gradients)
            elif self._accumulates:
                self._apply_deferred(call, items)
            else:
                self._apply_reduced(call, items)

    def _apply_reduced(self, call: _Call, items: _Items) -> None:
        gradients = self._reduced(call, items)
        gradients = self._agreed_if_finite(call, gradients, call.share.own)
        inner = _loss_scale.innermost(call.outer)
        clip = self._clip(call, _clipped(call, gradients))
        with contextlib.nullcontext() if clip is None else _clipping.replaced(inner, clip):
            call.stock(gradients, call.variables)

    def _apply_deferred(self, call: _Call, items: _Items) -> None:
        # Keras drops a pass that is not finite: it must do so on all ranks. One number.
        gradients = items.gradients
        amount = self._poison(call, gradients, range(len(gradients)))
        if amount is not None:
            gradients = _loss_scale.with_poison(gradients, amount)
        if items.numbers is not None:
            counts = True if amount is None else tf.math.is_finite(amount)
            numbers = tf.where(counts, items.numbers, _weights.like_numbers())
            self._carrier().assign_add(numbers)
        places, inner = _clipped(call, gradients), _loss_scale.innermost(call.outer)

        def reduce(totals: list[Any]) -> list[Any]:
            totals += [None] * (len(gradients) - len(totals))
            return self._reduced(call, _Items(totals, *self._taken(inner)))

        _accumulation.apply_deferred(
            inner,
            functools.partial(call.stock, gradients, call.variables),
            places,
            reduce,
            self._clip(call, places) or inner._clip_gradients,
        )

    def _taken(self, inner: Any) -> list[Any]:
        """The numbers since the last update, which start over, for totals as Keras divides them."""
        if not self.sample_weighted:
            return []
        numbers = self._carrier().read_value()
        self._carrier().assign(_weights.like_numbers())
        return [numbers / float(inner.gradient_accumulation_steps)]

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
        amount = self._poison(call, gradients, unreduced) if self._options.takes_part() else None
        return gradients if amount is None else _loss_scale.with_poison(gradients, amount)

    def _poison(self, call: _Call, gradients: list[Any], unreduced: Sequence[int]) -> Any:
        """Where Keras would skip updates: 0, or NaN when a rank's are not finite."""
        is_needed = unreduced and _loss_scale.is_loss_scale(call.outer)
        if not is_needed or all(gradient is None for gradient in gradients):
            return None
        name = f"{call.share.plan.name}/finite"
        return _loss_scale.poison(gradients, unreduced, self._options, name)

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
