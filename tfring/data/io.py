"""Avro, ORC, Kafka and object stores, by way of tensorflow-io: on TensorFlow 2.16 only.

    pip install 'tensorflow-cpu==2.16.*' 'tfring[io]'

tensorflow-io 0.37.1 is its last release, and its libraries load into no other TensorFlow. Elsewhere
each function here raises ImportError, which says so. `tfring.data.read_parquet` needs none of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfring import _checks
from tfring._autograph import as_it_stands
from tfring.data import _agree, _files, _reading
from tfring.process_sets import ProcessSet, global_process_set

__all__ = ["read_avro", "read_kafka", "read_orc", "register_filesystems"]

_TENSORFLOW = "2.16."
_ROWS_AT_A_TIME = 1024
_HINT = "Write the file again, leave it out, or see that the arguments fit it."


def register_filesystems() -> None:
    """Lets TensorFlow read `s3://`, `gs://`, `az://`, `hdfs://` and the like.

    After it, `files` of all readers may be such an address, and so may all paths that go through
    `tf.io.gfile`. Credentials are found as tensorflow-io's documentation says, say in
    `AWS_ACCESS_KEY_ID`. Not a collective: each rank that reads calls it.

    Raises:
        ImportError: tensorflow-io cannot be used here.
    """
    _tensorflow_io("register_filesystems")


@as_it_stands
def read_avro(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    features: Mapping[str, Any],
    schema: str,
    label: str | None = None,
    *,
    batch_size: int,
    shuffle: bool | int = False,
    seed: int | None = 0,
    by: str = "auto",
    remainder: str = "drop",
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Returns batches of this rank's part of the records of Avro files.

    Each file is read once before, the ranks sharing the work, to count its records. tensorflow-io
    ends the process where an Avro file is damaged; the other ranks then fail, too.

    Args:
        files: a folder, a glob, a file, or a list of files, as for `tfring.data.read_tfrecord`.
        features: by field: what `tf.io.parse_example` takes, as
            `{"x": tf.io.FixedLenFeature([], tf.float32)}`.
        schema: the Avro schema by which the records are read, as JSON.
        label: the field that makes elements `(features, label)`. None: elements are a dict.
        batch_size: records of a batch of this rank.
        shuffle: as for `tfring.data.read_tfrecord`, and so are all others: seed, by, remainder,
            process_set.
        seed: of the order.
        by: "auto", "file" or "row".
        remainder: "drop", "pad" or "keep".
        process_set: the ranks that share the files.

    Returns:
        A `tf.data.Dataset` of known length.

    Raises:
        ImportError: tensorflow-io cannot be used here.
        NotInitializedError, FileNotFoundError, ValueError, tf.errors.AbortedError: as for
            `tfring.data.read_tfrecord`.
    """
    _checks.eager("read_avro")
    elements = _reading.Elements(label, batch_size, shuffle, seed)
    sharing = _reading.Sharing("io.read_avro", by, remainder, _agree.member_of(process_set))

    def arguments() -> dict[str, Any]:
        _tensorflow_io("read_avro")
        _reading.check_label(features, label)
        if batch_size is None:
            raise ValueError("`batch_size` must be given. Received: batch_size=None")
        return {"features": sorted(map(repr, features.items())), "schema": schema}

    def records(path: Any) -> tf.data.Dataset:
        columnar = _tensorflow_io("read_avro").experimental.columnar
        return columnar.AvroRecordDataset(path, reader_schema=schema)

    def count(file: _files.File) -> list[int]:
        _require_start(file, b"Obj\x01", "Avro")
        try:
            return [_reading.count(records([file.path]))]
        except tf.errors.OpError as error:
            raise _reading.of_file(file, error, _HINT) from error

    def read(piece: Any) -> tf.data.Dataset:
        return records(piece["path"][tf.newaxis]).skip(piece["start"]).take(piece["rows"])

    def parse(batch: Any) -> Any:
        columnar = _tensorflow_io("read_avro").experimental.columnar
        return dict(columnar.parse_avro(batch, schema, features))

    found = sharing.listing(files, elements, arguments)
    share = sharing.share(
        found, sharing.examine(found, lambda own: list(map(count, own))), batch_size
    )
    return elements.dataset(share, read, parse)


