"""Optimizers of Keras 2 (`tf_keras`): the present kind, and `tf_keras.optimizers.legacy`.

As with Keras 3, the optimizer stays the stock one and its `apply_gradients`, through which every
update goes, learns to reduce. Under loss scaling the outer optimizer's does: it skips updates that
are not finite, and ranks must skip together.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import _adasum, _loss_scale, _plan
from tfring._aggregation import LocalAggregation
from tfring._autograph import as_it_stands
from tfring._keras import is_legacy
from tfring._options import Options
from tfring._order import Order
from tfring._sharing import Share, Sharing
from tfring._step import ATTRIBUTE
from tfring.constants import Adasum

_INSTALLED = "_tfring_installed"


def distribute(
    optimizer: Any, name: str | None, options: Options, *, passes: int, average_passes: bool
) -> Any:
    """Makes an optimizer of Keras 2 reduce its gradients.

    Args:
        optimizer: The optimizer; a `LossScaleOptimizer` may be inside or outside.
        name: Prefix of the collectives' names. Default "optimizer".
        options: How to reduce.
        passes: Calls whose gradients are added up for one update.
        average_passes: Divide the sum over passes by their number.

    Returns:
        `optimizer` itself.

    Raises:
        ValueError: When it is distributed already.
    """
    if is_distributed(optimizer):
        raise ValueError(
            "`optimizer` is distributed already; DistributedOptimizer must be called once. "
            f"Received: optimizer={optimizer!r}"
        )
    _install()
    aggregation = LocalAggregation(passes, average_passes) if passes > 1 else None
    Step(optimizer, name or "optimizer", options, aggregation).attach()
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether `optimizer`, or one that it scales the loss for, is distributed."""
    return step_of(optimizer) is not None


def is_loss_scale(optimizer: Any) -> bool:
    """Whether `optimizer` is a `LossScaleOptimizer` of Keras 2."""
    return is_legacy(optimizer) and hasattr(type(optimizer), "inner_optimizer")


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer that makes the update."""
    while is_loss_scale(optimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes what an optimizer keeps for each variable."""
    make = getattr(optimizer, "_create_all_weights", None) or optimizer.build
    with tf.init_scope():
        make(list(variables))
    step = step_of(optimizer)
    if step is not None:
        step.know(variables)


def build_model(model: Any, batch: Any) -> None:
    """Makes the variables of a model from the shapes of a batch, without computing anything."""
    inputs = batch[0] if isinstance(batch, tuple) else batch
    tf.function(lambda x: model(x, training=True)).get_concrete_function(inputs)


def state_variables(optimizer: Any) -> list[Any]:
    """Returns what of an optimizer must start alike on all ranks, as far as it is made."""
    inner = innermost(optimizer)
    own = inner.variables() if callable(inner.variables) else inner.variables
    hyper = [v for v in getattr(inner, "_hyper", {}).values() if isinstance(v, tf.Variable)]
    scale = getattr(optimizer, "_loss_scale", None) if is_loss_scale(optimizer) else None
    scales = list(getattr(scale, "_weights", {}).values())
    step = step_of(optimizer)
    if step is None:
        return [*own, *hyper, *scales]
    left_out = set(map(id, step.local_slots(inner)))
    return [*(v for v in own if id(v) not in left_out), *hyper, *scales, *step.accumulators()]


def has_schedule(optimizer: Any) -> bool:
    """Whether the learning rate is a function of the step."""
    inner = innermost(optimizer)
    hyper = getattr(inner, "_hyper", {})
    return callable(hyper["learning_rate"] if hyper else getattr(inner, "_learning_rate", None))


def velocities(optimizer: Any) -> list[Any]:
    """The slots of SGD and RMSprop that contain the learning rate, as far as they are made."""
    inner = innermost(optimizer)
    if not {"SGD", "RMSprop"} & {base.__name__ for base in type(inner).__mro__}:
        return []
    if hasattr(inner, "get_slot_names"):
        slots = [v for v in inner.variables() if v.name.split(":")[0].endswith("/momentum")]
    else:
        slots = getattr(inner, "momentums", None) or getattr(inner, "_momentums", None) or []
    return [slot for slot in slots if slot is not None]


def step_of(optimizer: Any) -> Step | None:
    """Returns what reduces for `optimizer`, or for one that it scales the loss for."""
    step: Step | None = vars(optimizer).get(ATTRIBUTE)
    if step is None and is_loss_scale(optimizer):
        return step_of(optimizer.inner_optimizer)
    return step


