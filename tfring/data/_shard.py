"""`shard`: each rank's part of a data set."""

from __future__ import annotations

import logging
import threading
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfring import _checks
from tfring._autograph import as_it_stands
from tfring.data import _agree, _rows, _sources
from tfring.data._agree import Member
from tfring.data._sources import Source
from tfring.process_sets import ProcessSet, global_process_set

_logger = logging.getLogger("tfring")

_DIFFERENT = (
    "Each rank would get a part of other data: give all ranks the same data in the same order "
    "(say, sorted file names) and the same arguments. Data that is each rank's own already needs "
    "no `shard`."
)


class ShardReport(NamedTuple):
    """What a call of `shard`, or of a reader, did; None stands for what nobody knows yet.

    Attributes:
        ranks: number of ranks that share the data.
        total: elements, samples or files before the cut.
        own: what this rank has of them, padding included; equal on all ranks unless
            remainder="keep".
        dropped: how many no rank has.
        padded: how many are repeated, over all ranks, with a sample weight of 0.
    """

    ranks: int
    total: int | None
    own: int | None
    dropped: int | None
    padded: int | None


class _Last(threading.local):
    report: ShardReport | None = None


class _Options(NamedTuple):
    by: str
    remainder: str
    batch_size: int | None


_last = _Last()
_told: set[str] = set()


def last_shard() -> ShardReport | None:
    """Returns what the latest `shard` or reader of this thread did, None before the first.

    Example:
        >>> import numpy as np, tfring as hvd
        >>> hvd.init()
        >>> part = hvd.data.shard(np.arange(12))
        >>> hvd.data.last_shard().total
        12
    """
    return _last.report


def remember(report: ShardReport) -> None:
    """Makes a report the one that `last_shard` returns."""
    _last.report = report


