"""`DistributedGradientTape`: gradients reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf

from tfring import _reducer, world
from tfring._autograph import as_it_stands
from tfring.compression import Compression, Compressor
from tfring.constants import Average


class DistributedGradientTape:
    """A `tf.GradientTape` whose `gradient` returns what all ranks' gradients reduce to.

    Wraps any tape, persistent or not, before, while or after it records. `gradient` is
    a collective: every rank must call it equally often, with sources of the same shapes
    in the same order. Other methods are those of the tape; `jacobian` and
    `batch_jacobian` are not reduced.

    An optimizer made by `DistributedOptimizer` recognises the gradients and does not
    reduce them again, unless they were changed (clipped, say) or have crossed the boundary
    of a `tf.function` in between: pass them on as they are, or use a stock optimizer.

    Args:
        gradtape: The tape.
        device_dense: No effect.
        device_sparse: No effect.
        compression: How gradients travel: `Compression.none`, `fp16` or `bf16`.
        sparse_as_dense: Make `tf.IndexedSlices` dense before the reduction.
        op: `tfring.Average` or `tfring.Sum`.
        gradient_predivide_factor: Divide by it before the sum over ranks and multiply by
            it after; needs `op=Average`.
        num_groups: Deprecated spelling of an integer `groups`.
        groups: Number of buckets, or lists of sources that are reduced together.
        strict: A gradient that is None on some ranks only is an error instead of zeros.

    Raises:
        TypeError: When `gradtape` is no `tf.GradientTape`.
        ValueError: When an argument makes no sense.

    Example:

    >>> import tensorflow as tf, tfring as hvd
    >>> hvd.init()
    >>> w = tf.Variable(3.0)
    >>> with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
    ...     loss = w * w
    >>> float(tape.gradient(loss, w))
    6.0
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: int | Sequence[Sequence[Any]] | None = None,
        strict: bool = False,
    ) -> None:
        del device_dense, device_sparse
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(
                "`gradtape` must be a tf.GradientTape. "
                f"Received: gradtape={gradtape!r} of type {type(gradtape).__name__}"
            )
        self._gradtape = gradtape
        self._options = _reducer.Options(
            op=op,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            strict=strict,
        )

    def __enter__(self) -> DistributedGradientTape:
        self._gradtape.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._gradtape.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:
        if name == "_gradtape":  # not set yet: do not recurse
            raise AttributeError(name)
        return getattr(self._gradtape, name)

    @as_it_stands
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Computes gradients as the tape does and reduces them over all ranks.

        A source without a gradient on some ranks counts as zeros there; without one on all
        ranks it gives None.

        Args:
            target: As in `tf.GradientTape.gradient`.
            sources: A tensor or variable of TensorFlow or Keras, or a nested structure.
            output_gradients: As in `tf.GradientTape.gradient`.
            unconnected_gradients: As in `tf.GradientTape.gradient`.

        Returns:
            Gradients in the structure of `sources`, alike on all ranks.

        Raises:
            tf.errors.FailedPreconditionError: On all ranks, when their sources or options
                differ.
            tf.errors.AbortedError: When a peer is lost.
        """
        flat_sources = tf.nest.flatten(sources)
        local = self._gradtape.gradient(
            target,
            flat_sources,
            output_gradients=output_gradients,
            unconnected_gradients=unconnected_gradients,
        )
        reducer = _shared_reducer(self._options)
        plan = reducer.plan_for(local, flat_sources, range(len(flat_sources)))
        reduced = reducer.reduce(plan, reducer.fill(plan, local, flat_sources))
        if world.size() > 1:
            reduced = [_reducer.mark_reduced(gradient) for gradient in reduced]
        return tf.nest.pack_sequence_as(sources, reduced)


# Tapes live for one step and plans for the whole training: tapes with equal options
# share a reducer, so that the plan is not made anew in every step of an eager loop.
_reducers: dict[tuple[Any, ...], _reducer.Reducer] = {}


def _shared_reducer(options: _reducer.Options) -> _reducer.Reducer:
    groups = tuple(sorted(options.group_of().items()))
    key = (*options.lines(), options.sparse_as_dense, groups)
    if key not in _reducers:
        _reducers[key] = _reducer.Reducer("tape", options)
    return _reducers[key]
