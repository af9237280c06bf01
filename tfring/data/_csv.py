"""`read_csv`: each rank's part of a folder of CSV files."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfring import _checks
from tfring._autograph import as_it_stands
from tfring.data import _agree, _files, _reading
from tfring.process_sets import ProcessSet, global_process_set

_DTYPES = (tf.int32, tf.int64, tf.float32, tf.float64, tf.string)
_ROWS_FOR_TYPES = 1000
_GZIP = b"\x1f\x8b"
# Types for columns that are given none, each holding what those before it hold.
_KINDS = (tf.int64, tf.float32, tf.string)
_WHOLE = re.compile(r"-?[0-9]+")
_HINT = (
    "See the file, or give `dtypes` for columns of another type and `defaults` for columns where "
    "values are missing."
)


@as_it_stands
def read_csv(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
    label: str | None = None,
    *,
    dtypes: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    na_value: str = "",
    batch_size: int | None = None,
    shuffle: bool | int = False,
    seed: int | None = 0,
    by: str = "auto",
    remainder: str = "drop",
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Returns this rank's part of the rows of CSV files.

    Every rank calls it with the same arguments. The parts of the ranks are disjoint and hold all
    rows together. Each file is read once before, each rank reading some of them, to count and
    check the rows: one that does not fit the columns fails the call on all ranks, and the error
    names the file. Three collectives. Rows are parsed by `tf.data.experimental.CsvDataset`; a
    quoted value may hold line ends. Files that begin as those of gzip are unpacked.

    Args:
        files: a folder, a glob, a file, or a list of files; sorted by path. Hidden files (`.crc`,
            `_SUCCESS`) of a folder or glob are left out. Files without rows, or without a byte, are
            fine.
        columns: names of those to read. Default: all.
        label: the column that makes elements `(features, label)`. None: elements are a dict.
        dtypes: by column: int32, int64, float32, float64 or string. Default: the first of int64,
            float32 and string that holds the column's first 1000 values.
        defaults: by column: what to read where a value is missing. Without, that is an error; an
            empty text is an empty text.
        names: of all columns, for files without a header. None: the first line of every file
            holds them, the same in all.
        delimiter: between values, one character.
        na_value: a further text that says that a value is missing, as "NA".
        batch_size: rows of a batch of this rank. None: no batches.
        shuffle: mix the files, and the rows in a buffer: False, True (a buffer of 4096) or the
            size of the buffer. Another order each time the dataset is iterated, so in each epoch.
        seed: of the order; as for `read_tfrecord`.
        by: "file": whole files. "row": a run of rows, which may begin and end inside of files.
            "auto": files where these give all ranks the same number of rows, but for one per
            cent, else rows.
        remainder: what is done so that all ranks have the same number of rows: "drop", "pad" or
            "keep", as for `read_tfrecord`.
        process_set: the ranks that share the files. Default: all.

    Returns:
        A `tf.data.Dataset` of known length. `tfring.data.last_shard()` tells what was dropped or
        added.

    Raises:
        NotInitializedError: before `init`.
        ValueError: on all ranks, when an argument is wrong on one or differs between two, when
            they find different files, or when a file's columns or rows do not fit.
        FileNotFoundError: on all ranks, when one finds no such folder or file.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import pathlib, tempfile, tfring as hvd
        >>> hvd.init()
        >>> file = pathlib.Path(tempfile.mkdtemp(), "part-0.csv")
        >>> _ = file.write_text('size,text,y\\n1.5,"two\\nlines",0\\n2,one,1\\n')
        >>> dataset = hvd.data.read_csv(file.parent, label="y", batch_size=2)
        >>> for features, y in dataset:
        ...     print(features["size"].numpy(), features["text"].numpy(), y.numpy())
        [1.5 2. ] [b'two\\nlines' b'one'] [0 1]
    """
    _checks.eager("read_csv")
    elements = _reading.Elements(label, batch_size, shuffle, seed)
    sharing = _reading.Sharing("read_csv", by, remainder, _agree.member_of(process_set))
    form = _Form(delimiter, na_value, None if names is None else tuple(names))

    def arguments() -> dict[str, Any]:
        form.check()
        given = {name: _dtype(name, dtype) for name, dtype in (dtypes or {}).items()}
        return {
            "columns": None if columns is None else list(columns),
            "dtypes": {name: dtype.name for name, dtype in given.items()},
            "defaults": dict(defaults or {}),
            **dataclasses.asdict(form),
        }

    found = sharing.listing(files, elements, arguments)
    peeks = sharing.examine(found, lambda own: [form.peek(file) for file in own])
    there = _header(found, peeks)
    wanted = _reading.selected(there, columns, label)
    table = _Table(form, there, wanted, _record_defaults(wanted, there, peeks, dtypes, defaults))
    kinds = {file.path: peek for file, peek in zip(found, peeks, strict=True)}
    rows = sharing.examine(found, lambda own: table.counts(own, [kinds[file.path] for file in own]))

    def read(piece: Any) -> tf.data.Dataset:
        dataset = table.rows(piece["path"], piece["compression"])
        return dataset.skip(piece["start"]).take(piece["rows"])

    further = [{"compression": peek.compression} for peek in peeks]
    return elements.dataset(
        sharing.share(found, [[n] for n in rows], batch_size, further),
        read,
        lambda row: dict(zip(wanted, row, strict=True)),
    )


