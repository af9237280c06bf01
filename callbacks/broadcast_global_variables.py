"""`BroadcastGlobalVariablesCallback`: all ranks start alike."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfring import _first_batch, _keras, _legacy_keras, _plan, _reducer, objects, optimizer, world

_logger = logging.getLogger("tfring")


class BroadcastGlobalVariablesCallback(_keras.Callback):
    """Copies one rank's weights and optimizer state to all ranks before the first update.

    Use it on every rank whenever ranks may start differently: random initial weights,
    a checkpoint that only one rank reads. It acts once per `fit`, at the first batch, so
    what other callbacks restore in `on_train_begin` is included. A model that is not built
    yet is built then from the shapes of the data.

    Rank 0 then also warns, in the log, when ranks begin with the same batch, which means that
    the data was not sharded (setting `check_batches`), and when the optimizer is not a
    distributed one, so that each rank would train on its own.

    Sent are `model.weights` and all variables of the optimizer (`iterations`, learning rate,
    slots, loss scale). Gradients that ranks have added up for an update to come
    (`backward_passes_per_step`, `gradient_accumulation_steps`) stay each rank's own where all
    have made equally many passes. The states of random number generators (dropout,
    augmentation) stay each rank's own. For a model with a `train_step` of its own, slots that do
    not exist yet are left for it to make, and optimizers other than `model.optimizer` are its
    own to broadcast (`tfring.broadcast_variables`).

    Args:
        root_rank: The rank whose values all get, 0 to `size() - 1`.
        device: No effect.
        local_variables: Variables that each rank keeps as they are. The same ones on all
            ranks.

    Raises:
        ValueError: When `root_rank` is missing or no rank; by the first batch, when the model
            cannot be built from the data.
        tf.errors.FailedPreconditionError: By the first batch, on all ranks, when their
            variables differ in number, shape or dtype.
        tf.errors.AbortedError: By the first batch, when a peer is lost.

    Example:

    >>> import keras, numpy as np, tfring as hvd
    >>> hvd.init()
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    >>> first = hvd.keras.callbacks.BroadcastGlobalVariablesCallback(root_rank=0)
    >>> x = np.ones((4, 2), "float32")
    >>> _ = model.fit(x, x[:, :1], callbacks=[first], verbose=0)
    """

    def __init__(
        self,
        root_rank: int | None = None,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
    ) -> None:
        super().__init__()
        del device
        if not isinstance(root_rank, int) or isinstance(root_rank, bool) or root_rank < 0:
            raise ValueError(
                "`root_rank` must be the number of the rank whose values all ranks get, "
                f"usually 0. Received: root_rank={root_rank!r}"
            )
        self._root_rank = root_rank
        self._local = {_reducer.key(v): v for v in local_variables or ()}
        self._done = False

    def register_local_var(self, var: Any) -> None:
        """Lets each rank keep its own value of `var`."""
        self._local[_reducer.key(var)] = var

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks `root_rank`, now that the job's size is known."""
        if self._root_rank >= world.size():
            raise ValueError(
                f"`root_rank` must be less than the number of ranks, {world.size()}. "
                f"Received: root_rank={self._root_rank}"
            )
        self._done = False

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts before the first step, or arranges it when the model is not built."""
        if self._done:
            return
        self._done = True
        is_built = self.model.built
        if is_built:
            self._broadcast()
        if world.size() > 1 or not is_built:
            self._meet_data_in_first_step(is_built)

    def _meet_data_in_first_step(self, is_built: bool) -> None:
        # Only the step function gets to see the data, and it would make the variables
        # and update them in one go.
        model = self.model
        stock = model.train_function

        def first_step(iterator: Any) -> Any:
            model.train_function = stock
            if not is_built:
                _build(model, iterator)
                self._broadcast()
            return stock(_first_batch.compared(iterator, _keras.steps_per_execution(model)))

        model.train_function = first_step

    def _broadcast(self) -> None:
        model = self.model
        # A step of its own may give the optimizer some of the variables only.
        is_stock = type(model).train_step is _keras.of(model).Model.train_step
        if model.optimizer is not None and is_stock:
            _build_optimizer(model)
        if model.optimizer is not None:
            optimizer.leave_unguarded(model.optimizer, list(self._local.values()))
        if world.size() == 1:
            return
        if is_stock and world.rank() == 0:
            _warn_if_not_distributed(model)
        variables = list(model.weights)
        if model.optimizer is not None:
            variables += optimizer.state_variables(model.optimizer)
        variables = [v for v in variables if _reducer.key(v) not in self._local]
        lines = _plan.lines_of(variables)
        _plan.require_alike("broadcast of model and optimizer", lines, _reducer.exchange)
        kept = set(map(_reducer.key, self._pending()))
        variables = [v for v in variables if _reducer.key(v) not in kept]
        objects.broadcast_variables(variables, self._root_rank)

    def _pending(self) -> list[Any]:
        """Gradients of an update that all ranks have come equally far with: each has its part."""
        chosen = self.model.optimizer
        sums = [] if chosen is None else optimizer.pending_sums(chosen)
        if not sums:
            return []
        counters = [v for v in optimizer.state_variables(chosen) if _is_counter(v)]
        mine = [_keras.number(v) for v in counters]
        alike = len(set(map(tuple, _reducer.exchange(mine, "passes so far")))) == 1
        return sums if alike else []


def _warn_if_not_distributed(model: Any) -> None:
    chosen = model.optimizer
    if chosen is None or not model.trainable_variables or optimizer.is_distributed(chosen):
        return
    _logger.warning(
        "`compile` got an optimizer that is not distributed, so each of the %d ranks trains on its "
        "own data only, and their weights go apart. Received: optimizer=%s. Pass "
        "DistributedOptimizer(optimizer).",
        world.size(),
        type(chosen).__name__,
    )


def _is_counter(variable: Any) -> bool:
    return not len(variable.shape) and tf.as_dtype(variable.dtype).is_integer


def _build_optimizer(model: Any) -> None:
    if _keras.is_legacy(model.optimizer):
        _legacy_keras.build(model.optimizer, model.trainable_variables)
    elif not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _build(model: Any, iterator: Any) -> None:
    """Makes the variables that Keras would make in the first step, without a step."""
    batch = tf.nest.map_structure(
        lambda spec: None if isinstance(spec, tf.OptionalSpec) else spec, iterator.element_spec
    )
    optimizer = model.optimizer
    try:
        if _keras.is_legacy(model):
            _legacy_keras.build_model(model, batch)
        else:
            model.optimizer = None  # built by the caller, where it should be
            model._symbolic_build(data_batch=batch)
    except Exception as error:
        # A model that is not made to be called, say a GAN, may have all it needs.
        if model.layers and all(layer.built for layer in model.layers):
            return
        raise ValueError(
            "The model is not built and cannot be built from the shapes of the data, so its "
            "variables cannot be broadcast before the first step. Call model.build(input_shape), "
            f"or the model on one batch, before fit. Received: data of {batch}"
        ) from error
    finally:
        model.optimizer = optimizer
