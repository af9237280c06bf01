"""`DistributedOptimizer`: a stock Keras optimizer whose gradients are reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring import (
    _adasum,
    _agreement,
    _callback_list,
    _drift,
    _fit_samples,
    _guarded,
    _keras,
    _legacy_keras,
    _loss_scale,
    _old_names,
    _reducer,
    _v1,
    _xla_keras,
    world,
)
from tfring._aggregation import Aggregation, LocalAggregation
from tfring._agreement import Agreement
from tfring._options import Options
from tfring._reproducible import FixedAggregation
from tfring._step import ATTRIBUTE, Step
from tfring.compression import Compression, Compressor
from tfring.constants import Adasum, Average
from tfring.process_sets import ProcessSet, global_process_set


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
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    strict: bool = False,
    sample_weighted: bool = False,
    reproducible: bool = False,
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
    once per update; under a `LossScaleOptimizer`, which leaves out those that are not finite,
    ranks agree about each one, by one number, so that all leave it out. Sparse gradients
    become dense where they add up.

    With `op=Adasum` (arXiv:2006.02924) each rank's optimizer makes its own step, and what
    the steps changed is combined by Adasum; its moments stay the rank's own. With a
    process set, ranks outside of it apply their own gradients and exchange nothing.

    `optimizer.register_local_var(var)`, called before the first update, lets each rank
    keep a variable of its own: its gradient is not reduced, and is divided by the number
    of ranks as the mean of all ranks' losses asks for. All ranks must have such
    variables, or none, but not the same ones.

    An optimizer of Keras 2 (`tf_keras`, also its `legacy` ones) is treated alike; gradients
    that its arguments call aggregated (`skip_gradients_aggregation=True`,
    `experimental_aggregate_gradients=False`) are left alone. For one of
    `tf.compat.v1.train`, another v1 optimizer around it is returned, whose
    `compute_gradients` (and so `minimize`) reduces, and whose `apply_gradients` takes
    gradients as they come. There `backward_passes_per_step` needs a v1 graph and its local
    variables initialized; every pass counts for `global_step`, as in Horovod; with
    `op=Adasum` every pass is a local update, and the last one of a round combines.

    Args:
        optimizer: A `keras.optimizers.Optimizer`; a `LossScaleOptimizer` may be inside or
            outside. Or an optimizer of Keras 2 or of `tf.compat.v1.train`.
        name: Prefix of the collectives' names. Defaults to "optimizer".
        use_locking: For optimizers of `tf.compat.v1.train`; no effect for others.
        device_dense: No effect.
        device_sparse: No effect.
        compression: How gradients travel: `Compression.none`, `fp16` or `bf16`.
        sparse_as_dense: Make `tf.IndexedSlices` dense before the reduction. Default
            False: their rows are merged and gathered.
        backward_passes_per_step: Calls whose gradients are added up for one update.
        op: `tfring.Average`, `tfring.Sum` or `tfring.Adasum`.
        gradient_predivide_factor: Divide by it before the sum over ranks and multiply by
            it after; needs `op=Average`.
        average_aggregated_gradients: Divide the sum over passes by their number.
        num_groups: Deprecated spelling of an integer `groups`.
        groups: Number of buckets, or lists of variables that are reduced together,
            matched by identity. Variables in no list, and all by default, come in
            buckets of at most the fusion threshold.
        process_set: The ranks that reduce together. Default: all.
        scale_local_gradients: Divide the gradients of local variables by the number of
            ranks in `process_set`. Default True.
        strict: A gradient that is None on some ranks only is an error instead of zeros.
        sample_weighted: Average gradients over all ranks' samples instead of over ranks, so
            that batches of unequal sizes count as in one process. Keras' `fit` tells the
            sizes; a custom loop tells them by `tfring.batch_samples`. For Keras 3, with
            `op=Average`.
        reproducible: The same bits for any number of ranks, hosts and passes that share the
            micro-batches of one global batch (ranks times `backward_passes_per_step` stays the
            same). Gradients are added up in fixed point: 4 times as many bytes travel, elements
            below 2^-64 may be lost, and one of 2^40 or more makes its gradient NaN.
            Sparse gradients become dense; `gradient_predivide_factor` has no effect. Not
            with Adasum, compression, `gradient_accumulation_steps`, or optimizers other
            than those of Keras 3. Default False.

    Returns:
        `optimizer` itself; for one of `tf.compat.v1.train` the new one.

    Raises:
        TypeError: When an argument is of the wrong type.
        ValueError: When `optimizer` is distributed already, an argument makes no sense,
            or the number of ranks is no power of two for `op=Adasum`.
        tf.errors.FailedPreconditionError: By the first update, on all ranks, when the
            ranks' variables or options differ.
        tf.errors.InvalidArgumentError: By an update, on all ranks, when `sample_weighted`
            and a rank did not tell its number of samples.
        tf.errors.AbortedError: By an update, when a peer is lost; the update is not
            made.

    Example:

    >>> import keras, tfring as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    >>> type(optimizer).__name__
    'SGD'
    """
    del device_dense, device_sparse
    options = Options(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        strict=strict,
        sample_weighted=sample_weighted,
        reproducible=reproducible,
    )
    return distribute(
        optimizer,
        name,
        options,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        use_locking=use_locking,
    )


