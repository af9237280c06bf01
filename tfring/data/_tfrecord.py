"""`read_tfrecord`: each rank's part of a folder of TFRecord files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfring import _checks
from tfring._autograph import as_it_stands
from tfring.data import _agree, _files, _reading
from tfring.process_sets import ProcessSet, global_process_set

_COMPRESSIONS = {"auto": None, "none": "", "gzip": "GZIP", "zlib": "ZLIB"}
_HINT = "See that `compression` is that of it; write the file again, or leave it out."


@as_it_stands
def read_tfrecord(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    features: Mapping[str, Any] | None = None,
    label: str | None = None,
    *,
    batch_size: int | None = None,
    shuffle: bool | int = False,
    seed: int | None = 0,
    by: str = "auto",
    remainder: str = "drop",
    compression: str = "auto",
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Returns this rank's part of the records of TFRecord files.

    Every rank calls it with the same arguments. The parts of the ranks are disjoint and hold all
    records together. Each record is read once before, each rank reading some of the files, to
    count and check them: a damaged one fails the call on all ranks, and the error names the file.
    Two collectives.

    Args:
        files: a folder, a glob, a file, or a list of files; sorted by path. Hidden files (`.crc`,
            `_SUCCESS`) of a folder or glob are left out. Files without records are fine.
        features: for `tf.io.parse_example`, as `{"x": tf.io.FixedLenFeature([3], tf.float32)}`.
            None: the elements are the records' bytes.
        label: the feature that makes elements `(features, label)`. None: elements are a dict.
        batch_size: records of a batch of this rank. None: no batches.
        shuffle: mix the files, and the records in a buffer: False, True (a buffer of 4096) or the
            size of the buffer. Another order each time the dataset is iterated, so in each epoch.
        seed: of the order, which is then the same in each run that has also the same
            `tf.random.set_seed`, if any; None: as that one says. Ranks may have the same seed:
            each mixes its own records, which no other rank has.
        by: "file": whole files. "row": a run of records, which may begin and end inside of files.
            "auto": files where these give all ranks the same number of records, but for one per
            cent, else records.
        remainder: what is done so that all ranks have the same number of records. "drop": those
            that are over are read by none. "pad": some are read once more, and elements are
            `(features, label, sample_weight)`, with weight 0 for those and such for the others of
            the last batch that means over it are those of the real ones; needs `label` and
            `batch_size`. "keep": nothing; the ranks' numbers of batches may differ.
        compression: "none", "gzip", "zlib"; or "auto": for each file what its first bytes say.
        process_set: the ranks that share the files. Default: all.

    Returns:
        A `tf.data.Dataset` of known length. `tfring.data.last_shard()` tells what was dropped or
        added.

    Raises:
        NotInitializedError: before `init`.
        ValueError: on all ranks, when an argument is wrong on one or differs between two, when
            they find different files, or when a record is damaged.
        FileNotFoundError: on all ranks, when one finds no such folder or file.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tempfile, tfring as hvd
        >>> hvd.init()
        >>> folder = tempfile.mkdtemp()
        >>> for part in range(2):
        ...     with tf.io.TFRecordWriter(f"{folder}/{part}.tfrecord") as file:
        ...         for number in range(3):
        ...             file.write(f"{part}-{number}".encode())
        >>> dataset = hvd.data.read_tfrecord(folder, batch_size=4)
        >>> [batch.numpy().tolist() for batch in dataset]
        [[b'0-0', b'0-1', b'0-2', b'1-0'], [b'1-1', b'1-2']]
    """
    _checks.eager("read_tfrecord")
    elements = _reading.Elements(label, batch_size, shuffle, seed)
    sharing = _reading.Sharing("read_tfrecord", by, remainder, _agree.member_of(process_set))

    def arguments() -> dict[str, Any]:
        _reading.one_of("compression", compression, _COMPRESSIONS)
        _reading.check_label(features, label)
        shown = None if features is None else sorted(map(repr, features.items()))
        return {"features": shown, "compression": compression}

    def examine(own: Sequence[_files.File]) -> list[tuple[str, int]]:
        return _examine(own, compression, features)

    def read(piece: Any) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(piece["path"], piece["compression"])
        return records.skip(piece["start"]).take(piece["rows"])

    def parse(records: Any) -> Any:
        one_or_many = tf.io.parse_single_example if batch_size is None else tf.io.parse_example
        return one_or_many(records, features)

    found = sharing.listing(files, elements, arguments)
    examined = sharing.examine(found, examine)
    kinds = [{"compression": kind} for kind, _ in examined]
    share = sharing.share(found, [[rows] for _, rows in examined], batch_size, kinds)
    return elements.dataset(share, read, None if features is None else parse)


def _examine(
    files: Sequence[_files.File], compression: str, features: Mapping[str, Any] | None
) -> list[tuple[str, int]]:
    """Returns compression and number of records of each file; checks all, and parses one."""
    kinds, sizes = [], []
    for file in files:
        known = _COMPRESSIONS[compression]
        kinds.append(_guess(file) if known is None else known)
        try:
            sizes.append(_files.unpacked_size(file, kinds[-1]))
        except _files.DAMAGES as error:
            raise _reading.of_file(file, error, _HINT) from error
    pairs = list(zip(files, kinds, strict=True))
    sums = _reading.sums(pairs, tf.data.TFRecordDataset, _measure, _HINT).tolist()
    for file, size, (_, bytes_read) in zip(files, sizes, sums, strict=True):
        if bytes_read != size:
            # TensorFlow takes it for the end of the file.
            where = f"at byte {bytes_read} of {size}"
            raise ValueError(f"{file.path}: ends inside of a record, {where}. {_HINT}")
    full = [pair for pair, (rows, _) in zip(pairs, sums, strict=True) if rows]
    if features is not None and full:
        _parse_first(*full[0], features)
    return [(kind, rows) for kind, (rows, _) in zip(kinds, sums, strict=True)]


def _measure(records: Any) -> Any:
    """Returns how many records there are, and the bytes that they take in a file."""
    lengths = tf.cast(tf.strings.length(records), tf.int64)
    rows = tf.size(lengths, out_type=tf.int64)
    return tf.stack([rows, tf.reduce_sum(lengths) + 16 * rows])


def _parse_first(file: _files.File, kind: str, features: Mapping[str, Any]) -> None:
    """Raises ValueError where a file's first record does not hold the features."""
    try:
        for first in tf.data.TFRecordDataset(file.path, kind).take(1):
            tf.io.parse_single_example(first, features)
    except tf.errors.OpError as error:
        raise _reading.of_file(file, error, "See that `features` are those of it.") from error


def _guess(file: _files.File) -> str:
    """Returns the compression that the file's first bytes show.

    Those of a plain file, the length of its first record, may look the same by chance: it counts
    as plain when that record can be read.
    """
    with tf.io.gfile.GFile(file.path, "rb") as opened:
        start = opened.read(2)
    if start == b"\x1f\x8b":
        kind = "GZIP"
    elif start[:1] == b"\x78" and int.from_bytes(start, "big") % 31 == 0:
        kind = "ZLIB"
    else:
        return ""
    try:
        for _ in tf.data.TFRecordDataset(file.path).take(1):
            return ""
    except tf.errors.DataLossError:
        pass
    return kind
