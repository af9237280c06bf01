"""`read_parquet`: each rank's part of a folder of Parquet files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfring import _checks
from tfring._autograph import as_it_stands
from tfring.data import _agree, _arrow, _files, _reading
from tfring.process_sets import ProcessSet, global_process_set

_ROWS_AT_A_TIME = 4096


@as_it_stands
def read_parquet(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
    label: str | None = None,
    *,
    dtypes: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    shuffle: bool | int = False,
    seed: int | None = 0,
    by: str = "auto",
    remainder: str = "drop",
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Returns this rank's part of the rows of Parquet files.

    Every rank calls it with the same arguments. The parts of the ranks are disjoint and hold all
    rows together. Only the files' footers are read before, each rank reading some; what does not
    fit fails the call on all ranks, and the error names the file. Two collectives. Needs pyarrow:
    `pip install 'tfring[parquet]'`.

    Numbers, booleans, text and binary values become tensors of their dtype, lists of fixed length
    tensors of rank one, other lists `tf.RaggedTensor` in batches.

    Args:
        files: a folder, a glob, a file, or a list of files; sorted by path. Hidden files (`.crc`,
            `_SUCCESS`) of a folder or glob are left out. Files without rows are fine.
        columns: names of those to read. Default: all.
        label: the column that makes elements `(features, label)`. None: elements are a dict.
        dtypes: by column: the dtype to cast to, as "int64" for a time. Default: the column's own,
            which must be the same in all files.
        defaults: by column: what to read in place of a null. Without, nulls are an error.
        batch_size: rows of a batch of this rank. None: no batches.
        shuffle: mix files or row groups, and the rows in a buffer: False, True (a buffer of 4096)
            or the size of the buffer. Another order each time the dataset is iterated, so in each
            epoch.
        seed: of the order; as for `read_tfrecord`.
        by: "file": whole files. "row": a run of rows, which may begin and end inside of row
            groups. "auto": files where these give all ranks the same number of rows, but for one
            per cent; else whole row groups, where these do; else rows.
        remainder: what is done so that all ranks have the same number of rows: "drop", "pad" or
            "keep", as for `read_tfrecord`.
        process_set: the ranks that share the files. Default: all.

    Returns:
        A `tf.data.Dataset` of known length. `tfring.data.last_shard()` tells what was dropped or
        padded.

    Raises:
        NotInitializedError: before `init`.
        ImportError: pyarrow is not installed.
        FileNotFoundError: there is no such folder or file.
        ValueError: an argument is wrong or differs between ranks, they find different files, or a
            file does not fit. Also on all other ranks, whatever one of them raises.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import pyarrow, pyarrow.parquet, tempfile, tfring as hvd
        >>> hvd.init()
        >>> folder = tempfile.mkdtemp()
        >>> table = pyarrow.table({"x": [1.5, 2.5, 3.5], "tags": [["a"], [], ["b", "c"]]})
        >>> pyarrow.parquet.write_table(table, f"{folder}/0.parquet", row_group_size=2)
        >>> for batch in hvd.data.read_parquet(folder, batch_size=3):
        ...     print(batch["x"].numpy(), batch["tags"].to_list())
        [1.5 2.5 3.5] [[b'a'], [], [b'b', b'c']]
    """
    _checks.eager("read_parquet")
    elements = _reading.Elements(label, batch_size, shuffle, seed)
    sharing = _reading.Sharing("read_parquet", by, remainder, _agree.member_of(process_set))

    def arguments() -> dict[str, Any]:
        _arrow.require()
        given = {name: _arrow.dtype(name, dtype).name for name, dtype in (dtypes or {}).items()}
        names = None if columns is None else list(columns)
        return {"columns": names, "dtypes": given, "defaults": dict(defaults or {})}

    def examine(own: Sequence[_files.File]) -> list[_Footer]:
        return [_footer(file, columns, label, defaults or {}) for file in own]

    found = sharing.listing(files, elements, arguments)
    footers = sharing.examine(found, examine)
    schema = _schema(found, footers, _Selection(columns, label, dtypes or {}))
    taken = {
        field.name: _arrow.Column(
            field.name,
            field.type,
            (dtypes or {}).get(field.name),
            (defaults or {}).get(field.name),
        )
        for field in schema
    }
    _reading.names_columns("dtypes", dtypes or (), list(taken))
    _reading.names_columns("defaults", defaults or (), list(taken))
    share = sharing.share(found, [footer.groups for footer in footers], batch_size)

    def rows(path: bytes, start: int, count: int) -> Iterator[dict[str, Any]]:
        where = path.decode()
        for batch in _batches(where, start, count, list(taken)):
            yield {name: c.tensor(batch.column(name), where) for name, c in taken.items()}

    signature = {name: column.spec for name, column in taken.items()}

    def read(piece: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(
            rows, output_signature=signature, args=(piece["path"], piece["start"], piece["rows"])
        ).unbatch()

    return elements.dataset(share, read, dict)


class _Footer(NamedTuple):
    """What the end of a file says.

    Attributes:
        schema: a pyarrow.Schema.
        groups: number of rows of each row group that has some.
    """

    schema: Any
    groups: tuple[int, ...]


def _footer(
    file: _files.File, columns: Sequence[str] | None, label: str | None, defaults: Mapping[str, Any]
) -> _Footer:
    with _arrow.opened(file.path) as parquet:
        schema = parquet.schema_arrow
        wanted = {*(columns or schema.names), *([label] if label else [])}
        for name in wanted.intersection(schema.names):
            if name not in defaults and _arrow.has_nulls(parquet.metadata, name):
                raise _arrow.null_error(file.path, name)
        numbers = range(parquet.num_row_groups)
        sizes = [parquet.metadata.row_group(i).num_rows for i in numbers]
        return _Footer(schema.remove_metadata(), tuple(filter(None, sizes)))


class _Selection(NamedTuple):
    columns: Sequence[str] | None
    label: str | None
    dtypes: Mapping[str, Any]


def _schema(
    files: Sequence[_files.File], footers: Sequence[_Footer], selection: _Selection
) -> list[Any]:
    """Returns the pyarrow fields to read, which all files with rows must have in common."""
    known = [(f, footer.schema) for f, footer in zip(files, footers, strict=True) if footer.groups]
    if not known:
        known = [(files[0], footers[0].schema)]
    first, schema = known[0]
    wanted = _reading.selected(schema.names, selection.columns, selection.label)
    for file, other in known:
        for name in wanted:
            here, there = schema.field(name).type, None
            if name in other.names:
                there = other.field(name).type
            if there is None or (there != here and name not in selection.dtypes):
                what = "not there" if there is None else f"of type {there}"
                raise ValueError(
                    f"All files must have the same columns. Received: column {name!r}, which is "
                    f"of type {here} in {first.path}, but {what} in {file.path}. Give `dtypes` "
                    "to cast it, or `columns` without it."
                )
    return [schema.field(name) for name in wanted]


def _batches(path: str, start: int, rows: int, columns: Sequence[str]) -> Iterator[Any]:
    """Returns record batches with some rows of a file; only their row groups are read."""
    with _arrow.opened(path) as parquet:
        sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        groups = [i for i, end in enumerate(ends) if end > start and end - sizes[i] < start + rows]
        skip = start - (ends[groups[0]] - sizes[groups[0]])
        for batch in parquet.iter_batches(
            _ROWS_AT_A_TIME, row_groups=groups, columns=list(columns)
        ):
            part = batch.slice(min(skip, batch.num_rows), rows)
            skip = max(0, skip - batch.num_rows)
            rows -= part.num_rows
            if part.num_rows:
                yield part
