"""Which batches of a data set each rank works on, in `evaluate` and `predict`.

Whole batches, the same that one process would make: some losses, those with masks for example,
depend on what is in a batch together.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfring import _keras, world

_BATCH = 32  # Keras' own default


class Part(NamedTuple):
    """What one rank works on.

    Args:
        data: For the method of the model; None where there is no batch for this rank.
        sizes: Of the batches, in order, once the model has seen them, where the ranks take turns;
            None where each rank has one run of batches.
    """

    data: dict[str, Any] | None
    sizes: list[int] | None = None


def of_rank(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None,
    steps: int | None,
) -> Part:
    """Returns this rank's part of data that are the same on all ranks.

    Raises:
        TypeError: `x` is of a kind that cannot be divided.
        ValueError: The arrays have different lengths; or the data have no end, and `steps` is None.
    """
    others = {"y": y, "sample_weight": sample_weight}
    rest = {name: value for name, value in others.items() if value is not None}
    if isinstance(x, tf.data.Dataset):
        return _of_dataset(x, rest, steps)
    if isinstance(x, types.GeneratorType):
        return _of_generator(x, rest, steps)
    if isinstance(x, _keras.module().utils.Sequence):
        return _of_sequence(x, rest, steps)
    return _of_arrays({"x": x, **rest}, batch_size, steps)


def _bounds(batches: int) -> tuple[int, int]:
    rank, size = world.rank(), world.size()
    return batches * rank // size, batches * (rank + 1) // size


def _limited(batches: int, steps: int | None) -> int:
    return batches if steps is None else min(batches, steps)


def _of_arrays(data: dict[str, Any], batch_size: int | None, steps: int | None) -> Part:
    leaves = tf.nest.flatten(data)
    odd = [type(leaf).__name__ for leaf in leaves if len(getattr(leaf, "shape", ())) == 0]
    if odd or not leaves:
        raise TypeError(
            "`x`, `y` and `sample_weight` must be arrays, tensors, or lists, tuples and dicts of "
            "them; or `x` a tf.data.Dataset, keras.utils.PyDataset or generator of batches. "
            f"Received: {', '.join(sorted(set(odd)))}. Where you can divide the data yourself, "
            "give each rank its own with `sharded=True`."
        )
    lengths = {_length(leaf) for leaf in leaves}
    if len(lengths) > 1:
        raise ValueError(
            "`x`, `y` and `sample_weight` must have the same number of samples. "
            f"Received: arrays of {', '.join(map(str, sorted(lengths)))} samples"
        )
    rows = lengths.pop()
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"`batch_size` must be 1 or more. Received: batch_size={batch_size}")
    size = batch_size or (-(-rows // steps) if steps else _BATCH)  # as Keras has it
    if size < 1:
        return Part(None)
    first, last = _bounds(_limited(-(-rows // size), steps))
    if first == last:
        return Part(None)
    start, stop = first * size, min(last * size, rows)
    part = tf.nest.map_structure(lambda leaf: _slice(leaf, start, stop), data)
    return Part({**part, "batch_size": size})


def _length(leaf: Any) -> int:
    return int(leaf.nrows()) if isinstance(leaf, tf.RaggedTensor) else int(leaf.shape[0])


def _slice(leaf: Any, start: int, stop: int) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.shape[1:]
        offset = [start, *(0 for _ in rest)]
        return tf.sparse.slice(leaf, offset, [stop - start, *rest])
    return (leaf.iloc if hasattr(leaf, "iloc") else leaf)[start:stop]  # pandas


def _of_dataset(x: Any, rest: dict[str, Any], steps: int | None) -> Part:
    known = int(x.cardinality())
    if known == tf.data.INFINITE_CARDINALITY:
        known = _needed(steps, "x=a tf.data.Dataset without end")
    if known != tf.data.UNKNOWN_CARDINALITY:
        first, last = _bounds(_limited(known, steps))
        part = x.skip(first).take(last - first)
        return Part({"x": part, **rest} if last > first else None)
    sizes: list[int] = []
    # The ranks' turns, each of one batch.
    part = (x if steps is None else x.take(steps)).shard(world.size(), world.rank())
    return Part({"x": part.map(_noting(sizes)), **rest}, sizes)


def _noting(sizes: list[int]) -> Callable[..., Any]:
    """Returns a function of batches that appends their sizes to the list."""

    def note(size: np.ndarray) -> np.ndarray:
        sizes.append(int(size))
        return size

    def identity(*batch: Any) -> Any:
        leaf = tf.nest.flatten(batch)[0]
        size = leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]
        noted = tf.numpy_function(note, [size], size.dtype)
        with tf.control_dependencies([noted]):
            result = tf.nest.map_structure(tf.identity, batch, expand_composites=True)
        return result if len(result) > 1 else result[0]

    return identity


def _of_generator(x: Any, rest: dict[str, Any], steps: int | None) -> Part:
    mine = itertools.islice(x, world.rank(), steps, world.size())
    first = list(itertools.islice(mine, 1))
    sizes: list[int] = []

    def batches() -> Iterator[Any]:
        for batch in itertools.chain(first, mine):
            sizes.append(_length(tf.nest.flatten(batch)[0]))
            yield batch

    # Keras takes nothing but a generator proper for one.
    return Part({"x": batches(), **rest} if first else None, sizes)


def _of_sequence(x: Any, rest: dict[str, Any], steps: int | None) -> Part:
    batches = getattr(x, "num_batches", None) if hasattr(x, "num_batches") else len(x)
    if batches is None:
        batches = _needed(steps, "x=a PyDataset without end")
    first, last = _bounds(_limited(batches, steps))
    return Part({"x": _run(x, first, last), **rest} if last > first else None)


def _run(whole: Any, first: int, last: int) -> Any:
    """Returns the batches of a Sequence from `first` to before `last`."""
    base = _keras.module().utils.Sequence
    names = ("workers", "use_multiprocessing", "max_queue_size")
    options = {} if _keras.IS_LEGACY else {name: getattr(whole, name) for name in names}

    class Run(base):  # type: ignore[misc, valid-type]
        def __len__(self) -> int:
            return last - first

        def __getitem__(self, index: int) -> Any:
            return whole[first + index]

        def on_epoch_begin(self) -> None:
            if hasattr(whole, "on_epoch_begin"):
                whole.on_epoch_begin()

        def on_epoch_end(self) -> None:
            whole.on_epoch_end()

    return Run(**options)


def _needed(steps: int | None, received: str) -> int:
    if steps is None:
        raise ValueError(f"`steps` must be given for data without end. Received: {received}")
    return steps