@as_it_stands
def read_orc(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str],
    label: str | None = None,
    *,
    batch_size: int | None = None,
    shuffle: bool | int = False,
    seed: int | None = 0,
    by: str = "auto",
    remainder: str = "drop",
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Returns this rank's part of the rows of ORC files.

    Each file is read once before, the ranks sharing the work, to count its rows. tensorflow-io
    reads numbers, booleans and texts, no lists, and does not tell nulls from zeros.

    Args:
        files: a folder, a glob, a file, or a list of files, as for `tfring.data.read_parquet`.
        columns: names of those to read.
        label: one of `columns`, which makes elements `(features, label)`.
        batch_size: as for `tfring.data.read_parquet`, and so are all others: shuffle, seed, by,
            remainder, process_set.
        shuffle: mix files and rows.
        seed: of the order.
        by: "auto", "file" or "row".
        remainder: "drop", "pad" or "keep".
        process_set: the ranks that share the files.

    Returns:
        A `tf.data.Dataset` of known length.

    Raises:
        ImportError: tensorflow-io cannot be used here.
        NotInitializedError, FileNotFoundError, ValueError, tf.errors.AbortedError: as for
            `tfring.data.read_parquet`.
    """
    _checks.eager("read_orc")
    elements = _reading.Elements(label, batch_size, shuffle, seed)
    sharing = _reading.Sharing("io.read_orc", by, remainder, _agree.member_of(process_set))

    def arguments() -> dict[str, Any]:
        _tensorflow_io("read_orc")
        _reading.check_label(dict.fromkeys(columns), label)
        return {"columns": list(columns)}

    def table(path: str) -> tf.data.Dataset:
        dataset = _tensorflow_io("read_orc").IODataset.from_orc(path, columns=list(columns))
        one = len(columns) == 1
        return dataset.map(lambda *row: dict(zip(columns, [row[0]] if one else row, strict=True)))

    def examine(file: _files.File) -> tuple[int, dict[str, Any]]:
        _require_start(file, b"ORC", "ORC")
        try:
            dataset = table(file.path)
            rows = _reading.count(dataset.map(lambda row: row[columns[0]]))
        except (tf.errors.OpError, ValueError) as error:
            raise _reading.of_file(file, error, _HINT) from error
        return rows, {name: spec.dtype.name for name, spec in dataset.element_spec.items()}

    found = sharing.listing(files, elements, arguments)
    examined = sharing.examine(found, lambda own: list(map(examine, own)))
    signature = _common(found, [dtypes for _, dtypes in examined])

    def rows(path: bytes, start: int, count: int) -> Iterator[Any]:
        yield from table(path.decode()).skip(start).take(count).batch(_ROWS_AT_A_TIME)

    def read(piece: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(
            rows, output_signature=signature, args=(piece["path"], piece["start"], piece["rows"])
        ).unbatch()

    share = sharing.share(found, [[n] for n, _ in examined], batch_size)
    return elements.dataset(share, read, dict)


@as_it_stands
def read_kafka(
    topic: str,
    partitions: int,
    *,
    servers: str = "localhost:9092",
    start: int = 0,
    stop: int = -1,
    configuration: Sequence[str] = (),
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Returns the messages of this rank's partitions of a Kafka topic.

    Partition k is that of rank k modulo the number of ranks. How many messages a partition holds
    is its own affair: ranks may get different numbers of them, so end the epoch by
    `tfring.data.shortest`.

    Args:
        topic: its name.
        partitions: how many the topic has; at least one for each rank.
        servers: addresses of brokers, `host:port`, with commas between.
        start: offset of the first message to read in each partition.
        stop: offset after the last; -1: that at the time of the call.
        configuration: of librdkafka, as `["enable.auto.commit=false"]`.
        process_set: the ranks that share the partitions.

    Returns:
        A `tf.data.Dataset` of `(message, key)`, two texts, one partition after the other.

    Raises:
        ImportError: tensorflow-io cannot be used here.
        ValueError: an argument is wrong or differs between ranks.
        NotInitializedError, tf.errors.AbortedError: as for `tfring.data.read_tfrecord`.
    """
    _checks.eager("read_kafka")
    member = _agree.member_of(process_set)

    def describe() -> dict[str, Any]:
        _tensorflow_io("read_kafka")
        if isinstance(partitions, bool) or not isinstance(partitions, int):
            raise TypeError(f"`partitions` must be a whole number. Received: {partitions!r}")
        if partitions < member.size:
            raise ValueError(
                "`partitions` must be at least one for each rank. Received: "
                f"partitions={partitions!r} for {member.size} ranks"
            )
        return {"`topic`": topic, "`partitions`": partitions, "`start`": start, "`stop`": stop}

    told = _agree.exchanged("io.read_kafka", member, describe)
    _agree.require_same("io.read_kafka", member, told, "Ranks must read the same topic.")
    parts = [
        _tensorflow_io("read_kafka").IODataset.from_kafka(
            topic,
            partition=partition,
            start=start,
            stop=stop,
            servers=servers,
            configuration=list(configuration),
        )
        for partition in range(member.place, partitions, member.size)
    ]
    dataset = parts[0]
    for part in parts[1:]:
        dataset = dataset.concatenate(part)
    return dataset


def _tensorflow_io(function: str) -> Any:
    """Returns the module tensorflow_io.

    Raises:
        ImportError: this is another TensorFlow than it was built for, or it is not installed.
    """
    name = f"tfring.data.io.{function} needs tensorflow-io 0.37.1"
    if not tf.__version__.startswith(_TENSORFLOW):
        raise ImportError(
            f"{name}, whose libraries load into TensorFlow 2.16 only. Received: TensorFlow "
            f"{tf.__version__}. Use `pip install 'tensorflow-cpu==2.16.*' 'tfring[io]'`, or write "
            "the data as Parquet, TFRecord or CSV, which tfring.data reads with any TensorFlow."
        )
    try:
        import tensorflow_io
    except ImportError as error:
        raise ImportError(
            f"{name}, which cannot be imported: {error}. Run `pip install 'tfring[io]'`; it is "
            "there for Python 3.10 and 3.11."
        ) from error
    return tensorflow_io


def _require_start(file: _files.File, start: bytes, kind: str) -> None:
    """Raises ValueError where a file is of another kind, at which tensorflow-io may crash."""
    with tf.io.gfile.GFile(file.path, "rb") as opened:
        found = opened.read(len(start))
    if found != start:
        raise ValueError(f"{file.path}: is no {kind} file, as it begins with {found!r}. {_HINT}")


def _common(files: Sequence[_files.File], dtypes: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Returns the specs of a batch's columns, which all files must have in common."""
    for file, other in zip(files, dtypes, strict=True):
        if other != dtypes[0]:
            raise ValueError(
                f"All files must have the same columns. Received: {dict(dtypes[0])} in "
                f"{files[0].path}, but {dict(other)} in {file.path}."
            )
    return {name: tf.TensorSpec([None], dtype) for name, dtype in dtypes[0].items()}
