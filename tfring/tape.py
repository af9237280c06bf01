"""`DistributedGradientTape`: gradients reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf

from tfring import _local, _old_names, _reducer, _sharing, _weights
from tfring._autograph import as_it_stands
from tfring._options import Options, unwrapped
from tfring.compression import Compression, Compressor
from tfring.constants import Average
from tfring.process_sets import ProcessSet, global_process_set


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
        op: `tfring.Average`, `tfring.Sum`, or `tfring.Adasum` for dense gradients.
        gradient_predivide_factor: Divide by it before the sum over ranks and multiply by
            it after; needs `op=Average`.
        num_groups: Deprecated spelling of an integer `groups`.
        groups: Number of buckets, or lists of sources that are reduced together, matched
            by identity. Sources in no list, and all by default, come in buckets of at
            most the fusion threshold.
        process_set: The ranks that reduce together. Default: all. Others get their own
            gradients and exchange nothing.
        scale_local_gradients: Divide the gradients of local sources by the number of
            ranks in `process_set`. Default True.
        strict: A gradient that is None on some ranks only is an error instead of zeros.
        sample_weighted: Average gradients over all ranks' samples instead of over ranks; tell
            each batch's number by `tfring.batch_samples` around `gradient`. Needs `op=Average`.

    Raises:
        TypeError: When `gradtape` is no `tf.GradientTape`.
        ValueError: When an argument makes no sense, or the number of ranks is no power of
            two for `op=Adasum`.

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
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        strict: bool = False,
        sample_weighted: bool = False,
    ) -> None:
        del device_dense, device_sparse
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(
                "`gradtape` must be a tf.GradientTape. "
                f"Received: gradtape={gradtape!r} of type {type(gradtape).__name__}"
            )
        _old_names.install()
        self._gradtape = gradtape
        self._local = _local.LocalVariables()
        self._options = Options(
            op=op,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
            strict=strict,
            sample_weighted=sample_weighted,
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

    def watch(self, tensor: Any) -> None:
        """As `tf.GradientTape.watch`; takes variables of Keras too.

        Args:
            tensor: A tensor or variable, or a nested structure of them.
        """
        self._gradtape.watch(tf.nest.map_structure(unwrapped, tensor))

    def register_local_source(self, source: Any) -> None:
        """Lets each rank keep its own gradient of `source`; see `scale_local_gradients`.

        Args:
            source: A variable of TensorFlow or Keras, or a tensor.
        """
        self._local.add(source, "source")

    def register_local_layers(self, layers: Sequence[Any]) -> None:
        """Lets each rank keep its own gradients of layers' trainable weights.

        Args:
            layers: Keras layers, built or not.
        """
        self._local.add_layers(layers)

    @as_it_stands
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Computes gradients as the tape does and reduces them over all ranks.

        A source without a gradient on some ranks counts as zeros there; without one on all
        ranks it gives None.

        Args:
            target: As in `tf.GradientTape.gradient`.
            sources: A tensor or variable of TensorFlow or Keras, or a nested structure.
            output_gradients: As in `tf.GradientTape.gradient`.
            unconnected_gradients: As in `tf.GradientTape.gradient`. A bool is taken for
                `use_generic_names`, which is fourth in Horovod.
            use_generic_names: No effect: names come from positions always.

        Returns:
            Gradients in the structure of `sources`, alike on all ranks but for local
            sources.

        Raises:
            tf.errors.FailedPreconditionError: On all ranks, when their sources or options
                differ.
            tf.errors.InvalidArgumentError: On all ranks, when `sample_weighted` and a rank did
                not tell its number of samples.
            tf.errors.AbortedError: When a peer is lost.
            NotImplementedError: On all ranks, for sparse gradients with `op=Adasum`.
        """
        if isinstance(unconnected_gradients, bool):
            unconnected_gradients = tf.UnconnectedGradients.NONE
        flat_sources = tf.nest.flatten(sources)
        local = self._gradtape.gradient(
            target,
            flat_sources,
            output_gradients=output_gradients,
            unconnected_gradients=unconnected_gradients,
        )
        return tf.nest.pack_sequence_as(sources, self._reduced(local, flat_sources))

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Computes gradients as `gradient` does, those of local sources apart.

        Args:
            target: As in `tf.GradientTape.gradient`.
            sources: As in `gradient`.
            output_gradients: As in `tf.GradientTape.gradient`.
            use_generic_names: No effect.

        Returns:
            A list of (source, gradient) for local sources, which are not reduced, and
            one for all others, which are.
        """
        flat_sources = tf.nest.flatten(sources)
        gradients = self.gradient(target, flat_sources, output_gradients)
        pairs = list(zip(flat_sources, gradients, strict=True))
        shared, own = self._local.split(flat_sources)
        return [pairs[i] for i in own], [pairs[i] for i in shared]

    def _reduced(self, gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        options = self._options
        if not getattr(self._gradtape, "_persistent", False):
            options.check_known(sources, "`sources`")
        shared, own = self._local.split(sources)
        some, theirs = [sources[i] for i in shared], [gradients[i] for i in shared]
        reducer = _shared_reducer(options)
        remark = f"local sources={bool(own)}"
        plan = reducer.plan_for(theirs, some, range(len(some)), remark=remark)
        share = _sharing.Share(plan, shared, own, [], frozenset())
        filled = list(gradients)
        for i, gradient in zip(shared, reducer.fill(plan, theirs, some), strict=True):
            filled[i] = gradient
        if options.sample_weighted:
            numbers = _weights.numbers()
            weighed = _weights.weighed(filled, share.not_averaged, numbers)
            result = _sharing.sample_means(reducer, options, share, weighed, numbers)
        else:
            result = _sharing.reduced(reducer, options, share, filled)
        if options.takes_part():
            result = [_reducer.mark_reduced(gradient) for gradient in result]
        return result


# Tapes live for one step and plans for the whole training: tapes with equal options
# share a reducer, so that the plan is not made anew in every step of an eager loop.
_reducers: dict[tuple[Any, ...], _reducer.Reducer] = {}


def _shared_reducer(options: Options) -> _reducer.Reducer:
    groups = tuple(sorted(options.group_of().items()))
    key = (*options.lines(), options.sparse_as_dense, groups, id(options.process_set))
    if key not in _reducers:
        _reducers[key] = _reducer.Reducer("tape", options)
    return _reducers[key]
