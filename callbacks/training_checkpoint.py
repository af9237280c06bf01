"""`TrainingCheckpoint`: `fit` that goes on where it was, with the same bits."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import keras

from tfring import _callback_list, _keras, _root, world
from tfring.checkpoints import _callbacks, _entries, _files, _ranks, checkpoint
from tfring.checkpoints._passing import Passing

Logs = dict[str, Any] | None
Hook = Callable[..., None]


class TrainingCheckpoint(_keras.Callback):
    """Saves the whole state of `fit`, and lets the next job go on from it with the same bits.

    Give it to `fit` on every rank, anywhere in the list. It saves when all other callbacks
    are done with an epoch (or batch). When a training starts whose folder holds checkpoints, it
    restores the newest that is whole, on all ranks, and `fit` goes on with the epoch after it: a
    job that was killed is started again by the same command, and ends as if nothing had happened.
    When the training was over, also by `EarlyStopping`, `fit` returns its history at once; after
    a callback of your own has set `stop_training`, because the job's time is over say, the next job
    goes on.

    Saved are what `tfring.Checkpoint` saves; the epoch, and inside of an epoch the step and the
    metrics so far; `history`; the states of callbacks. Of Keras' callbacks those of EarlyStopping,
    ReduceLROnPlateau, ModelCheckpoint, BackupAndRestore, SwapEMAWeights, TensorBoard and History
    are known, also inside of `RootOnly`; other callbacks take part by the methods `get_state()`,
    which returns None, numbers, texts, arrays, or lists, tuples and dictionaries of them, and
    `set_state(state)`, which is called after all callbacks' `on_train_begin`. The same on all
    ranks is stored once, what differs by rank; see `tfring.Checkpoint` about files, failures, and
    another number of ranks. `CSVLogger` needs `append=True`.

    Data: a new job reads its data from their begin. After a resume inside of an epoch, the batches
    that the epoch has had are read and passed over, without a hook or an update. So the bits are
    the same for data that come in the same order each epoch. An order that `shuffle` draws anew
    each epoch is not stored: a new job draws as in its first epoch. With `steps_per_epoch` and
    data that go on over epochs, the batches of former epochs are not passed over; give `fit` data
    without them (`dataset.skip`).

    Not saved: weights that are not finite (`TerminateOnNaN`), so that the last good ones stay; and
    an epoch that a callback ends before its last batch.

    Args:
        folder: where the files are, on rank 0. One folder per training.
        every: "epoch": at the end of each epoch. Or a number of batches: also after so many
            batches of an epoch. Default "epoch".
        keep: number of files that stay. Default 2.
        resume: restore when training starts. Default True. False: ignore what is there; new files
            are newer than those.
        verbose: 1 prints on rank 0 what is restored. Default 0.

    Attributes:
        first_epoch: the epoch with which `fit` starts, once it has started.
        first_step: the step in it.

    Raises:
        ValueError: an argument makes no sense. By `fit`, on all ranks: the model is not built, or
            has other variables than the checkpoint; the text names the first.
        NotImplementedError: Keras 2 is in use.
        RuntimeError: by `fit`: another job uses the folder; on ranks other than 0, rank 0 could
            not read or write.
        OSError: by `fit`, on rank 0, when it could not write; checkpoints that were there stay.
        tf.errors.AbortedError: by `fit`, when a peer is lost.

    Example:

    >>> import keras, numpy as np, tempfile, tfring as hvd
    >>> hvd.init()
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    >>> x, folder = np.ones((8, 2)), hvd.broadcast_object(tempfile.mkdtemp())
    >>> for epochs in (2, 3):  # the second one goes on
    ...     saved = hvd.callbacks.TrainingCheckpoint(folder)
    ...     history = model.fit(x, x[:, :1], epochs=epochs, callbacks=[saved], verbose=0)
    >>> saved.first_epoch, history.epoch
    (2, [0, 1, 2])
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: str | int = "epoch",
        keep: int = 2,
        resume: bool = True,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        _keras.require_3("TrainingCheckpoint")
        is_number = isinstance(every, int) and not isinstance(every, bool) and every > 0
        if not is_number and every != "epoch":
            raise ValueError(
                '`every` must be "epoch" or a number of batches, 1 or more. '
                f"Received: every={every!r}"
            )
        checkpoint.check_keep(keep)
        self._folder = _files.Folder(folder, keep)
        self._every = every if isinstance(every, int) else None
        self._resume = resume
        self._verbose = verbose
        self._callbacks: list[Any] = []
        self._passing: Passing | None = None
        self._metrics: dict[str, Any] = {}
        self._former_epoch: Any = None
        self._epoch = self._step = 0
        self.first_epoch = self.first_step = 0

    def after_train_begin(self, callbacks: Any) -> None:
        """Restores when all callbacks have begun, and attends to their list from then on.

        Args:
            callbacks: the `keras.callbacks.CallbackList` of `fit`.
        """
        checkpoint.require_built(self.model)
        self._callbacks = list(_callback_list.flat(callbacks))
        self._check_others()
        self._former_epoch = self.model._initial_epoch
        self._passing, self._metrics = None, {}
        self.first_epoch = self.first_step = 0
        if self._resume:
            found = _ranks.find(self._folder)
            if found is not None:
                self._restore(found)
        else:
            _root.on_root(self._folder.lock, "lock the folder of checkpoints")
        self._attend(callbacks)

    def _check_others(self) -> None:
        kinds = [type(each).__name__ for each in self._callbacks]
        if kinds.count(type(self).__name__) > 1:
            raise ValueError(
                f"`callbacks` of fit must hold one TrainingCheckpoint. Received: {kinds}"
            )
        if self._every and "JoinCallback" in kinds:
            raise ValueError(
                '`every` must be "epoch" together with JoinCallback: ranks do not meet within an '
                f"epoch. Received: every={self._every}"
            )

    # --- restoring -----------------------------------------------------------------------

    def _restore(self, found: _ranks.Found) -> None:
        model, position = self.model, found.manifest["position"]
        self._check_position(found.path, position)
        optimizers = _entries.optimizers_of(model)
        _entries.build(model, optimizers, found.manifest["optimizers"])
        entries = _entries.collect(model, optimizers)
        _ranks.check(found, entries)
        _ranks.assign(found, entries)
        arrays = _ranks.arrays(found, found.of_group("callback"))
        _callbacks.set_states(self._callbacks, found.state()["callbacks"], arrays)
        self._metrics = _ranks.arrays(found, found.of_group("metric"))
        self.first_epoch, self.first_step = position["epoch"], position["step"]
        stopped = found.manifest["stopped"]
        model._initial_epoch = self.params["epochs"] if stopped else self.first_epoch
        if self._verbose and world.rank() == 0:
            end = "; EarlyStopping had ended the training there" if stopped else ""
            print(
                f"Going on from {found.path}: epoch {self.first_epoch}, step {self.first_step}{end}"
            )

    def _check_position(self, path: str, position: dict[str, Any]) -> None:
        if set(position) != {"epoch", "step"}:
            raise ValueError(
                f"`folder` must hold checkpoints of a TrainingCheckpoint. {path} is another's: "
                f"{position}"
            )
        at_once = self.model.steps_per_execution
        if position["step"] % at_once:
            raise ValueError(
                f"{path} was written after {position['step']} batches of an epoch, no multiple of "
                f"steps_per_execution. Received: steps_per_execution={at_once}"
            )

    # --- saving --------------------------------------------------------------------------

    def _save(self, epoch: int, step: int, wanted: bool) -> None:
        model = self.model
        optimizers = _entries.optimizers_of(model)
        entries = _entries.collect(model, optimizers)
        if step:
            entries.update(_entries.metrics(model))
        arrays: dict[str, Any] = {}
        states = _callbacks.get_states(self._callbacks, arrays)
        entries.update((key, _entries.Entry(key, array)) for key, array in arrays.items())
        _ranks.save(
            self._folder,
            entries,
            position={"epoch": epoch, "step": step},
            state={"callbacks": states},
            about={
                "optimizers": _entries.places(model, optimizers),
                "stopped": bool(model.stop_training) and any(map(_is_over, self._callbacks)),
            },
            note=f"-epoch-{epoch}-step-{step}" if step else f"-epoch-{epoch}",
            wanted=wanted and _entries.is_finite(model),
        )

    # --- around the hooks of all callbacks ---------------------------------------------------

    def _attend(self, callbacks: Any) -> None:
        """Puts this callback around all others, wherever it stands in their list."""
        around: dict[str, Callable[..., None]] = {
            "on_epoch_begin": self._around_epoch_begin,
            "on_train_batch_begin": self._around_batch_begin,
            "on_train_batch_end": self._around_batch_end,
            "on_epoch_end": self._around_epoch_end,
        }
        for name, method in around.items():
            vars(callbacks)[name] = functools.partial(method, getattr(callbacks, name))
        stock_end = callbacks.on_train_end

        def on_train_end(logs: Logs = None) -> None:
            for name in (*around, "on_train_end"):
                vars(callbacks).pop(name, None)
            self.model._initial_epoch = self._former_epoch
            stock_end(logs)
            self._folder.unlock()

        vars(callbacks)["on_train_end"] = on_train_end

    def _around_epoch_begin(self, stock: Hook, epoch: int, logs: Logs = None) -> None:
        self.model._initial_epoch = self._former_epoch  # fit has read it
        self._epoch, self._step = epoch, 0
        if epoch == self.first_epoch and self.first_step:
            self._passing = Passing(self.model, self.first_step, self._metrics)
        stock(epoch, logs)

    def _around_batch_begin(self, stock: Hook, batch: int, logs: Logs = None) -> None:
        if self._passing is None:
            stock(batch, logs)

    def _around_batch_end(self, stock: Hook, batch: int, logs: Logs = None) -> None:
        before, self._step = self._step, batch + 1
        if self._passing is not None:
            self._passing = None if self._passing.done else self._passing
            return
        stock(batch, logs)
        if self._every is None:
            return
        is_last = self._step >= (self.params.get("steps") or self._step + 1)
        if self._step // self._every > before // self._every and not is_last:
            self._save(self._epoch, self._step, wanted=not self.model.stop_training)

    def _around_epoch_end(self, stock: Hook, epoch: int, logs: Logs = None) -> None:
        if self._passing is not None:  # the data ended before
            self._passing.end()
            self._passing = None
        complete = not self.model.stop_training
        stock(epoch, logs)
        self._save(epoch + 1, 0, wanted=complete)


def _is_over(callback: Any) -> bool:
    """Whether a callback has ended the training for good, unlike one that ends a job in time."""
    inner = getattr(callback, "_tfring_root_only", callback)
    return isinstance(inner, keras.callbacks.EarlyStopping) and inner.stopped_epoch > 0
