"""`load_model`: a saved model whose optimizer is distributed."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tfring import _keras
from tfring.compression import Compression, Compressor, checked
from tfring.keras_optimizer import DistributedOptimizer

__all__ = ["load_model"]


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
    *,
    safe_mode: bool = True,
    **optimizer_options: Any,
) -> Any:
    """Loads a model as `keras.models.load_model` does, and makes its optimizer distributed.

    The optimizer keeps its saved state: iterations, learning rate, slots, loss scale. A file of
    a distributed model is the same as that of any other, so it also loads without tfring. From
    HDF5 files the optimizer's slots and short names of losses ("mse") are restored too, which
    Keras 3 alone leaves out or refuses. Gradients that were added up but not yet applied
    (`backward_passes_per_step`) are not saved. Keras 2 saves the state of its legacy optimizers in
    HDF5 files only.

    Files are only read: all ranks may load the same one, and no rank waits for another. Where
    only one rank can read it, load there, build the same model elsewhere, and let
    `BroadcastGlobalVariablesCallback` copy weights and state.

    Args:
        filepath: a `.keras`, `.h5` or `.hdf5` file.
        custom_optimizers: optimizer classes of your own that the file may name.
        custom_objects: other names in the file, and their classes or functions.
        compression: how gradients travel, see `DistributedOptimizer`.
        legacy_opts: no effect with Keras 2, which finds them by itself; must be False with Keras 3,
            which has none.
        safe_mode: refuse files that hold Python code, as `keras.models.load_model` does.
        **optimizer_options: other arguments of `DistributedOptimizer`, such as `op`,
            `backward_passes_per_step`, `process_set`.

    Returns:
        The model, compiled. A file without training configuration gives a model that is not
        compiled, and the options of the optimizer are not used.

    Raises:
        TypeError: `custom_optimizers` holds something that is no optimizer class, or an option is
            unknown.
        ValueError: `legacy_opts` is True, an option breaks its rule, the file cannot be read, or
            its optimizer state does not fit the model.

    Example:

    >>> import keras, os, tempfile, tfring.keras as hvd
    >>> hvd.init()
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(os.path.join(folder, "model.keras"))
    ...     again = hvd.load_model(os.path.join(folder, "model.keras"))
    >>> type(again.optimizer).__name__
    'Adam'
    """
    checked(compression)
    if legacy_opts and not _keras.IS_LEGACY:
        raise ValueError(
            "`legacy_opts` must be False: Keras 3 has no legacy optimizers. Leave it out, and save "
            "the model once more where the file names one. Received: legacy_opts=True"
        )
    filepath = os.fspath(filepath)
    objects = {**_by_name(custom_optimizers), **(custom_objects or {})}
    is_hdf5 = filepath.endswith((".h5", ".hdf5")) and not _keras.IS_LEGACY
    if is_hdf5:
        objects = {**_short_names(filepath), **objects}
    models = _keras.module().models
    model = models.load_model(filepath, custom_objects=objects, safe_mode=safe_mode)
    if getattr(model, "optimizer", None) is None:
        return model
    if is_hdf5:
        with keras.saving.custom_object_scope(objects):
            model.optimizer = _restored(model.optimizer, filepath, model.trainable_variables)
    DistributedOptimizer(model.optimizer, compression=compression, **optimizer_options)
    return model


def _by_name(custom_optimizers: Iterable[type] | None) -> dict[str, type]:
    classes = list(custom_optimizers or ())
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, _keras.optimizer_classes())):
            raise TypeError(
                "`custom_optimizers` must hold subclasses of keras.optimizers.Optimizer. "
                f"Received: {cls!r} in custom_optimizers"
            )
    return {cls.__name__: cls for cls in classes}


def _short_names(filepath: str) -> dict[str, str]:
    """Returns each text that stands for a loss or metric, as itself: `compile` knows it.

    Keras 3 saves what `compile` was given, "mse" say, but cannot read that back by itself.
    """
    import h5py

    if not os.path.exists(filepath):
        return {}  # Keras says so better
    with h5py.File(filepath, "r") as file:
        config = json.loads(file.attrs.get("training_config", "{}"))
    given = [config.get(key) for key in ("loss", "metrics", "weighted_metrics")]
    return {name: name for name in _texts(given)}


def _texts(config: Any) -> Iterator[str]:
    if isinstance(config, str):
        yield config
    elif isinstance(config, dict):
        if "class_name" not in config:
            yield from _texts(list(config.values()))
    elif isinstance(config, (list, tuple)):
        for part in config:
            yield from _texts(part)


def _restored(optimizer: Any, filepath: str, variables: list[Any]) -> Any:
    """Returns the optimizer anew, with the state that an HDF5 file has for `variables`.

    Keras builds it for the variables that the model has outside of its layers, usually none: its
    slots stay away, and then it takes no others.
    """
    values = _saved_state(filepath)
    fresh = type(optimizer).from_config(optimizer.get_config())
    if len(values) > len(fresh.variables):
        fresh.build(variables)
    known = fresh.variables
    if [tuple(v.shape) for v in known[: len(values)]] != [v.shape for v in values]:
        raise ValueError(
            "The optimizer state in the file must fit the model. Load with keras.models."
            "load_model(filepath, compile=False) to go without it. "
            f"Received: {len(values)} values of shapes {[v.shape for v in values]}, where "
            f"{type(fresh).__name__} has {len(known)} variables"
        )
    for variable, value in zip(known, values, strict=False):
        variable.assign(value)
    return fresh


def _saved_state(filepath: str) -> list[Any]:
    """Returns the arrays of the optimizer's variables, in their order."""
    import h5py

    with h5py.File(filepath, "r") as file:
        group = file.get("optimizer_weights")
        if group is None:
            return []
        return [group[name][()] for name in _weight_names(group.attrs)]


def _weight_names(attributes: Any) -> Iterator[Any]:
    """Yields the names of variables; where they are many, they are spread over attributes."""
    yield from attributes.get("weight_names", ())
    for part in itertools.count():
        if f"weight_names{part}" not in attributes:
            return
        yield from attributes[f"weight_names{part}"]
