"""`shortest`: all ranks stop with the first that is out of data."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _checks, world
from tfring._autograph import as_it_stands
from tfring.data import _agree, _board
from tfring.data._agree import Member
from tfring.data._progress import AHEAD, GO, LEFT, PENDING, Progress
from tfring.errors import NotInitializedError
from tfring.process_sets import ProcessSet, global_process_set


@as_it_stands
def shortest(dataset: Any, *, process_set: ProcessSet = global_process_set) -> Any:
    """Returns a dataset that ends on all ranks after equally many elements: those of the shortest.

    Without it, a rank with more batches waits in its next step for ranks that are done. Where all
    lengths are known, they are compared once, here. Else ranks tell each other while they read:
    each reads 4 elements ahead, and hands one out when all ranks have it. So every pass may have
    another length, and a rank may break off (`steps_per_epoch`, `stop_training`): then the others
    end, too, at most the elements later that it had read ahead.

    It is a collective: all ranks call it, equally often and in the same order, and afterwards
    iterate over the result equally often. Use it last, on batches; `prefetch` may follow.

    Args:
        dataset: this rank's `tf.data.Dataset`; elements of any kind. Endless ones end with the
            others, and never where all are endless.
        process_set: the ranks that train together. Default: all.

    Returns:
        A `tf.data.Dataset` with the same elements. Its cardinality is unknown where one rank's is.

    Raises:
        NotInitializedError: before `init`.
        TypeError: it is no dataset; on other ranks a ValueError.
        tf.errors.AbortedError: a peer failed, left, or did not come in time. While iterating, where
            one rank does not go on within `fail_after` seconds: tf.errors.UnknownError that names
            it.

    Example:
        >>> import tensorflow as tf, tfring as hvd
        >>> hvd.init()
        >>> batches = tf.data.Dataset.range(3 + hvd.rank())
        >>> len(list(hvd.data.shortest(batches)))
        3
    """
    _checks.eager("shortest")
    member = _agree.member_of(process_set)

    def describe() -> tuple[int, int]:
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "`dataset` must be a tf.data.Dataset. Received: dataset of type "
                f"{type(dataset).__name__}. Make one with tf.data.Dataset.from_generator."
            )
        return int(dataset.cardinality()), _passes.upcoming()

    told = _agree.exchanged("shortest", member, describe)
    counts = [count for count, _ in told]
    number = _passes.reserve(max(upcoming for _, upcoming in told))
    known = [count for count in counts if count >= 0]
    if tf.data.UNKNOWN_CARDINALITY not in counts:
        return dataset.take(min(known)) if known else dataset
    if member.size == 1:
        return dataset
    _passes.will_read(member)
    return _gated(dataset, _Passes(member, number))


class _Passes:
    """The passes over one dataset on this rank, in their order."""

    def __init__(self, member: Member, number: int) -> None:
        self._member = member
        self._number = number
        self._numbers = itertools.count(1)
        self._open: dict[int, Progress] = {}

    def begin(self) -> Iterator[Any]:
        """Gives the number of a new pass; TensorFlow closes the generator with the iterator."""
        number = next(self._numbers)
        key = f"shortest/{self._number}/{number}"
        progress = Progress(_board.board(), key, self._member, number)
        self._open[number] = progress
        _passes.opened(progress)
        try:
            yield np.int64(number)
        finally:
            del self._open[number]
            _passes.close(progress)

    def note(self, number: Any, has_value: Any) -> np.int32:
        """Is run for each element that was read, and once at the end."""
        self._open[int(number)].note(bool(has_value))
        return np.int32(0)

    def next(self, number: Any) -> np.int32:
        """Is run until it says whether an element may be handed out."""
        return np.int32(self._open[int(number)].next())


class _Process:
    """All passes of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._upcoming = 1
        self._open: set[Progress] = set()

    def upcoming(self) -> int:
        """Returns the number that this process would give to a dataset."""
        return self._upcoming

    def reserve(self, number: int) -> int:
        """Takes the number that the ranks agreed on."""
        with self._lock:
            self._upcoming = number + 1
        return number

    def will_read(self, member: Member) -> None:
        """Has the others told when this process leaves the job; some may wait for its passes."""
        world.at_shutdown(lambda: self._leave(member.ranks[member.place]))

    def opened(self, progress: Progress) -> None:
        """Keeps a pass, to close it when this process leaves the job."""
        with self._lock:
            self._open.add(progress)

    def close(self, progress: Progress) -> None:
        """Tells the other ranks that a pass is over; does nothing where nobody can hear it."""
        with self._lock:
            self._open.discard(progress)
        try:
            progress.close()
        except (RuntimeError, NotInitializedError):
            return  # this process has left the job, or is a fork: it cannot tell anybody

    def _leave(self, rank: int) -> None:
        for progress in list(self._open):
            self.close(progress)
        try:
            _board.board().post(f"{LEFT}/{rank}", b"1")
        except RuntimeError:
            return  # the launcher, and with it the job, is gone


_passes = _Process()


def _gated(dataset: Any, passes: _Passes) -> Any:
    """Returns the dataset with its elements held back until all ranks have one more."""
    optional = tf.experimental.Optional
    spec = dataset.element_spec

    @tf.autograph.experimental.do_not_convert
    def wrap(*parts: Any) -> Any:
        is_tuple = isinstance(spec, tuple) and not hasattr(spec, "_fields")
        return optional.from_value(parts if is_tuple else parts[0])

    @tf.autograph.experimental.do_not_convert
    def read(number: Any, element: Any) -> Any:
        noted = tf.numpy_function(passes.note, [number, element.has_value()], tf.int32)
        with tf.control_dependencies([noted]):
            return tf.identity(number), element

    @tf.autograph.experimental.do_not_convert
    def decide(number: Any, element: Any) -> Any:
        return _verdict(passes, number), element

    @tf.autograph.experimental.do_not_convert
    def may_go(verdict: Any, element: Any) -> Any:
        return tf.equal(verdict, GO)

    @tf.autograph.experimental.do_not_convert
    def value(verdict: Any, element: Any) -> Any:
        return element.get_value()

    # Endless: where the pairs end by themselves, TensorFlow closes the pass while elements that
    # were read ahead still wait for their verdict.
    end = tf.data.Dataset.from_tensors(optional.empty(spec)).repeat()
    elements = dataset.map(wrap).concatenate(end)
    numbers = tf.data.Dataset.from_generator(
        passes.begin, output_signature=tf.TensorSpec((), tf.int64)
    ).flat_map(_endless)
    pairs = tf.data.Dataset.zip((numbers, elements)).map(read).prefetch(AHEAD)
    return pairs.map(decide).take_while(may_go).map(value)


@tf.autograph.experimental.do_not_convert
def _endless(number: Any) -> Any:
    return tf.data.Dataset.from_tensors(number).repeat()


def _verdict(passes: _Passes, number: Any) -> Any:
    """Asks in short waits, so that TensorFlow can end the pipeline between two."""

    def ask(verdict: Any) -> list[Any]:
        verdict = tf.numpy_function(passes.next, [number], tf.int32)
        verdict.set_shape(())
        return [verdict]

    def is_pending(verdict: Any) -> Any:
        return tf.equal(verdict, PENDING)

    return tf.while_loop(is_pending, ask, [tf.constant(PENDING)])[0]
