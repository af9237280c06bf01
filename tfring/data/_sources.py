"""What kinds of data sets there are, and what of one must be alike on all ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfring.data._fingerprint import fingerprint

Kind = Literal["dataset", "files", "arrays", "list"]

_KINDS = (
    "`data` must be a tf.data.Dataset, an array or a tuple, list or dict of arrays of equal "
    "lengths, a list of samples, or a list of file names. "
)


class Source(NamedTuple):
    """A data set before it is cut.

    Attributes:
        kind: how it is cut.
        length: number of elements, of rows, or of files; None: unknown; -1: endless.
        traits: what must be the same on all ranks, by name.
    """

    kind: Kind
    length: int | None
    traits: dict[str, Any]


def source_of(data: Any, size: int) -> Source:
    """Returns what is known about a data set.

    Args:
        data: the data set.
        size: number of ranks that share it.

    Raises:
        TypeError: it is of a kind that cannot be cut.
        ValueError: its arrays have different lengths, or its order is not the same everywhere.
    """
    if isinstance(data, tf.data.Dataset):
        return _dataset(data, size)
    if isinstance(data, (list, tuple)) and not data:
        raise ValueError("`data` is empty; did a pattern of file names match none? Received: []")
    if isinstance(data, (list, tuple)) and all(map(is_path, data)):
        names = [os.path.basename(os.fspath(path)) for path in data]
        return Source("files", len(names), {"the list of files": _named(names)})
    if isinstance(data, list) and all(isinstance(item, (int, float, bytes)) for item in data):
        return Source("list", len(data), {"the list": fingerprint(np.array(data, object))})
    return _arrays(data)


def is_path(value: Any) -> bool:
    """Returns whether this is the name of a file."""
    return isinstance(value, (str, os.PathLike))


def leaves(data: Any) -> list[Any]:
    """Returns the arrays of a structure."""
    return [leaf for leaf in tf.nest.flatten(data) if leaf is not None]


def _named(names: Sequence[str]) -> str:
    digest = hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
    return f"{len(names)} names from {names[0]!r} to {names[-1]!r} (digest {digest})"


def _arrays(data: Any) -> Source:
    arrays = leaves(data)
    if not arrays or not all(hasattr(a, "shape") and hasattr(a, "__getitem__") for a in arrays):
        kinds = ", ".join(sorted({type(a).__name__ for a in arrays})) or "nothing"
        raise TypeError(
            f"{_KINDS}Received: {type(data).__name__} with {kinds}. Of generators and loaders that "
            "cannot be cut, give each rank one of its own, and use tfring.data.shortest."
        )
    lengths = [int(a.shape[0]) if len(a.shape) else None for a in arrays]
    if None in lengths or len(set(lengths)) > 1:
        shapes = ", ".join(str(tuple(a.shape)) for a in arrays)
        raise ValueError(
            "The arrays of `data` must have one length, that of their first dimension. "
            f"Received: arrays of shapes {shapes}"
        )
    for array in arrays:
        if isinstance(array, tf.SparseTensor):
            raise TypeError(
                "`data` must not hold sparse tensors. Received: a tf.SparseTensor. Make a "
                "tf.data.Dataset.from_tensor_slices of it."
            )
    traits = {
        "the number of samples": lengths[0],
        "the arrays' values (a digest of some rows)": fingerprint(data),
    }
    return Source("arrays", lengths[0], traits)


def _dataset(dataset: Any, size: int) -> Source:
    count = int(dataset.cardinality())
    seeds = [_seeds(node) for node in _nodes(dataset)]
    drawn = [seed for seed in seeds if seed is not None]
    if size > 1:
        _require_order(dataset, drawn)
    traits = {
        "the number of elements": count,
        "the dataset's element_spec": str(dataset.element_spec),
        "the seeds of shuffles": drawn,
    }
    unknown = count == tf.data.UNKNOWN_CARDINALITY
    return Source("dataset", None if unknown else count, traits)


def _require_order(dataset: Any, seeds: Sequence[tuple[int, int]]) -> None:
    if (0, 0) in seeds:
        raise ValueError(
            "The dataset shuffles, or draws random numbers, without a seed: every rank would cut "
            "another order, and the parts would overlap. Give a seed, the same on all ranks, or "
            "shuffle each rank's part. (tf.data.Dataset.list_files shuffles unless "
            "shuffle=False.) Received: a dataset with a shuffle without seed"
        )
    if dataset.options().deterministic is False:
        raise ValueError(
            "The dataset's order must be the same on all ranks, or their parts would overlap. "
            "Received: a dataset with options().deterministic=False. Shard the list of files "
            "instead, or set it for each rank's part."
        )


def _nodes(dataset: Any) -> Iterator[Any]:
    """Gives the dataset and all that it is made from; functions of it are not looked into."""
    waiting, seen = [dataset], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        inputs = getattr(node, "_inputs", None)
        waiting += list(inputs()) if callable(inputs) else []


def _seeds(node: Any) -> tuple[int, int] | None:
    """Returns the seeds of a node that draws random numbers; (0, 0): none was given."""
    first, second = getattr(node, "_seed", None), getattr(node, "_seed2", None)
    if first is None or second is None or not (tf.is_tensor(first) and tf.is_tensor(second)):
        return None
    return int(first), int(second)
