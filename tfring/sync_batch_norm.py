"""`SyncBatchNormalization`: batch normalization over the samples of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfring import _calls, _checks, _keras, process_sets, world
from tfring.constants import Sum
from tfring.process_sets import ProcessSet, global_process_set

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="tfring")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` whose batch is that of all ranks together.

    Use it where each rank's own batch is too small for good statistics. In training, mean and
    variance are those of all ranks' samples, each sample counting once: ranks may have batches of
    different sizes, or none. Outputs, gradients (averaged over ranks, as `DistributedOptimizer`
    does) and moving statistics are those of one process with the whole batch, and the moving
    statistics are the same bits on every rank. Inference uses the moving statistics and no
    collective. In a world of one it is the stock layer.

    One collective of `3 * channels * ranks` numbers per call in training, one of `2 * channels`
    in its gradient; every rank of the set must run both equally often. Each rank sums its squares
    about its own mean, and these are combined by the formula of Chan, Golub and LeVeque (1983,
    doi:10.1080/00031305.1983.10483115): no `E[x^2] - E[x]^2`, so large means do no harm. 16-bit
    inputs are computed in float32. Samples that `mask` hides do not count. Where no rank has any
    sample, the moving statistics are used and stay. There are no second derivatives through the
    statistics.

    A file with this layer needs tfring to load. What `model.export` writes does not. Where there
    is no tfring, a stock layer of the same name takes its place: with `class
    SyncBatchNormalization(keras.layers.BatchNormalization): pass`, load with
    `custom_objects={"tfring>SyncBatchNormalization": SyncBatchNormalization}`.

    Args:
        fused: False, as in Horovod; there is no fused kernel.
        process_set: ranks whose samples are taken together. Default: all. A loaded or cloned layer
            gets the registered set with the same ranks; where there is none, register
            `layer.process_set` before training.
        **kwargs: arguments of `keras.layers.BatchNormalization`, by name.

    Raises:
        ValueError: `fused` is not False; `synchronized`, which is for tf.distribute, is True; in
            training, when `process_set` is not registered.
        NotInitializedError: in training, before `init`.
        tf.errors.InvalidArgumentError: in training, on a rank outside of `process_set`.
        tf.errors.FailedPreconditionError: in training, when ranks' channels differ in number.
        tf.errors.AbortedError: in training, when a peer failed, left, or did not come in time.

    Example:

    >>> import keras, numpy as np, tfring as hvd
    >>> hvd.init()
    >>> layer = hvd.SyncBatchNormalization(momentum=0.9)
    >>> _ = layer(np.array([[0.0], [4.0]], "float32"), training=True)
    >>> round(layer.moving_mean.numpy().item(), 3)
    0.2
    """

    _tfring_has_collectives = True  # tfring._xla_keras.MARK

    def __init__(
        self,
        fused: bool | None = False,
        process_set: ProcessSet = global_process_set,
        **kwargs: Any,
    ) -> None:
        _keras.require_3("SyncBatchNormalization")
        if fused is not False:
            raise ValueError(
                "`fused` must be False: statistics over ranks need their own kernels. Give other "
                f"arguments by name. Received: fused={fused!r}"
            )
        if kwargs.get("synchronized"):
            raise ValueError(
                "`synchronized` is for tf.distribute; this layer takes tfring's ranks together "
                "without it. Received: synchronized=True"
            )
        if not hasattr(keras.layers.BatchNormalization, "_moments"):
            raise RuntimeError(
                "SyncBatchNormalization does not know the BatchNormalization of Keras "
                f"{keras.__version__}. Use another version of Keras, or of tfring."
            )
        super().__init__(**kwargs)
        self.process_set = process_set

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments; `process_set` as its ranks, and only where it is not global."""
        config = super().get_config()
        if self.process_set is not global_process_set:
            config["process_set"] = list(self.process_set.ranks or ())
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SyncBatchNormalization:
        """Makes a layer from what `get_config` returned."""
        config = dict(config)
        ranks = config.pop("process_set", None)
        if ranks is not None:
            config["process_set"] = process_sets.of_ranks(ranks)
        return super().from_config(config)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Returns mean and variance of each channel over all ranks' samples."""
        group = _checks.process_set(self.process_set)
        if _checks.size_of(group) == 1:
            return super()._moments(inputs, mask)
        count, mean, squares = _local_moments(inputs, mask, self.axis)
        mean, variance, total = _combined(count, mean, squares, group)
        if mask is None:
            some = total > 0
            mean = tf.where(some, mean, tf.cast(self.moving_mean, mean.dtype))
            variance = tf.where(some, variance, tf.cast(self.moving_variance, mean.dtype))
        return mean, variance


