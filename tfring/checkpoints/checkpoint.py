"""`Checkpoint`: saves and resumes a training loop of one's own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from tfring import _keras
from tfring.checkpoints import _entries, _files, _ranks

__all__ = ["Checkpoint"]


class Checkpoint:
    """Files from which a training of several ranks goes on with the same bits.

    For `fit`, use `tfring.callbacks.TrainingCheckpoint`. A checkpoint is one file, written by rank
    0 from what all ranks have: all variables of the model, also the states of its random number
    generators; all of the optimizer, also the loss scale, gradients that are added up for a later
    update (`backward_passes_per_step`, `gradient_accumulation_steps`) and how many there are; the
    other variables. What is the same on all ranks is stored once, what differs by rank. On as many
    ranks as before, each rank gets its own back, bit by bit. On more or fewer, gradients that wait
    for an update make the same update, seeds of ranks that are new stay as they are, and other
    things that differ (local variables, moving averages) come from the rank of the same number,
    counted around.

    Only rank 0 needs the folder. A file appears whole and is then on the disk: a process that
    is killed, at any moment, leaves the one before. A damaged file is passed over with a warning.
    Not stored: the position in the data, and random numbers outside of the model.

    Args:
        folder: where the files are; made by rank 0. One training at a time uses it, which holds a
            lock there from its first `save` or `restore` until `close` or its end.
        model: a Keras 3 model, built.
        optimizer: one, or a list. Default: those of `model`, from `compile` or its attributes.
        variables: others, of TensorFlow or Keras.
        keep: number of files that stay. Default 2.

    Raises:
        ValueError: there is nothing to save, the model is not built, or `keep` makes no sense.

    Example:

    >>> import keras, tempfile, tfring as hvd
    >>> hvd.init()
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam())
    >>> optimizer.build(model.trainable_variables)
    >>> folder = hvd.broadcast_object(tempfile.mkdtemp())
    >>> checkpoint = hvd.Checkpoint(folder, model, optimizer)
    >>> position = checkpoint.restore() or {"step": 0}
    >>> path = checkpoint.save(step=position["step"] + 100)
    >>> checkpoint.restore()
    {'step': 100}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: Any = None,
        optimizer: Any = None,
        variables: Sequence[Any] = (),
        keep: int = 2,
    ) -> None:
        check_keep(keep)
        self._folder = _files.Folder(folder, keep)
        self._model = model
        given = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._optimizers = (
            _entries.optimizers_of(model) if optimizer is None else [o for o in given if o]
        )
        self._variables = list(variables)
        if model is None and not self._optimizers and not self._variables:
            raise ValueError(
                "`model`, `optimizer` or `variables` must be given. Received: none of them"
            )
        for part in [model, *self._optimizers]:
            if part is not None and _keras.is_legacy(part):
                raise NotImplementedError(
                    f"`Checkpoint` is for Keras 3 only. Received: {part!r} of Keras 2. Use "
                    "tf.train.Checkpoint on rank 0, and broadcast_variables after it."
                )
        if model is not None:
            require_built(model)

    def save(self, **position: Any) -> str:
        """Writes a checkpoint; every rank must call it, at the same position.

        Args:
            **position: what `restore` is to return, such as `epoch=3, step=120`: numbers, texts,
                and lists and dictionaries of such, the same on all ranks.

        Returns:
            The path of the file.

        Raises:
            TypeError: `position` cannot be stored.
            RuntimeError: the ranks' positions differ; on ranks other than 0, when rank 0 could
                not write. Another job uses the folder.
            OSError: on rank 0, when it could not write; checkpoints that were there stay.
            tf.errors.AbortedError: a peer is lost.
        """
        _check_position(position)
        note = "".join(
            f"-{name}-{position[name]}" for name in ("epoch", "step") if name in position
        )
        path = _ranks.save(
            self._folder,
            self._entries(),
            position=position,
            state={},
            about={"optimizers": _entries.places(self._model, self._optimizers)},
            note=note if note.replace("-", "").isalnum() else "",
        )
        return str(path)

    def restore(self) -> dict[str, Any] | None:
        """Takes everything from the newest whole checkpoint; every rank must call it.

        Optimizers that are not built are built.

        Returns:
            What was given to `save`; None where there is no checkpoint.

        Raises:
            ValueError: on all ranks, when the checkpoint is of other variables; the text names the
                first that differs. It was written by a newer tfring.
            RuntimeError: on ranks other than 0, when rank 0 could not read. Another job uses the
                folder.
            tf.errors.AbortedError: a peer is lost.
        """
        found = _ranks.find(self._folder)
        if found is None:
            return None
        _entries.build(self._model, self._optimizers, found.manifest["optimizers"])
        entries = self._entries()
        _ranks.check(found, entries)
        _ranks.assign(found, entries)
        return dict(found.manifest["position"])

    def close(self) -> None:
        """Lets other jobs use the folder."""
        self._folder.unlock()

    def _entries(self) -> _entries.Entries:
        return _entries.collect(self._model, self._optimizers, self._variables)


def check_keep(keep: Any) -> None:
    """Raises ValueError unless `keep` is a number of files."""
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f"`keep` must be a number of files, 1 or more. Received: keep={keep!r}")


def require_built(model: Any) -> None:
    """Raises ValueError unless a model has its variables."""
    if not model.built:
        raise ValueError(
            "The model must be built before, so that a checkpoint can be restored into it: give "
            f"it a keras.Input, or call model.build(input_shape). Received: model={model!r}"
        )


def _check_position(position: dict[str, Any]) -> None:
    try:
        same = json.loads(json.dumps(position)) == position
    except (TypeError, ValueError):
        same = False
    if not same:
        raise TypeError(
            "What `save` is given must be numbers, texts, and lists and dictionaries of such. "
            f"Received: {position!r}"
        )
