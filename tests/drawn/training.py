"""Trains a case: on its ranks, with all that the library has; and in one process, without."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring import objects
from tfring._samples import batch_samples
from tfring.callbacks import BroadcastGlobalVariablesCallback, LearningRateWarmupCallback
from tfring.compression import Compression
from tfring.constants import Average, Sum
from tfring.optimizer import DistributedOptimizer
from tfring.tape import DistributedGradientTape

from . import problem
from .case import Case


@dataclasses.dataclass(frozen=True)
class Result:
    """What a training ends with.

    Attributes:
        start: Weights before it.
        weights: Weights after it.
        state: The optimizer's own variables, but for its count and for gradients that it has
            added up.
        iterations: The optimizer's count of updates.
        scale: The loss scale; 1.0 if the loss is not scaled.
    """

    start: list[np.ndarray]
    weights: list[np.ndarray]
    state: list[np.ndarray]
    iterations: int
    scale: float


def result_of(start: list[np.ndarray], variables: list[Any], optimizer: Any) -> Result:
    inner = optimizer
    while isinstance(inner, keras.optimizers.LossScaleOptimizer):
        inner = inner.inner_optimizer
    added_up = set(map(id, getattr(inner, "_accumulated_gradients", None) or []))
    left_out = {id(inner._iterations), id(inner._learning_rate)} | added_up
    own = [v for v in inner.variables if id(v) not in left_out]
    scale = 1.0 if optimizer is inner else float(optimizer.dynamic_scale.numpy())
    return Result(
        start=start,
        weights=[v.numpy() for v in variables],
        state=[v.numpy() for v in own],
        iterations=int(optimizer.iterations),
        scale=scale,
    )


# --- on ranks ------------------------------------------------------------------------------


def arguments_of(case: Case, variables: list[Any]) -> dict[str, Any]:
    """What optimizer and tape have in common."""
    groups: Any = case.groups or None
    if case.groups < 0:
        groups = [variables[:1], variables[1:2]] if len(variables) > 1 else [variables]
    return {
        "compression": getattr(Compression, case.compression),
        "sparse_as_dense": case.sparse_as_dense,
        "op": Sum if case.op == "Sum" else Average,
        "gradient_predivide_factor": case.predivide,
        "groups": groups,
    }


def distributed(case: Case, variables: list[Any]) -> Any:
    """The optimizer of a rank."""
    stock = problem.optimizer_of(case)
    if case.tapes and case.loop != "both":
        return problem.scaled(case, stock)
    arguments = arguments_of(case, variables)
    arguments["backward_passes_per_step"] = case.passes
    arguments["average_aggregated_gradients"] = case.average_passes
    arguments["sample_weighted"] = case.sample_weighted
    arguments["reproducible"] = case.reproducible
    if case.wrapping == "compile":
        return DistributedOptimizer(stock, **arguments)
    if case.wrapping == "dist(scale)":
        return DistributedOptimizer(problem.scaled(case, stock), **arguments)
    return problem.scaled(case, DistributedOptimizer(stock, **arguments))


def on_rank(case: Case, rank: int) -> Result:
    """Trains one rank's part; every rank must call it."""
    model = problem.model_of(case, rank if case.broadcast else 0)
    extra = problem.extra_of(case, rank if case.broadcast else 0)
    variables = [*model.trainable_variables, *extra]
    optimizer = distributed(case, variables)
    start = [
        v.numpy() for v in [*problem.model_of(case).trainable_variables, *problem.extra_of(case)]
    ]
    x, y = (array[rank, :, : case.batches[rank]] for array in problem.data_of(case))
    if case.fits:
        optimizer = _fit(case, model, optimizer, x, y)
    else:
        if case.broadcast:
            objects.broadcast_variables(variables, root_rank=0)
        optimizer.build(variables)
        step = _step_of(case, rank, model, extra, optimizer)
        for call in range(case.calls):
            step(tf.constant(x[call]), tf.constant(y[call]))
    return result_of(start, variables, optimizer)


def _fit(case: Case, model: Any, optimizer: Any, x: np.ndarray, y: np.ndarray) -> Any:
    model.compile(
        optimizer,
        problem.loss_of(case),
        run_eagerly=not case.graph,
        steps_per_execution=case.per_execution,
    )
    callbacks: list[Any] = []
    if case.broadcast:
        callbacks.append(BroadcastGlobalVariablesCallback(0))
    if case.schedule == "warmup":
        callbacks.append(
            LearningRateWarmupCallback(
                problem.RATE,
                2,
                momentum_correction=False,
                steps_per_epoch=problem.CALLS_PER_EPOCH,
            )
        )
    per_epoch = problem.CALLS_PER_EPOCH if case.schedule == "warmup" else case.calls
    for epoch, first in enumerate(range(0, case.calls, per_epoch)):
        batches = slice(first, first + per_epoch)
        model.fit(
            x[batches].reshape(-1, *x.shape[2:]),
            y[batches].reshape(-1, *y.shape[2:]),
            batch_size=x.shape[1],
            shuffle=False,
            verbose=0,
            initial_epoch=epoch,
            epochs=epoch + 1,
            callbacks=callbacks,
        )
    return model.optimizer


def _step_of(case: Case, rank: int, model: Any, extra: list[Any], optimizer: Any) -> Any:
    variables = [*model.trainable_variables, *extra]

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        tape: Any = tf.GradientTape()
        if case.tapes:
            tape = DistributedGradientTape(tape, **arguments_of(case, variables))
        with tape:
            loss = problem.losses(case, model, extra, x, y, case.uses(rank))
            loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, [v.value for v in variables])
        samples = batch_samples(case.batches[rank]) if case.sample_weighted else nullcontext()
        with samples:
            optimizer.apply(gradients, variables)

    return tf.function(step) if case.graph else step


# --- in one process ------------------------------------------------------------------------


def in_one_process(case: Case) -> Result:
    """Trains on the batches of all ranks with the stock optimizer, eagerly."""
    model, extra = problem.model_of(case), problem.extra_of(case)
    variables = [*model.trainable_variables, *extra]
    start = [v.numpy() for v in variables]
    optimizer = problem.scaled(case, problem.optimizer_of(case))
    optimizer.build(variables)
    x, y = problem.data_of(case)
    for first in range(0, case.calls - case.passes + 1, case.passes):
        calls = slice(first, first + case.passes)
        with tf.GradientTape() as tape:
            loss = _whole(case, model, extra, x[:, calls], y[:, calls]) * case.factor
            loss = optimizer.scale_loss(loss)
        if case.schedule == "warmup":
            optimizer.learning_rate = problem.warm_rate(case, first + case.passes - 1)
        gradients = tape.gradient(loss, [v.value for v in variables])
        if case.merges:
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply(gradients, variables)
    if case.fits:
        optimizer.finalize_variable_values(variables)  # as `fit` does: averages take their places
    return result_of(start, variables, optimizer)


def _whole(case: Case, model: Any, extra: list[Any], x: np.ndarray, y: np.ndarray) -> Any:
    """The mean loss over all ranks' samples of some calls."""
    xs, ys = (
        [
            array[rank, :, :batch].reshape(-1, *array.shape[3:])
            for rank, batch in enumerate(case.batches)
        ]
        for array in (x, y)
    )
    if not extra:
        return problem.losses(case, model, extra, np.concatenate(xs), np.concatenate(ys), False)
    parts = [
        problem.losses(case, model, extra, *own, case.uses(rank))
        for rank, own in enumerate(zip(xs, ys, strict=True))
    ]
    return tf.add_n(parts) / case.ranks