@dataclasses.dataclass(frozen=True)
class _Peek:
    """What the beginning of a file shows.

    Attributes:
        header: names of the columns; None for a file without any.
        kinds: for each column the place in `_KINDS` of a type that holds its first values.
        compression: as `CsvDataset` takes it.
    """

    header: tuple[str, ...] | None
    kinds: tuple[int, ...]
    compression: str


@dataclasses.dataclass(frozen=True)
class _Form:
    """How the files are written."""

    delimiter: str
    na_value: str
    names: tuple[str, ...] | None

    def check(self) -> None:
        if not isinstance(self.delimiter, str) or len(self.delimiter.encode()) != 1:
            raise ValueError(
                f"`delimiter` must be one ASCII character. Received: delimiter={self.delimiter!r}"
            )
        if not isinstance(self.na_value, str):
            raise TypeError(f"`na_value` must be a text. Received: na_value={self.na_value!r}")
        if self.names is not None and len({*self.names}) < max(1, len(self.names)):
            raise ValueError(
                "`names` must hold the names of all columns, each once. "
                f"Received: names={list(self.names)}"
            )

    def peek(self, file: _files.File) -> _Peek:
        """Reads the beginning of a file."""
        with tf.io.gfile.GFile(file.path, "rb") as opened:
            packed = opened.read(2) == _GZIP
            opened.seek(0)
            source = gzip.GzipFile(fileobj=opened) if packed else opened
            try:
                records = csv.reader(_lines(source), delimiter=self.delimiter)
                header = self.names or tuple(next(records, ())) or None
                kinds = self._kinds(itertools.islice(records, _ROWS_FOR_TYPES), header or ())
            except (*_files.DAMAGES, UnicodeDecodeError, csv.Error) as error:
                raise _reading.of_file(file, error, _HINT) from error
        if header is not None and len({*header}) < len(header):
            raise ValueError(f"{file.path}: two columns have the same name, in {list(header)}")
        return _Peek(header, kinds, "GZIP" if packed else "")

    def _kinds(self, rows: Iterator[list[str]], header: Sequence[str]) -> tuple[int, ...]:
        kinds = [0] * len(header)
        for row in rows:
            for column, text in enumerate(row[: len(header)]):
                if text not in ("", self.na_value):
                    kinds[column] = max(kinds[column], _kind(text))
        return tuple(kinds)