def _local_moments(inputs: Any, mask: Any, axis: int) -> tuple[Any, Any, Any]:
    """Returns each channel's count, mean and sum of squares about the mean, on this rank.

    All have shape (channels,) and the dtype of `inputs`; mean and sum are 0 where the count is.
    """
    axes = [i for i in range(len(inputs.shape)) if i != axis % len(inputs.shape)]
    if mask is None:
        total = tf.reduce_sum(inputs, axes, keepdims=True)
        each = tf.size(inputs, tf.int64) // tf.size(total, tf.int64)
        count = tf.fill(tf.shape(total), tf.cast(each, inputs.dtype))
    else:
        shown = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
        inputs = tf.where(shown, inputs, 0)  # what is hidden may be NaN
        total = tf.reduce_sum(inputs, axes, keepdims=True)
        count = tf.reduce_sum(tf.cast(shown, inputs.dtype), axes, keepdims=True)
    mean = _over(total, count)
    deviations = inputs - mean if mask is None else tf.where(shown, inputs - mean, 0)
    squares = tf.reduce_sum(tf.square(deviations), axes)
    return tf.reshape(count, [-1]), tf.reshape(mean, [-1]), squares


def _combined(count: Any, mean: Any, squares: Any, group: int) -> tuple[Any, Any, Any]:
    """Returns mean, variance and count of each channel over the ranks of a process set.

    With n, m, s the count, mean and sum of squares of each rank, N = sum n and M = sum n m / N:

        variance = sum(s + n (m - M)^2) / N
        d M / d m = n / N,    d variance / d m = 2 n (m - M) / N,    d variance / d s = 1 / N

    A rank's statistics enter every rank's loss, so their cotangents are summed over ranks first.
    """

    ranks = process_sets.ranks_of(group)
    below = ranks.index(world.rank())

    @tf.custom_gradient
    def combine(count: Any, mean: Any, squares: Any) -> Any:
        # Every rank fills its own row of zeros, so that the sum is all ranks' rows, bit for bit.
        # An allgather would be the same, but is not served while a rank has joined.
        rows = tf.stack([count, mean, squares])[tf.newaxis]
        rows = tf.pad(rows, [[below, len(ranks) - below - 1], [0, 0], [0, 0]])
        counts, means, sums = tf.unstack(_sum(rows, group), axis=1)
        total = tf.reduce_sum(counts, 0)
        center = _over(tf.reduce_sum(counts * means, 0), total)
        # Once more from there: the first division rounds in units of the mean.
        center += _over(tf.reduce_sum(counts * (means - center), 0), total)
        variance = _over(tf.reduce_sum(sums + counts * tf.square(means - center), 0), total)

        def gradient(d_center: Any, d_variance: Any, _: Any) -> Any:
            d_center, d_variance = tf.unstack(_sum(tf.stack([d_center, d_variance]), group))
            share = _over(count, total)
            d_mean = share * (d_center + 2 * (mean - center) * d_variance)
            return _last_gradient(tf.zeros_like(count), d_mean, _over(d_variance, total))

        return (center, variance, total), gradient

    return combine(count, mean, squares)


@tf.custom_gradient
def _last_gradient(*gradients: Any) -> Any:
    """Identity; a wrong second derivative would otherwise come of it, without a word."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            "SyncBatchNormalization has no second derivatives through its statistics. Use "
            "BatchNormalization, or training=False, where gradients are differentiated."
        )

    return gradients, refuse


def _over(numerator: Any, denominator: Any) -> Any:
    return tf.math.divide_no_nan(numerator, denominator)


def _sum(tensor: Any, group: int) -> Any:
    return _calls.allreduce([tensor], Sum, process_set=group)[0]