def distribute(
    optimizer: Any,
    name: str | None,
    options: Options,
    *,
    passes: int,
    average_passes: bool,
    use_locking: bool = False,
) -> Any:
    """Makes an optimizer of any kind reduce its gradients.

    Args:
        optimizer: Of Keras 3, of Keras 2 (`tf_keras`), or of `tf.compat.v1.train`.
        name: Prefix of the collectives' names, or None.
        options: How to reduce.
        passes: Calls whose gradients are added up for one update.
        average_passes: Divide the sum over passes by their number.
        use_locking: For optimizers of `tf.compat.v1.train`.

    Returns:
        What the user trains with: for Keras `optimizer` itself.
    """
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(
            "`backward_passes_per_step` must be a positive integer. "
            f"Received: backward_passes_per_step={passes}"
        )
    if options.sample_weighted and (_v1.is_v1_optimizer(optimizer) or _keras.is_legacy(optimizer)):
        raise ValueError(
            "`sample_weighted` needs an optimizer of Keras 3. Received: sample_weighted=True, "
            f"optimizer={optimizer!r}. Use keras.optimizers."
        )
    kind: dict[str, Any] = {"passes": passes, "average_passes": average_passes}
    if options.reproducible:
        _check_reproducible(optimizer)
    if _v1.is_v1_optimizer(optimizer):
        return _v1.distribute(optimizer, name, options, use_locking=use_locking, **kind)
    install_hooks(_keras.of(optimizer))
    _xla_keras.install(_keras.of(optimizer))
    if _keras.is_legacy(optimizer):
        return _legacy_keras.distribute(optimizer, name, options, **kind)
    _check_optimizer(optimizer)
    if options.op == Adasum:
        _adasum.check(_loss_scale.innermost(optimizer))
    aggregation = _aggregation(passes, average_passes, options)
    _loss_scale.install(_run_of)
    _old_names.install()
    if options.sample_weighted:
        _fit_samples.install(is_sample_weighted)
    Step(optimizer, name or "optimizer", options, aggregation).attach()
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether `optimizer`, or one that it scales the loss for, is distributed."""
    return _step_of(optimizer) is not None


def reduces_over_all(optimizer: Any) -> bool:
    """Whether `optimizer` is distributed over all ranks of the job."""
    step = _step_of(optimizer)
    return step is not None and step.options.process_set is global_process_set


def state_variables(optimizer: Any) -> list[Any]:
    """Returns what of an optimizer must start alike on all ranks.

    These are its own variables and, where gradients are added up over several passes,
    the accumulators; a built optimizer gets them here if it does not have them yet.
    What belongs to a local variable is left out.
    """
    if _keras.is_legacy(optimizer):
        return _legacy_keras.state_variables(optimizer)
    step: Step | None = _step_of(optimizer)
    if step is None:
        return list(optimizer.variables)
    known = list(_loss_scale.innermost(optimizer)._trainable_variables) if optimizer.built else []
    left_out = set(map(id, _slots(optimizer, step.local.split(known)[1])))
    shared = [variable for variable in optimizer.variables if id(variable) not in left_out]
    return [*shared, *step.accumulators(known)]


def shared_variables(model: Any) -> list[Any]:
    """Returns the weights and the optimizer's state that are alike on all ranks."""
    own = {_reducer.key(v) for v in local_variables(model.optimizer, model.trainable_variables)}
    weights = [v for v in model.weights if _reducer.key(v) not in own]
    return [*weights, *state_variables(model.optimizer)]