@as_it_stands
def shard(
    data: Any,
    *,
    by: str | None = None,
    remainder: str | None = None,
    batch_size: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns this rank's part of data that every rank has, or can read, in the same order.

    Parts are disjoint and cover all but what is dropped. Element k is that of rank k mod n, so
    that batch b of the n ranks together, of B samples each, holds the samples of batch b of one
    process with n*B: the training is that of one process. Give every rank the same data in the
    same order: shuffle before with a seed that all ranks share, or afterwards each rank's part.
    It is a collective: all ranks call it, equally often and in the same order.

    Args:
        data: a `tf.data.Dataset`; an array, or a tuple, list or dict of arrays of one length; a
            list of numbers; or a list of file names.
        by: "element": single samples (or whole batches, if the elements are batches) go round
            the ranks. "batch", of datasets only: each element is a batch of all ranks together, of
            whose rows each rank gets its part. "file": whole files, of a list of names only.
            Default: "file" for a list of names, else "element".
        remainder: what becomes of elements (rows) left over when there is not one for each
            rank. "drop": no rank gets them. "pad": real samples, repeated with a sample weight of
            0, fill up; the others' weights are scaled so that means over a batch, and so the
            averaged gradient, are exactly those of the real samples. "keep": the first ranks get
            one more; then use `shortest` or `JoinCallback`, or the others wait at the end.
            Default: "drop"; "keep" for files.
        batch_size: samples of each rank and step. A dataset comes out batched by it; for arrays,
            say what `fit` will use. Needed to pad, unless by="batch". Default: None, not batched.
        process_set: the ranks that share the data. Default: all.

    Returns:
        Data of the kind that was given. A padded one is (x, y, sample_weight), of arrays as of
        dataset elements. `last_shard()` says how many were dropped or padded.

    Raises:
        NotInitializedError: before `init`.
        TypeError: the data cannot be cut. On all ranks, but others than the one at fault get a
            ValueError; so it is with what is wrong in the arguments of one rank.
        ValueError: an argument breaks its rule, ranks gave different data or arguments, the
            dataset shuffles without a seed, or nothing would be left.
        tf.errors.AbortedError: a peer failed, left, or did not come in time.

    Example:
        >>> import tensorflow as tf, tfring as hvd
        >>> hvd.init()
        >>> samples = tf.data.Dataset.range(6).map(lambda i: (i, 2 * i))
        >>> mine = hvd.data.shard(samples, batch_size=6, remainder="pad")
        >>> [tuple(part.shape) for part in next(iter(mine))]  # x, y, sample_weight
        [(6,), (6,), (6,)]
    """
    _checks.eager("shard")
    member = _agree.member_of(process_set)
    found: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        source = _sources.source_of(data, member.size)
        options = _options(data, source, by, remainder, batch_size)
        found.update(source=source, options=options)
        return {"the kind of `data`": source.kind, **options._asdict(), **source.traits}

    told = _agree.exchanged("shard", member, describe)
    _agree.require_same("shard", member, told, _DIFFERENT)
    source, options = found["source"], found["options"]
    report = _report(source, options, member)
    remember(report)
    if member.place == 0:
        _tell(options, source, report)
    cut = {"dataset": _cut_dataset, "arrays": _cut_arrays}.get(source.kind, _cut_list)
    return cut(data, source, options, member)


def _options(
    data: Any, source: Source, by: str | None, remainder: str | None, batch_size: Any
) -> _Options:
    """Returns the arguments with defaults filled in, or raises for those that do not fit."""
    if by is None:
        by = "file" if source.kind == "files" else "element"
    allowed = {"dataset": ("element", "batch"), "files": ("file",)}.get(source.kind, ("element",))
    if by not in allowed:
        raise ValueError(
            f"`by` must be {' or '.join(map(repr, allowed))} for data of this kind. Received: "
            f"by={by!r} with {type(data).__name__}. Files are given as a list of their names."
        )
    remainder = remainder or ("keep" if by == "file" else "drop")
    if remainder not in ("drop", "pad", "keep"):
        raise ValueError(
            f"`remainder` must be 'drop', 'pad' or 'keep'. Received: remainder={remainder!r}"
        )
    _check_batch_size(batch_size, by)
    if remainder == "pad":
        _check_padding(data, source, by, batch_size)
    return _Options(by, remainder, batch_size)


def _check_batch_size(batch_size: Any, by: str) -> None:
    if batch_size is None:
        return
    if by != "element":
        raise ValueError(
            f"`batch_size` goes with by='element' only. Received: batch_size={batch_size!r}, "
            f"by={by!r}. With by='batch', batches are cut as they come."
        )
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(
            "`batch_size` must be a positive whole number, the samples of each rank and step. "
            f"Received: batch_size={batch_size!r}"
        )


def _check_padding(data: Any, source: Source, by: str, batch_size: int | None) -> None:
    if source.kind in ("files", "list"):
        raise ValueError(
            "`remainder`='pad' needs samples with weights, as arrays or a dataset. Received: "
            f"remainder='pad' with a list of {'file names' if by == 'file' else 'numbers'}"
        )
    if by == "element" and batch_size is None:
        raise ValueError(
            "`remainder`='pad' needs `batch_size`, the samples of each rank and step: the weights "
            "of the last batch depend on it. Received: remainder='pad', batch_size=None"
        )
    _rows.require_weights(data.element_spec if source.kind == "dataset" else data)


def _report(source: Source, options: _Options, member: Member) -> ShardReport:
    """Returns the counts; raises ValueError, alike on all ranks, where nothing would be left."""
    size, total = member.size, source.length
    if options.by == "batch" or total is None or total < 0:
        if total == 0:
            raise ValueError(_nothing(options, total, size))
        dropped = 0 if options.remainder != "drop" or total == -1 else None
        padded = 0 if options.remainder != "pad" or total == -1 else None
        rows_known = options.by != "batch" and total == -1
        return ShardReport(size, None, None, dropped, padded if not rows_known else 0)
    enough = 1 if options.remainder == "pad" else size
    if total < enough:
        raise ValueError(_nothing(options, total, size))
    part, over = divmod(total, size)
    if options.remainder == "drop":
        return ShardReport(size, total, part, over, 0)
    if options.remainder == "pad":
        return ShardReport(size, total, part + bool(over), 0, -total % size)
    return ShardReport(size, total, part + (member.place < over), 0, 0)


def _nothing(options: _Options, total: int, size: int) -> str:
    things = "files" if options.by == "file" else "elements"
    way_out = (
        "Cut the samples instead: read all files on every rank and shard the dataset."
        if options.by == "file"
        else "remainder='pad' needs but one."
    )
    return (
        f"`data` must have at least one of its {things} for each rank. {way_out} Received: {total} "
        f"{things} for {size} ranks, remainder={options.remainder!r}"
    )


def _tell(options: _Options, source: Source, report: ShardReport) -> None:
    """Logs once, where something is dropped or padded."""
    things = {"file": "files", "batch": "rows"}.get(options.by, "elements")
    if report.dropped:
        text = f"drops {report.dropped} of {report.total} {things}"
    elif report.padded:
        text = f"repeats {report.padded} of {report.total} {things} with a sample weight of 0"
    elif source.length == -1 or options.remainder == "keep":
        return
    elif report.dropped is None and options.by == "batch":
        text = f"drops up to {report.ranks - 1} rows of each batch"
    elif report.dropped is None:
        text = f"drops up to {report.ranks - 1} elements of a dataset of unknown length"
    else:
        return
    text = f"shard {text}, so that {report.ranks} ranks get equally many"
    if text not in _told and report.ranks > 1:
        _told.add(text)
        _logger.warning("%s", text)


def _cut_list(data: Any, source: Source, options: _Options, member: Member) -> list[Any]:
    stop = len(data)
    if options.remainder == "drop":
        stop -= stop % member.size
    return list(data[member.place : stop : member.size])


def _cut_arrays(data: Any, source: Source, options: _Options, member: Member) -> Any:
    total, size = source.length or 0, member.size
    if options.remainder == "pad":
        return _padded_arrays(data, total, options, member)
    stop = total - total % size if options.remainder == "drop" else total
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else _slice(leaf, member.place, stop, size), data
    )


def _slice(leaf: Any, start: int, stop: int, step: int) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.gather(leaf, tf.range(start, stop, step))
    return (leaf.iloc if hasattr(leaf, "iloc") else leaf)[start:stop:step]


def _padded_arrays(data: Any, total: int, options: _Options, member: Member) -> Any:
    size, batch = member.size, options.batch_size or 1
    own = -(-total // size)
    places = member.place + size * np.arange(own)
    # In the last batch of all ranks together some samples only fill up.
    last = own - (own - 1) % batch - 1
    weights = np.ones(own, np.float32)
    weights[last:] = size * (own - last) / (total - size * last)
    weights[places >= total] = 0.0
    parts = tf.nest.map_structure(
        lambda leaf: None if leaf is None else _taken(leaf, places % total), data
    )
    given = parts[2] if len(parts) == 3 else None
    if given is None:
        return (*parts[:2], weights)
    scaled = tf.nest.map_structure(
        lambda w: np.asarray(w) * weights.reshape([-1] + [1] * (np.ndim(w) - 1)), given
    )
    return (*parts[:2], scaled)


def _taken(leaf: Any, places: np.ndarray) -> Any:
    if tf.is_tensor(leaf):
        return tf.gather(leaf, places)
    return (leaf.iloc if hasattr(leaf, "iloc") else leaf)[places]


def _cut_dataset(dataset: Any, source: Source, options: _Options, member: Member) -> Any:
    cut = _rows.Cut(member.size, member.place, options.remainder)
    if options.by == "batch":
        return _rows.rows_of(dataset, cut)
    if options.remainder == "pad":
        return _rows.rows_of(dataset.batch(member.size * (options.batch_size or 1)), cut)
    if options.remainder == "drop" and source.length is None:
        mine = _of_full_rounds(dataset, member)
    else:
        stop = source.length or 0
        if options.remainder == "drop" and stop > 0:
            dataset = dataset.take(stop - stop % member.size)
        mine = dataset.shard(member.size, member.place)
    return mine if options.batch_size is None else mine.batch(options.batch_size)


def _of_full_rounds(dataset: Any, member: Member) -> Any:
    """Returns this rank's elements of a dataset whose end is not known beforehand."""
    if member.size == 1:
        return dataset
    spec = dataset.element_spec
    flat = tf.nest.flatten(spec)
    dense = all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in flat)
    if dense:
        rounds = dataset.batch(member.size, drop_remainder=True)
        return rounds.map(
            _rows.called(spec, lambda r: tf.nest.map_structure(lambda t: t[member.place], r))
        )
    # A round is a window: its elements may differ in shape.
    pick = _rows.called(spec, lambda window: _only(window, member.place))
    return dataset.window(member.size, drop_remainder=True).flat_map(pick)


def _only(window: Any, index: int) -> Any:
    parts = tf.nest.map_structure(lambda part: part.skip(index).take(1), window)
    return tf.data.Dataset.zip(parts) if tf.nest.is_nested(parts) else parts
