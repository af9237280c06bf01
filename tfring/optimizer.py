"""`DistributedOptimizer`: a stock Keras optimizer whose gradients are reduced."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring import _loss_scale, _plan, _reducer
from tfring._aggregation import LocalAggregation
from tfring._autograph import as_it_stands
from tfring.compression import Compression, Compressor
from tfring.constants import Average

_STEP = "_tfring_step"


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    strict: bool = False,
) -> Any:
    """Makes a Keras optimizer reduce its gradients over all ranks before it updates.

    Returns the same object: its class, state, and what it saves stay the stock ones, so
    a saved model loads without tfring (wrap its optimizer again after loading, before
    training). Works with `compile` and `fit`, with and without `run_eagerly`, and in
    custom loops through `apply` and `apply_gradients`.

    Every rank must call it and must apply the same number of updates. The order is that
    of one process: sum over `backward_passes_per_step`, reduce, unscale and check for
    infinities, clip, decay, update. `iterations` counts updates. Gradients that come
    straight from a `DistributedGradientTape` are not reduced again; the tape marks the
    tensors, and a mark does not survive arithmetic on them or a `tf.function` boundary.

    A gradient that is None on some ranks only counts as zeros there; None on all ranks is
    skipped. Which gradients exist is agreed when they are first seen; a variable that
    gets its first gradient later must get it on all ranks in the same step.

    With Keras' own `gradient_accumulation_steps` gradients add up locally and are reduced
    once per update; under a `LossScaleOptimizer` each one is reduced, because that
    class checks each one for infinities. Sparse gradients become dense where they add up.

    Args:
        optimizer: A `keras.optimizers.Optimizer`; a `LossScaleOptimizer` may be inside or
            outside.
        name: Prefix of the collectives' names. Defaults to "optimizer".
        use_locking: No effect.
        device_dense: No effect.
        device_sparse: No effect.
        compression: How gradients travel: `Compression.none`, `fp16` or `bf16`.
        sparse_as_dense: Make `tf.IndexedSlices` dense before the reduction. Default
            False: their rows are merged and gathered.
        backward_passes_per_step: Calls whose gradients are added up for one update.
        op: `tfring.Average` or `tfring.Sum`.
        gradient_predivide_factor: Divide by it before the sum over ranks and multiply by
            it after; needs `op=Average`.
        average_aggregated_gradients: Divide the sum over passes by their number.
        num_groups: Deprecated spelling of an integer `groups`.
        groups: Number of buckets, or lists of variables that are reduced together.
            Default None: buckets of at most the fusion threshold.
        strict: A gradient that is None on some ranks only is an error instead of zeros.

    Returns:
        `optimizer` itself.

    Raises:
        TypeError: When `optimizer` is no Keras 3 optimizer.
        ValueError: When `optimizer` is distributed already or an argument makes no sense.
        tf.errors.FailedPreconditionError: By the first update, on all ranks, when the
            ranks' variables or options differ.
        tf.errors.AbortedError: By an update, when a peer is lost; the update is not
            made.

    Example:

    >>> import keras, tfring as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    >>> type(optimizer).__name__
    'SGD'
    """
    del use_locking, device_dense, device_sparse
    _check_optimizer(optimizer)
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise ValueError(
            "`backward_passes_per_step` must be a positive integer. "
            f"Received: backward_passes_per_step={backward_passes_per_step}"
        )
    options = _reducer.Options(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        strict=strict,
    )
    aggregation = None
    if backward_passes_per_step > 1:
        aggregation = LocalAggregation(backward_passes_per_step, average_aggregated_gradients)
    _loss_scale.install(_run_of)
    _Step(optimizer, name or "optimizer", options, aggregation).attach()
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether `optimizer`, or one that it scales the loss for, is distributed."""
    return _step_of(optimizer) is not None


def state_variables(optimizer: Any) -> list[Any]:
    """Returns what of an optimizer must start alike on all ranks.

    These are its own variables and, where gradients are added up over several passes,
    the accumulators; a built optimizer gets them here if it does not have them yet.
    """
    step = _step_of(optimizer)
    known = optimizer._trainable_variables if optimizer.built else []
    return [*optimizer.variables, *([] if step is None else step.accumulators(known))]


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be a keras.optimizers.Optimizer of Keras 3. "
            f"Received: optimizer={optimizer!r} of type {type(optimizer).__name__}"
        )
    if is_distributed(optimizer):
        raise ValueError(
            "`optimizer` is distributed already; DistributedOptimizer must be called once. "
            f"Received: optimizer={optimizer!r}"
        )


