"""Training in which some layers stay each rank's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _local, _v1, keras_optimizer
from tfring import optimizer as _optimizer
from tfring.compression import Compression, Compressor
from tfring.constants import Average
from tfring.process_sets import ProcessSet, global_process_set
from tfring.tape import DistributedGradientTape

__all__ = ["PartialDistributedGradientTape", "PartialDistributedOptimizer"]


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    strict: bool = False,
    sample_weighted: bool = False,
) -> Any:
    """Makes a Keras optimizer reduce all gradients but those of some layers.

    Every rank must call it, with local layers or without. Give the same layers to
    `BroadcastGlobalVariablesCallback` as `local_variables`, where ranks must not start
    from one rank's weights.

    Args:
        optimizer: As in `DistributedOptimizer`, and so are all arguments not named here.
        name: Prefix of the collectives' names.
        device_dense: No effect.
        device_sparse: No effect.
        compression: How gradients travel.
        sparse_as_dense: Make `tf.IndexedSlices` dense before the reduction.
        gradient_predivide_factor: Divide by it before the sum over ranks, multiply after.
        op: `tfring.Average` or `tfring.Sum`.
        backward_passes_per_step: Calls whose gradients are added up for one update.
        average_aggregated_gradients: Divide the sum over passes by their number.
        groups: Number of buckets, or lists of variables that are reduced together.
        process_set: The ranks that reduce together.
        local_layers: A Keras layer or a collection of them, whose trainable weights,
            also those made later, stay each rank's own. Default None: no layer.
        scale_local_gradients: Divide their gradients by the number of ranks.
        strict: A gradient that is None on some ranks only is an error.
        sample_weighted: Average over all ranks' samples instead of over ranks.

    Returns:
        `optimizer` itself.

    Raises:
        ValueError: When `local_layers` is something else, and as `DistributedOptimizer`.
        TypeError: When `optimizer` is none of Keras, and as `DistributedOptimizer`; updates
            raise what its updates do when ranks differ or a peer is lost.

    Example:

    >>> import keras, tfring.keras as hvd
    >>> hvd.init()
    >>> own = keras.layers.Dense(1)
    >>> optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=own)
    """
    layers = _local.checked_layers(local_layers)
    if _v1.is_v1_optimizer(optimizer):
        raise TypeError(
            "`optimizer` must be a Keras optimizer. "
            f"Received: optimizer={optimizer!r}. For one of tf.compat.v1.train, use "
            "tfring.DistributedOptimizer and its register_local_var."
        )
    result = keras_optimizer.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        strict=strict,
        sample_weighted=sample_weighted,
    )
    _optimizer.register_local_layers(result, layers)
    return result


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    strict: bool = False,
    sample_weighted: bool = False,
) -> DistributedGradientTape:
    """Makes a tape reduce all gradients but those of some layers.

    Args:
        gradtape: As in `DistributedGradientTape`, and so are all arguments not named here.
        device_dense: No effect.
        device_sparse: No effect.
        compression: How gradients travel.
        sparse_as_dense: Make `tf.IndexedSlices` dense before the reduction.
        op: `tfring.Average`, `tfring.Sum` or `tfring.Adasum`.
        gradient_predivide_factor: Divide by it before the sum over ranks, multiply after.
        num_groups: Deprecated spelling of an integer `groups`.
        groups: Number of buckets, or lists of sources that are reduced together.
        process_set: The ranks that reduce together.
        local_layers: A Keras layer or a collection of them, whose trainable weights stay
            each rank's own. Default None: no layer.
        scale_local_gradients: Divide their gradients by the number of ranks.
        strict: A gradient that is None on some ranks only is an error.
        sample_weighted: Average over all ranks' samples instead of over ranks.

    Returns:
        A `DistributedGradientTape`.

    Raises:
        ValueError: When `local_layers` is something else, and as
            `DistributedGradientTape`.
        TypeError: As `DistributedGradientTape`; and `gradient` raises what its
            `gradient` does when ranks differ or a peer is lost.

    Example:

    >>> import keras, tensorflow as tf, tfring as hvd
    >>> hvd.init()
    >>> own = keras.layers.Dense(1, kernel_initializer="ones")
    >>> with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[own]) as tape:
    ...     loss = own(tf.constant([[2.0]]))
    >>> [g.numpy().tolist() for g in tape.gradient(loss, own.trainable_weights)]
    [[[2.0]], [1.0]]
    """
    layers = _local.checked_layers(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        strict=strict,
        sample_weighted=sample_weighted,
    )
    tape.register_local_layers(layers)
    return tape
