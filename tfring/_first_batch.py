"""Tells when ranks begin to train with the same batch: the mistake of not sharding the data."""

from __future__ import annotations

import collections
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring import objects, world
from tfring.data._fingerprint import fingerprint

_logger = logging.getLogger("tfring")

# What a generator's dataset can give again as it was.
_REPEATABLE = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)

_told: set[str] = set()


def compared(iterator: Any, elements: int = 1) -> Any:
    """Compares the first batches of all ranks, and lets rank 0 warn of those that are the same.

    All ranks must call it before their first step: one exchange of a few bytes. Nothing of the
    data is lost. The setting `check_batches` switches the comparison off, not the exchange, so
    that a setting on one rank alone leaves nobody waiting.

    Args:
        iterator: of a `tf.data.Dataset`, not yet begun.
        elements: how many elements the first call of the step function reads.

    Returns:
        What that call is to read from, in its place: it gives the same elements. Calls after the
        first go on with `iterator`.

    Raises:
        tf.errors.AbortedError: a peer failed, left, or did not come in time.
    """
    if world.size() == 1:
        return iterator
    first = _first_of(iterator) if world.settings().check_batches else None
    digest = None if first is None else fingerprint(first[0])
    _warn(objects.allgather_object(digest, name="first batches"))
    return iterator if first is None else _again(first[0], iterator, elements)


def _first_of(iterator: Any) -> tuple[Any] | None:
    """Returns the first element, None where there is none or it could not be given again."""
    if not isinstance(iterator, tf.data.Iterator):
        return None
    specs = tf.nest.flatten(iterator.element_spec)
    if not specs or not all(isinstance(spec, _REPEATABLE) for spec in specs):
        return None
    try:
        return (next(iterator),)
    except (StopIteration, tf.errors.OutOfRangeError):
        return None


def _again(first: Any, iterator: Any, count: int) -> Any:
    def elements() -> Iterator[Any]:
        # No more than are asked for: TensorFlow reads ahead, and those would be lost.
        yield first
        yield from itertools.islice(iterator, count - 1)

    # With the very element_spec, so that the step is not traced once more.
    dataset = tf.data.Dataset.from_generator(elements, output_signature=iterator.element_spec)
    return iter(dataset)


def _warn(digests: Sequence[str | None]) -> None:
    """Logs on rank 0, once, which ranks have the same."""
    ranks = collections.defaultdict(list)
    for rank, digest in enumerate(digests):
        if digest is not None:
            ranks[digest].append(str(rank))
    groups = [f"ranks {', '.join(r[:-1])} and {r[-1]}" for r in ranks.values() if len(r) > 1]
    if not groups or world.rank() != 0:
        return
    text = (
        f"The first batch is the same on {'; '.join(groups)}. Ranks that see the same data do the "
        "same work several times: give each its part, for example with tfring.data.shard. If it "
        "is meant to be so, set TFRING_CHECK_BATCHES=0."
    )
    if text not in _told:
        _told.add(text)
        _logger.warning("%s", text)
