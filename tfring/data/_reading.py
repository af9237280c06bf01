"""What the readers have in common: from files to this rank's dataset of rows."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfring.data import _agree, _files, _parts, _shard

Info = TypeVar("Info")

_logger = logging.getLogger("tfring")

BY = ("auto", "file", "row")
REMAINDER = ("drop", "pad", "keep")
BUFFER = 4096
COUNTED_AT_A_TIME = 256
# Files that a shuffled dataset reads at a time.
AT_A_TIME = 8


@dataclasses.dataclass(frozen=True)
class Share:
    """What one rank reads.

    Attributes:
        pieces: in order, each with "path", "start" and "rows", and what a format adds.
        again: those at the end, which some rank has read before.
        rows: number of rows of all pieces.
        ones: how many of them, the first ones, have a sample weight of 1.
        weights: of the others; None where elements have no weights.
    """

    pieces: list[dict[str, Any]]
    again: list[dict[str, Any]]
    rows: int
    ones: int
    weights: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Elements:
    """What becomes of rows: arguments that all readers have."""

    label: str | None
    batch_size: int | None
    shuffle: bool | int
    seed: int | None

    def check(self) -> None:
        """Raises ValueError for what no reader can do."""
        _count("shuffle", self.shuffle, allow=(True, False))
        _count("seed", self.seed, allow=(None, 0))
        _count("batch_size", self.batch_size, allow=(None,))

    def dataset(
        self,
        share: Share,
        read: Callable[[Any], tf.data.Dataset],
        finish: Callable[[Any], Any] | None,
    ) -> tf.data.Dataset:
        """Returns the dataset of what this rank reads.

        Args:
            share: the pieces, and their weights.
            read: from one piece, as tensors, to the dataset of its rows.
            finish: from a row, or a batch of rows, to columns by name. None: nothing is named.
        """
        rows = self._in_order(share, read)
        if share.weights is not None:
            ones = tf.data.Dataset.from_tensors(np.float32(1)).repeat(share.ones)
            weights = ones.concatenate(tf.data.Dataset.from_tensor_slices(share.weights))
            rows = tf.data.Dataset.zip((rows, weights))
        rows = rows.apply(tf.data.experimental.assert_cardinality(share.rows))
        if self.batch_size is not None:
            rows = rows.batch(self.batch_size)
        if finish is not None:
            rows = rows.map(_called(rows, self._finished(finish, share)), tf.data.AUTOTUNE)
        return rows.prefetch(tf.data.AUTOTUNE)

    @property
    def _buffer(self) -> int:
        return BUFFER * self.shuffle if isinstance(self.shuffle, bool) else self.shuffle

    def _shuffled(self, dataset: tf.data.Dataset, buffer: int) -> tf.data.Dataset:
        return dataset.shuffle(buffer, seed=self.seed, reshuffle_each_iteration=True)

    def _in_order(self, share: Share, read: Callable[[Any], tf.data.Dataset]) -> tf.data.Dataset:
        if not self._buffer or not share.pieces:
            return _one_by_one([*share.pieces, *share.again], read)
        rows = self._shuffled(self._mixed(share.pieces, read), self._buffer)
        # What only fills up stays at the end, whose weights are for it.
        return rows.concatenate(_one_by_one(share.again, read)) if share.again else rows

    def _mixed(
        self, pieces: Sequence[Mapping[str, Any]], read: Callable[[Any], tf.data.Dataset]
    ) -> tf.data.Dataset:
        """Returns the rows of several pieces at a time, so that neighbours come from several."""
        at_a_time = min(AT_A_TIME, len(pieces))
        return self._shuffled(_slices(pieces), len(pieces)).interleave(
            tf.autograph.experimental.do_not_convert(read),
            at_a_time,
            num_parallel_calls=at_a_time,
            deterministic=True,
        )

    def _finished(self, finish: Callable[[Any], Any], share: Share) -> Callable[[Any], Any]:
        weighted = share.weights is not None

        def element(given: Any) -> Any:
            row, weight = given if weighted else (given, None)
            columns = finish(row)
            if self.label is None:
                return columns
            label = columns.pop(self.label)
            return (columns, label, weight) if weighted else (columns, label)

        return element


def _one_by_one(
    pieces: Sequence[Mapping[str, Any]], read: Callable[[Any], tf.data.Dataset]
) -> tf.data.Dataset:
    return _slices(pieces).flat_map(tf.autograph.experimental.do_not_convert(read))


def _slices(pieces: Sequence[Mapping[str, Any]]) -> tf.data.Dataset:
    columns = {key: np.array([piece[key] for piece in pieces]) for key in pieces[0]}
    return tf.data.Dataset.from_tensor_slices(columns)


def _called(dataset: tf.data.Dataset, function: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns the function of an element as `map` calls it: with a tuple's parts."""
    is_tuple = isinstance(dataset.element_spec, tuple)

    @tf.autograph.experimental.do_not_convert
    def call(*parts: Any) -> Any:
        return function(parts if is_tuple else parts[0])

    return call