def other_distributed(model: Any) -> list[str]:
    """Returns the names of a model's attributes that hold other distributed optimizers."""
    kinds = _keras.optimizer_classes()
    return [
        name
        for name, value in vars(model).items()
        if isinstance(value, kinds) and value is not model.optimizer and is_distributed(value)
    ]


def pending_sums(optimizer: Any) -> list[Any]:
    """Returns what each rank has added up for an update to come."""
    return _guarded.sums_of(optimizer, _step_of(optimizer))


def guarded_variables(optimizer: Any) -> list[Any]:
    """Returns what an optimizer keeps the same on all ranks, bit for bit."""
    step = _step_of(optimizer)
    state = state_variables(optimizer)
    if step is not None and step.unguarded and not _keras.is_legacy(optimizer):
        known = _loss_scale.innermost(optimizer)._trainable_variables
        places = [i for i, v in enumerate(known) if _reducer.key(v) in step.unguarded]
        left_out = set(map(id, _slots(optimizer, places)))
        state = [v for v in state if id(v) not in left_out]
    return _guarded.of_optimizer(optimizer, step, state)


def leave_unguarded(optimizer: Any, variables: Sequence[Any]) -> None:
    """Says that ranks need not have the same values of variables, although they are reduced."""
    step = _step_of(optimizer)
    if step is not None:
        step.unguarded.update({_reducer.key(v): v for v in variables})


def guarded_of_model(model: Any, non_trainable: bool) -> list[Any]:
    """Returns what training keeps the same on all ranks of a model and its optimizer.

    Args:
        model: Of Keras 3 or Keras 2.
        non_trainable: Also its other weights, such as moving statistics.
    """
    model_optimizer = getattr(model, "optimizer", None)
    weights = list(model.trainable_variables)
    if model_optimizer is not None:
        own = set(map(_reducer.key, local_variables(model_optimizer, weights)))
        step = _step_of(model_optimizer)
        own.update(() if step is None else step.unguarded)
        weights = [v for v in weights if _reducer.key(v) not in own]
        weights += guarded_variables(model_optimizer)
    if non_trainable:
        weights += model.non_trainable_variables
    return _guarded.distinct(weights)


def process_set_of(optimizer: Any) -> ProcessSet:
    """Returns the ranks that a distributed optimizer reduces over; all for another, or None."""
    step = None if optimizer is None else _step_of(optimizer)
    if step is None:
        return global_process_set
    members: ProcessSet = step.options.process_set
    return members


def install_hooks(keras: Any) -> None:
    """Lets ranks agree on what callbacks decide during `fit`; once per process.

    Args:
        keras: The module: Keras 3, or Keras 2 (`tf_keras`).
    """
    _callback_list.install(keras, _agreement_of)