@dataclasses.dataclass(frozen=True)
class _Table:
    """The columns to read, and how."""

    form: _Form
    there: list[str]
    wanted: list[str]
    defaults: list[Any]

    def rows(self, path: Any, compression: Any) -> tf.data.Dataset:
        """Returns the rows of one file as tuples."""
        return tf.data.experimental.CsvDataset(
            path,
            self.defaults,
            compression_type=compression,
            header=self.form.names is None,
            field_delim=self.form.delimiter,
            na_value=self.form.na_value,
            select_cols=[self.there.index(name) for name in self.wanted],
        )

    def counts(self, files: Sequence[_files.File], peeks: Sequence[_Peek]) -> list[int]:
        """Reads whole files, and returns the number of rows of each."""
        hint = f"Fields are those of {', '.join(self.wanted)}. {_HINT}"
        pairs = [(file, peek.compression) for file, peek in zip(files, peeks, strict=True)]
        for file, compression in pairs:
            try:
                _files.unpacked_size(file, compression)
            except _files.DAMAGES as error:
                raise _reading.of_file(file, error, hint) from error
        known = [number for number, peek in enumerate(peeks) if peek.header]
        result = [0] * len(files)
        sums = _reading.sums([pairs[number] for number in known], self.rows, _rows_of, hint)
        for number, (rows, _) in zip(known, sums.tolist(), strict=True):
            result[number] = rows
        return result


def _rows_of(*columns: Any) -> Any:
    rows = tf.shape(columns[0], out_type=tf.int64)[0]
    return tf.stack([rows, rows])


def _lines(opened: Any) -> Iterator[str]:
    """Returns the lines of a binary file; a mark at its beginning is not part of the first."""
    for number, line in enumerate(opened):
        yield line.decode("utf-8" if number else "utf-8-sig")


def _kind(text: str) -> int:
    """Returns the place in `_KINDS` of the first type that holds the value."""
    if _WHOLE.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
        return 0
    try:
        float(text)
    except ValueError:
        return 2
    return 1


def _header(files: Sequence[_files.File], peeks: Sequence[_Peek]) -> list[str]:
    """Returns the names of the columns, which all files must have in common."""
    known = [(file, peek.header) for file, peek in zip(files, peeks, strict=True) if peek.header]
    if not known:
        raise ValueError(
            f"`files` must hold at least one row. Received: {len(files)} files without any"
        )
    first, header = known[0]
    for file, other in known:
        if other != header:
            raise ValueError(
                f"{file.path} has other columns than {first.path}: {list(other)}, not "
                f"{list(header)}. Files without a header need `names`."
            )
    return list(header)


def _record_defaults(
    wanted: Sequence[str],
    there: Sequence[str],
    peeks: Sequence[_Peek],
    dtypes: Mapping[str, Any] | None,
    defaults: Mapping[str, Any] | None,
) -> list[Any]:
    """Returns what `CsvDataset` takes for each column: a default, or a dtype where none is."""
    _reading.names_columns("dtypes", dtypes or (), wanted)
    _reading.names_columns("defaults", defaults or (), wanted)
    result: list[Any] = []
    for name in wanted:
        column = there.index(name)
        kind = max(peek.kinds[column] for peek in peeks if peek.header)
        dtype = _dtype(name, dtypes[name]) if dtypes and name in dtypes else _KINDS[kind]
        if defaults and name in defaults:
            result.append(tf.constant(defaults[name], dtype))
        else:
            result.append(tf.constant("") if dtype == tf.string else dtype)
    return result


def _dtype(column: str, value: Any) -> tf.DType:
    try:
        dtype = tf.as_dtype(value)
    except TypeError:
        dtype = None
    if dtype not in _DTYPES:
        raise ValueError(
            f"`dtypes` must be of {', '.join(dtype.name for dtype in _DTYPES)}. "
            f"Received: {value!r} for {column!r}"
        )
    return dtype