@dataclasses.dataclass(frozen=True)
class Sharing:
    """How the ranks share the files: arguments that all readers have."""

    function: str
    by: str
    remainder: str
    member: _agree.Member

    def listing(
        self, files: Any, elements: Elements, arguments: Callable[[], Mapping[str, Any]]
    ) -> list[_files.File]:
        """Returns the files to read, in the order that all ranks agree on. One collective.

        Args:
            files: a folder, a glob or a list of files.
            elements: what is checked, and must be the same on all ranks but for the order.
            arguments: checks further arguments and returns those that must be the same on all
                ranks.

        Raises:
            ValueError: on all ranks, where they found different files, or got different arguments.
            Exception: what finding files, or a check, raised here; ValueError on the other ranks.
        """

        def mine() -> tuple[dict[str, Any], list[_files.File]]:
            one_of("by", self.by, BY)
            one_of("remainder", self.remainder, REMAINDER)
            elements.check()
            if self.remainder == "pad" and None in (elements.label, elements.batch_size):
                raise ValueError(
                    "remainder='pad' marks rows that only fill up a batch by sample weights of 0, "
                    "so it needs `label` and `batch_size`. Received: remainder='pad', "
                    f"label={elements.label!r}, batch_size={elements.batch_size!r}"
                )
            common = {
                "`by`": self.by,
                "`remainder`": self.remainder,
                "`label`": elements.label,
                "`batch_size`": elements.batch_size,
            }
            given = {f"`{name}`": value for name, value in arguments().items()}
            return {**common, **given}, _files.find(files)

        told = _agree.exchanged(self.function, self.member, mine)
        _agree.require_same(
            self.function,
            self.member,
            [given for given, _ in told],
            "All ranks must call it with the same arguments.",
        )
        _files.same([found for _, found in told], self.member.ranks)
        return told[self.member.place][1]

    def examine(
        self,
        files: Sequence[_files.File],
        function: Callable[[Sequence[_files.File]], Sequence[Info]],
    ) -> list[Info]:
        """Returns what the function says of each file. One collective.

        Each rank calls it with its share of the files only.

        Raises:
            Exception: what the function raised here; ValueError on the other ranks.
        """
        size = self.member.size

        def mine() -> list[Info]:
            return list(function(files[self.member.place :: size]))

        shares = _agree.exchanged(self.function, self.member, mine)
        return [shares[i % size][i // size] for i in range(len(files))]

    def share(
        self,
        files: Sequence[_files.File],
        rows: Sequence[Sequence[int]],
        batch_size: int | None,
        further: Sequence[Mapping[str, Any]] | None = None,
    ) -> Share:
        """Returns what this rank reads, and keeps the report.

        Args:
            files: all of them.
            rows: for each file the number of rows of each row group.
            batch_size: as all ranks have it.
            further: for each file what else `read` needs to know.

        Raises:
            ValueError: on all ranks, when there is not enough to read.
        """
        split = _parts.split(rows, self.member.size, self.by, self.remainder)
        mine = split.parts[self.member.place]
        self._report(split, _parts.rows_of(mine))
        pieces = [
            {
                "path": files[piece.file].path,
                "start": piece.start,
                "rows": piece.rows,
                **(further[piece.file] if further else {}),
            }
            for piece in mine
        ]
        real = sum(not piece.again for piece in mine)
        ones, weights = 0, None
        if self.remainder == "pad":
            every = [_parts.rows_of([p for p in part if not p.again]) for part in split.parts]
            ones, weights = _parts.weights(every, self.member.place, batch_size or 1)
        return Share(pieces[:real], pieces[real:], _parts.rows_of(mine), ones, weights)

    def _report(self, split: _parts.Split, own: int) -> None:
        size = self.member.size
        report = _shard.ShardReport(size, split.total, own, split.dropped, split.added)
        _shard.remember(report)
        things = f"of {split.total} rows, so that {size} ranks get equally many"
        if self.member.place == 0 and split.dropped:
            _logger.warning("%s drops %d %s", self.function, split.dropped, things)
        if self.member.place == 0 and split.added:
            _logger.warning(
                "%s repeats %d %s, with a sample weight of 0", self.function, split.added, things
            )


def one_of(argument: str, value: Any, allowed: Collection[str]) -> None:
    """Raises ValueError unless the value is one of those allowed."""
    if value not in allowed:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(map(repr, allowed))}. "
            f"Received: {argument}={value!r}"
        )