def local_variables(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Returns which of `variables` an optimizer was told to leave to each rank."""
    step = _step_of(optimizer)
    return [] if step is None else [variables[i] for i in step.local.split(variables)[1]]


def is_sample_weighted(optimizer: Any) -> bool:
    """Whether an optimizer needs the numbers of samples that gradients come from."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return False
    step = _step_of(optimizer)
    return step is not None and step.sample_weighted


def register_local_layers(optimizer: Any, layers: Sequence[Any]) -> None:
    """Lets each rank keep its own trainable weights of layers, built or not."""
    step = _step_of(optimizer)
    if step is not None:
        step.local.add_layers(layers)


def _slots(optimizer: Any, places: Sequence[int]) -> list[Any]:
    """What a Keras optimizer keeps for its trainable variables number `places`."""
    inner = _loss_scale.innermost(optimizer)
    known = getattr(inner, "_trainable_variables", ())
    found = []
    for name, value in vars(inner).items():
        # Keras keeps one list per kind of slot, in the order of the variables.
        if name != "_variables" and isinstance(value, list) and len(value) == len(known):
            found += [value[i] for i in places if getattr(value[i], "shape", None) is not None]
    return found


def _aggregation(passes: int, average: bool, options: Options) -> Aggregation | None:
    if passes == 1:
        return None
    if options.reproducible:
        return FixedAggregation(passes, average, options)
    return LocalAggregation(passes, average)


def _check_reproducible(optimizer: Any) -> None:
    if _v1.is_v1_optimizer(optimizer) or _keras.is_legacy(optimizer):
        raise ValueError(
            "`reproducible=True` needs an optimizer of Keras 3. "
            f"Received: optimizer={optimizer!r} of type {type(optimizer).__name__}"
        )
    if getattr(_loss_scale.innermost(optimizer), "gradient_accumulation_steps", None):
        raise ValueError(
            "`reproducible=True` cannot change how Keras adds up gradients. Received: an optimizer "
            "with gradient_accumulation_steps. Use backward_passes_per_step of "
            "DistributedOptimizer, with average_aggregated_gradients=True."
        )


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be one of Keras 3, of Keras 2 (tf_keras) or of tf.compat.v1.train. "
            f"Received: optimizer={optimizer!r} of type {type(optimizer).__name__}"
        )
    if is_distributed(optimizer):
        raise ValueError(
            "`optimizer` is distributed already; DistributedOptimizer must be called once. "
            f"Received: optimizer={optimizer!r}"
        )


def _step_of(optimizer: Any) -> Any:
    if _keras.is_legacy(optimizer):
        return _legacy_keras.step_of(optimizer)
    step = vars(optimizer).get(ATTRIBUTE)
    if step is None and _loss_scale.is_loss_scale(optimizer):
        return _step_of(optimizer.inner_optimizer)
    return step


def _agreement_of(model: Any, params: dict[str, Any], partners: list[str]) -> Agreement | None:
    step = None if getattr(model, "optimizer", None) is None else _step_of(model.optimizer)
    if step is None or not tf.executing_eagerly() or not world.is_initialized():
        return None
    if not step.options.takes_part():
        return None

    def variables() -> list[Any]:
        rate = _agreement.rate_variable(model.optimizer)
        return [v for v in shared_variables(model) if v is not rate]

    action = world.settings().drift

    def check() -> _drift.Check | None:
        if action == "off":
            return None
        # Rates that callbacks changed on one rank are agreed on apart.
        rate = _agreement.rate_variable(model.optimizer)
        guarded = [v for v in guarded_variables(model.optimizer) if v is not rate]
        return _drift.Check(guarded, step.options.process_set)

    return Agreement(
        model,
        step.options,
        variables,
        epochs=params["epochs"],
        batches=params["steps"],
        partners=partners,
        check=check,
        action=action,
    )


def _run_of(optimizer: Any) -> _loss_scale.Run | None:
    step = _step_of(optimizer)
    return None if step is None or step.active else step.run
