"""`JoinCallback`: ranks with fewer batches wait while the others finish the epoch."""

from __future__ import annotations

from typing import Any

from tfring import _keras, collectives, objects, optimizer, world


class JoinCallback(_keras.Callback):
    """Lets ranks have different numbers of batches: all data is used, and nobody waits in vain.

    A rank whose epoch's batches are over joins (`tfring.join`): the others go on, and the mean of
    the gradients is over the ranks that still have data. When all are done, the weights and the
    whole state of the optimizer (also gradients that were added up for an update to come) are
    copied from the rank that had the most batches to all; where ranks had equally many, nothing is
    copied. Then validation, metrics and other callbacks follow, on all ranks together.

    Give it to `fit` on all ranks; its place in the list does not matter. Nothing is sent per batch.
    Only allreduce goes on while a rank has joined. So sparse gradients need `sparse_as_dense=True`
    in `DistributedOptimizer`, and the optimizer must not be for a process set. With `run_eagerly`
    each rank needs a batch at least in the first epoch, in which ranks agree on what is reduced.

    To leave the surplus out instead, see `tfring.data.shortest`.

    Raises:
        ValueError: By `fit`, when the optimizer is not distributed, or for a process set, or the
            model has another one that is distributed, as a GAN; at the
            end of the first epoch, when this rank had no batch and `run_eagerly` is on.
        tf.errors.FailedPreconditionError: By `fit`, on all ranks, when some do not have this
            callback; in a batch, when the step does more than allreduce.
        tf.errors.AbortedError: At the end of an epoch, when a peer is lost.

    Example:

    >>> import keras, numpy as np, tfring as hvd
    >>> hvd.init()
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    >>> x = np.ones((4 if hvd.rank() == 0 else 2, 1), "float32")
    >>> join = hvd.keras.callbacks.JoinCallback()
    >>> _ = model.fit(x, x, batch_size=1, callbacks=[join], verbose=0)
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: int | None = None  # of the training step in this epoch; None: joined
        self._is_first = True
        self._start: tuple[float, ...] = ()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that all ranks reduce together."""
        self._calls, self._is_first = None, True
        if not optimizer.reduces_over_all(self.model.optimizer):
            raise ValueError(
                "JoinCallback is for optimizers that DistributedOptimizer made, over all ranks: "
                f"join is not for process sets. Received: optimizer={self.model.optimizer!r}"
            )
        others = optimizer.other_distributed(self.model)
        if others:
            raise ValueError(
                "JoinCallback is for models with one distributed optimizer, whose state it copies. "
                f"Received: others in {', '.join(others)}. Use tfring.data.shortest."
            )
        self._start = self._counters()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts to count."""
        self._calls = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts."""
        if self._calls is not None:
            self._calls += 1

    def after_last_batch(self) -> None:
        """Joins, once per epoch, and takes over what the rank with the most batches has."""
        calls, self._calls = self._calls, None
        if calls is None or world.size() == 1:
            return
        if self._is_first and self._has_seen_no_step(calls):
            raise ValueError(
                "Each rank needs at least one batch in the first epoch with JoinCallback (and "
                f"`run_eagerly`). Received: no batch on rank {world.rank()}"
            )
        self._is_first = False
        collectives.join()
        # By number of updates first: `fit` may call the step in vain to find that data is over.
        mine = (int(self.model.optimizer.iterations), calls, *self._counters())
        progress = objects.allgather_object(mine, name="join/progress")
        if len(set(progress)) > 1:
            variables = optimizer.shared_variables(self.model)
            objects.broadcast_variables(variables, progress.index(max(progress)))

    def _has_seen_no_step(self, calls: int) -> bool:
        # A step is traced also when there is no data for it.
        return calls == 0 or (self.model.run_eagerly and self._counters() == self._start)

    def _counters(self) -> tuple[float, ...]:
        # Of passes since the last update, too, and what tells of updates that were skipped.
        state = optimizer.state_variables(self.model.optimizer)
        return tuple(_keras.number(variable) for variable in state if not len(variable.shape))
