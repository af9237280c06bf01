"""`DistributedOptimizer` with the arguments of `horovod.tensorflow.keras`, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring import optimizer as _optimizer
from tfring._options import OPERATIONS
from tfring.compression import Compression, Compressor
from tfring.constants import Average, Sum
from tfring.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
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
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    strict: bool = False,
    sample_weighted: bool = False,
    reproducible: bool = False,
) -> Any:
    """Makes a Keras optimizer reduce its gradients over all ranks before it updates.

    It is `tfring.DistributedOptimizer`, where everything is told, with the order of
    arguments that Keras scripts use.

    Args:
        optimizer: A Keras optimizer.
        name: Prefix of the collectives' names. Defaults to "optimizer".
        device_dense: No effect.
        device_sparse: No effect.
        compression: How gradients travel: `Compression.none`, `fp16` or `bf16`.
        sparse_as_dense: Make `tf.IndexedSlices` dense before the reduction.
        gradient_predivide_factor: Divide by it before the sum over ranks and multiply by
            it after; needs `op=Average`.
        op: `Average` or `Sum`.
        backward_passes_per_step: Calls whose gradients are added up for one update.
        average_aggregated_gradients: Divide the sum over passes by their number.
        num_groups: Deprecated spelling of an integer `groups`.
        groups: Number of buckets, or lists of variables that are reduced together.
        process_set: The ranks that reduce together. Default: all.
        scale_local_gradients: Divide the gradients of local variables by the number of
            ranks in `process_set`.
        strict: A gradient that is None on some ranks only is an error instead of zeros.
        sample_weighted: Average over all ranks' samples instead of over ranks.
        reproducible: The same bits for any number of ranks.

    Returns:
        `optimizer` itself.

    Raises:
        TypeError: When an argument is of the wrong type.
        ValueError: When `op` is another one, or as `tfring.DistributedOptimizer`; whose
            updates also tell what they raise when ranks differ or a peer is lost.

    Example:

    >>> import keras, tfring.keras as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), op=hvd.Sum)
    """
    if op not in (Average, Sum):
        raise ValueError(
            "`op` must be Average or Sum. "
            f"Received: op={OPERATIONS.get(op, repr(op))}. For Adasum, use "
            "tfring.DistributedOptimizer."
        )
    return _optimizer.DistributedOptimizer(
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
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        strict=strict,
        sample_weighted=sample_weighted,
        reproducible=reproducible,
    )