def selected(there: Sequence[str], columns: Sequence[str] | None, label: str | None) -> list[str]:
    """Returns the columns to read, in the order in which they are there.

    Raises:
        ValueError: one of them is not there, or there is none.
    """
    if isinstance(columns, str) or (columns is not None and not columns):
        raise ValueError(
            "`columns` must be a list of at least one name, or None for all columns. "
            f"Received: columns={columns!r}"
        )
    wanted = [*(there if columns is None else columns), *([] if label is None else [label])]
    for argument, names in (
        ("columns", columns or ()),
        ("label", () if label is None else [label]),
    ):
        for name in names:
            if name not in there:
                raise ValueError(
                    f"`{argument}` must name columns of the files, {', '.join(there)}. "
                    f"Received: {argument}={name!r}"
                )
    return [name for name in there if name in wanted]


def check_label(features: Mapping[str, Any] | None, label: str | None) -> None:
    """Raises ValueError unless the label is one of the features."""
    if label is not None and label not in (features or {}):
        raise ValueError(
            "`label` must be one of `features`. "
            f"Received: label={label!r}, features={sorted(features or {})}"
        )


def names_columns(argument: str, names: Iterable[str], there: Sequence[str]) -> None:
    """Raises ValueError where an argument's keys are not among the columns that are read."""
    for name in names:
        if name not in there:
            raise ValueError(
                f"`{argument}` must be given for columns that are read, {', '.join(there)}. "
                f"Received: {argument} for {name!r}"
            )


def count(rows: tf.data.Dataset) -> int:
    """Reads all rows of a dataset, each one tensor, and returns how many they are."""

    @tf.autograph.experimental.do_not_convert
    def add(total: Any, batch: Any) -> Any:
        return total + tf.shape(batch, out_type=tf.int64)[0]

    # By the batch: a call of a function costs more than a row.
    return int(rows.batch(COUNTED_AT_A_TIME).reduce(tf.constant(0, tf.int64), add))


def sums(
    files: Sequence[tuple[_files.File, str]],
    read: Callable[[Any, Any], tf.data.Dataset],
    measure: Callable[..., Any],
    hint: str,
) -> np.ndarray:
    """Reads files from end to end, and returns sums over each one's batches of rows.

    All in one pipeline: of many small files, making one for each would cost the most.

    Args:
        files: what to read, each with its compression.
        read: from the path and the compression, as tensors, to the dataset of rows.
        measure: from a batch of rows to what is summed, an int64 vector of two.
        hint: what to do about a file that cannot be read.

    Returns:
        int64 of shape (number of files, 2).

    Raises:
        ValueError: a file cannot be read; with its name.
    """

    @tf.autograph.experimental.do_not_convert
    def measured(number: Any, path: Any, kind: Any) -> tf.data.Dataset:
        batches = read(path, kind).batch(COUNTED_AT_A_TIME)
        numbers = tf.data.Dataset.from_tensors(number).repeat()
        return tf.data.Dataset.zip((numbers, batches.map(measure)))

    def summed(some: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        columns = (list(some), [files[i][0].path for i in some], [files[i][1] for i in some])
        for number, values in tf.data.Dataset.from_tensor_slices(columns).flat_map(measured):
            yield int(number), values.numpy()

    result, last = np.zeros((len(files), 2), np.int64), 0
    try:
        for last, values in summed(range(len(files))) if files else ():
            result[last] += values
    except tf.errors.OpError as error:
        # The last one that gave something, or the next ones, which did not.
        for number in range(last, len(files)):
            try:
                for _ in summed([number]):
                    pass
            except tf.errors.OpError as again:
                raise of_file(files[number][0], again, hint) from error
        raise
    return result


def of_file(file: _files.File, error: Exception, hint: str) -> ValueError:
    """Returns the error of reading a file, with the file's name and what to do."""
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    # What TensorFlow puts around it says nothing of the file.
    text = text.split("}} ")[-1].split(" [Op:")[0].strip()
    return ValueError(f"{file.path}: {text}. {hint}")


def _count(argument: str, value: Any, allow: tuple[Any, ...]) -> None:
    """Raises unless the value is a positive whole number or one of `allow`."""
    if any(value is other or value == other for other in allow):
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        others = ", ".join(repr(other) for other in allow)
        raise ValueError(
            f"`{argument}` must be a positive whole number or one of {others}. "
            f"Received: {argument}={value!r}"
        )