def _step_of(optimizer: Any) -> _Step | None:
    step: _Step | None = vars(optimizer).get(_STEP)
    if step is None and _loss_scale.is_loss_scale(optimizer):
        return _step_of(optimizer.inner_optimizer)
    return step


def _run_of(optimizer: Any) -> _loss_scale.Run | None:
    step = _step_of(optimizer)
    return None if step is None or step.active else step.run


class _Step:
    """What happens between `apply` and the stock `apply` of one optimizer."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        options: _reducer.Options,
        aggregation: LocalAggregation | None,
    ) -> None:
        self._optimizer = optimizer
        self._aggregation = aggregation
        self._accumulates = bool(_loss_scale.innermost(optimizer).gradient_accumulation_steps)
        self._reducer = _reducer.Reducer(
            name, options, densify=self._accumulates or aggregation is not None
        )
        self._positions: dict[int, int] = {}  # key(variable) -> order of first sight
        self._seen: list[Any] = []  # keeps the keys alive
        self.active = False

    def attach(self) -> None:
        """Takes the place of the optimizer's `apply`."""
        stock = self._optimizer.apply

        @as_it_stands
        @functools.wraps(stock)
        def apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            self.run(self._optimizer, stock, grads, trainable_variables)

        # Past Keras' attribute tracking, which would follow them into checkpoints.
        object.__setattr__(self._optimizer, _STEP, self)
        object.__setattr__(self._optimizer, "apply", apply)

    def accumulators(self, variables: Sequence[Any]) -> list[tf.Variable]:
        """Makes and returns the accumulators for `variables`, if there are any."""
        if self._aggregation is None or not variables:
            return []
        self._aggregation.build(variables, self._places(variables))
        return self._aggregation.variables

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
        positions = self._places(variables)
        plan = self._reducer.plan_for(gradients, variables, positions)
        gradients = self._reducer.fill(plan, gradients, variables)
        update = functools.partial(self._update, outer, stock, plan, variables)
        if self._aggregation is None:
            return update(gradients)
        self._aggregation.build(variables, positions)
        return self._aggregation.run(gradients, positions, update)

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

    def _places(self, variables: Sequence[Any]) -> list[int]:
        for variable in variables:
            if _reducer.key(variable) not in self._positions:
                self._positions[_reducer.key(variable)] = len(self._seen)
                self._seen.append(variable)
        return [self._positions[_reducer.key(variable)] for variable in variables]

    def _update(
        self,
        outer: Any,
        stock: Callable[..., None],
        plan: _plan.Plan,
        variables: list[Any],
        gradients: list[Any],
    ) -> None:
        with self._activated():
            if self._can_defer(outer, variables):
                self._apply_deferred(outer, stock, plan, variables, gradients)
            else:
                stock(self._reducer.reduce(plan, gradients), variables)

    @contextlib.contextmanager
    def _activated(self) -> Iterator[None]:
        self.active = True
        try:
            yield
        finally:
            self.active = False

    def _can_defer(self, outer: Any, variables: Sequence[Any]) -> bool:
        return (
            self._accumulates
            and not _loss_scale.is_loss_scale(outer)
            and not any(getattr(v, "overwrite_with_gradient", False) for v in variables)
        )

    def _apply_deferred(
        self,
        outer: Any,
        stock: Callable[..., None],
        plan: _plan.Plan,
        variables: list[Any],
        gradients: list[Any],
    ) -> None:
        """Lets Keras add up gradients and reduces the total where Keras clips it."""
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        stock_clip = outer._clip_gradients
        clipped = False

        def reduce_and_clip(totals: Sequence[Any]) -> Any:
            nonlocal clipped
            clipped = True
            complete: list[Any] = [None] * len(gradients)
            for i, total in zip(present, totals, strict=True):
                complete[i] = total
            complete = self._reducer.reduce(plan, complete)
            return stock_clip([complete[i] for i in present])

        object.__setattr__(outer, "_clip_gradients", reduce_and_clip)
        try:
            stock(gradients, variables)
        finally:
            object.__delattr__(outer, "_clip_gradients")
        must = not tf.executing_eagerly() or (
            int(outer._iterations) % outer.gradient_accumulation_steps == 0
        )
        if must and not clipped:
            raise RuntimeError(
                f"Keras {keras.__version__} updates without clipping first, so tfring cannot "
                "reduce accumulated gradients. Use backward_passes_per_step instead of "
                "gradient_accumulation_steps."
            )