class Step:
    """What happens between `apply_gradients` and the stock one of one optimizer."""

    def __init__(
        self, optimizer: Any, name: str, options: Options, aggregation: LocalAggregation | None
    ) -> None:
        self._optimizer = optimizer
        self._options = self.options = options
        self._aggregation = aggregation
        densify = aggregation is not None or options.op == Adasum
        passes = aggregation.passes if aggregation else 1
        self._sharing = Sharing(name, options, densify=densify, passes=passes)
        self._order = Order()
        self.local = self._sharing.local
        self.unguarded: dict[int, Any] = {}  # by key: what ranks need not have alike
        self.active = False

    def attach(self) -> None:
        """Takes the place of the optimizer's `apply_gradients`."""
        stock = self._optimizer.apply_gradients

        @as_it_stands
        @functools.wraps(stock)
        def apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            return self.run(self._optimizer, stock, grads_and_vars, *args, **kwargs)

        # Past Keras' attribute tracking, which would follow them into checkpoints.
        object.__setattr__(self._optimizer, ATTRIBUTE, self)
        object.__setattr__(self._optimizer, "apply_gradients", apply_gradients)
        object.__setattr__(self._optimizer, "register_local_var", self.local.add)

    @property
    def known(self) -> list[Any]:
        """The variables that it has been given gradients of, or was told of."""
        return self._order.seen

    def know(self, variables: Sequence[Any]) -> None:
        """Numbers variables before their first gradients come."""
        self._order.places(variables)

    def local_slots(self, inner: Any) -> list[Any]:
        """What the innermost optimizer keeps for local variables."""
        known = self._order.seen
        places = self.local.split(known)[1]
        if hasattr(inner, "get_slot_names"):
            return [inner.get_slot(known[i], n) for n in inner.get_slot_names() for i in places]
        lists = [v for v in vars(inner).values() if isinstance(v, list) and len(v) == len(known)]
        return [slots[i] for slots in lists for i in places]

    def accumulators(self, variables: Sequence[Any] = ()) -> list[tf.Variable]:
        """Makes and returns the accumulators of what is reduced, if there are any."""
        del variables  # those that it has seen
        known = self._order.seen
        if self._aggregation is None or not known:
            return []
        self._aggregation.build(known, self._order.places(known))
        return self._aggregation.variables_at(self.local.split(known)[0])

    @as_it_stands
    def run(
        self, outer: Any, stock: Callable[..., Any], grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Adds up, reduces, and hands on to the stock `apply_gradients` of `outer`."""
        pairs = list(grads_and_vars)
        if self.active or not pairs or not _asks_to_aggregate(stock, args, kwargs):
            return stock(pairs, *args, **kwargs)
        gradients, variables = map(list, zip(*pairs, strict=True))
        call = functools.partial(_call, stock, variables, args, kwargs)
        share = self._sharing.agree(gradients, variables, self._order.seen)
        gradients = self._sharing.filled(share, gradients, variables)
        update = functools.partial(self._update, outer, call, variables, share)
        if self._aggregation is None:
            return update(gradients)
        places = self._order.places(variables)
        self._aggregation.build(variables, places)
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        self._aggregation.run(dense, places, update)
        return outer.iterations

    def _update(
        self,
        outer: Any,
        call: Callable[[list[Any]], Any],
        variables: list[Any],
        share: Share,
        gradients: list[Any],
    ) -> Any:
        is_adasum = self._options.op == Adasum
        ready = self._sharing.with_own_scaled if is_adasum else self._sharing.reduced
        result = ready(share, gradients)
        unreduced = range(len(result)) if is_adasum else share.own
        if unreduced and is_loss_scale(outer):
            name = f"{share.plan.name}/finite"
            result = _loss_scale.poisoned(result, unreduced, self._options, name)
        with self._activated():
            if not is_adasum:
                return call(result)
            _adasum.apply(
                innermost(outer),
                [variables[i] for i in share.shared],
                functools.partial(call, result),
                functools.partial(self._sharing.reducer.reduce, share.plan),
                [entry.kind is _plan.Kind.DENSE for entry in share.plan.entries],
            )
            return outer.iterations

    @contextlib.contextmanager
    def _activated(self) -> Iterator[None]:
        self.active = True
        try:
            yield
        finally:
            self.active = False


def _call(
    stock: Callable[..., Any],
    variables: list[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    gradients: list[Any],
) -> Any:
    return stock(list(zip(gradients, variables, strict=True)), *args, **kwargs)


def _asks_to_aggregate(
    stock: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the arguments leave the reduction to the optimizer, as they do by default."""
    given = inspect.signature(stock).bind([], *args, **kwargs).arguments
    given |= given.pop("kwargs", {})
    skips = given.get("skip_gradients_aggregation", False)
    return not skips and given.get("experimental_aggregate_gradients", True)


def _install() -> None:
    """Lets the `LossScaleOptimizer` classes pass through a distributed inner optimizer."""
    from tf_keras.mixed_precision import LossScaleOptimizer

    for cls in LossScaleOptimizer.__subclasses__():
        if _INSTALLED not in vars(cls):
            _pass_through(cls)


def _pass_through(cls: Any) -> None:
    stock = cls.apply_gradients

    @as_it_stands
    @functools.wraps(stock)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        step = step_of(self.inner_optimizer)
        if step is None or step.active:
            return stock(self, grads_and_vars, *args, **kwargs)
        return step.run(self, functools.partial(stock, self), grads_and_vars, *args, **kwargs)

    cls.apply_gradients = apply_gradients
    setattr(cls, _INSTALLED, True)
