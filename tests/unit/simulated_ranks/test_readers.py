"""The readers of folders on several ranks: each row on one rank, whatever the files are like."""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring import data

pa = pytest.importorskip("pyarrow", exc_type=ImportError)
pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)

Ranks = Callable[..., Any]


def write_csv(path: pathlib.Path, ids: list[int], packed: bool = False) -> None:
    # Every value spans lines: whoever cuts at line ends loses some.
    rows = "".join(f'{i},"text\n{i}\n"\n' for i in ids)
    (gzip.open if packed else open)(path, "wb").write(f"id,text\n{rows}".encode())


def write_tfrecord(path: pathlib.Path, ids: list[int], packed: bool = False) -> None:
    with tf.io.TFRecordWriter(str(path), "GZIP" if packed else "") as file:
        for i in ids:
            texts = tf.train.BytesList(value=[f"text\n{i}\n".encode()])
            features = {
                "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[i])),
                "text": tf.train.Feature(bytes_list=texts),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            file.write(example.SerializeToString())


def write_parquet(path: pathlib.Path, ids: list[int], packed: bool = False) -> None:
    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"text\n{i}\n" for i in ids]})
    pq.write_table(table, path, row_group_size=3, compression="gzip" if packed else "none")


FEATURES = {
    "id": tf.io.FixedLenFeature([], tf.int64),
    "text": tf.io.FixedLenFeature([], tf.string),
}
WRITERS = {"csv": write_csv, "tfrecord": write_tfrecord, "parquet": write_parquet}
FORMATS = list(WRITERS)


def read(kind: str, files: Any, **options: Any) -> tf.data.Dataset:
    if kind == "tfrecord":
        return data.read_tfrecord(files, FEATURES, **options)
    return {"csv": data.read_csv, "parquet": data.read_parquet}[kind](files, **options)


def fill(folder: pathlib.Path, kind: str, rows: list[int], packed: bool = False) -> pathlib.Path:
    """Writes files with rows numbered from 0 on."""
    first = 0
    for number, count in enumerate(rows):
        WRITERS[kind](folder / f"part-{number}.{kind}", list(range(first, first + count)), packed)
        first += count
    return folder


def ids_of(dataset: tf.data.Dataset) -> list[int]:
    """The ids of rows that are a dict, or of batches of them; their texts are looked at, too."""
    rows = [
        (int(i), text)
        for element in dataset
        for i, text in zip(
            np.atleast_1d(element["id"]), np.atleast_1d(element["text"]), strict=True
        )
    ]
    assert all(text == f"text\n{i}\n".encode() for i, text in rows)
    return [i for i, _ in rows]


def outcomes(simulation: Any, function: Callable[[int], Any]) -> list[Any]:
    """What each rank got, or the error that it raised."""

    def caught(rank: int) -> Any:
        try:
            return function(rank)
        except (ValueError, TypeError, OSError, ImportError) as error:
            return error

    return simulation.run(caught)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("size", "rows", "packed"),
    [(1, [4, 4], False), (3, [4, 4, 4], False), (3, [7, 0, 1, 12], True), (4, [30], False)],
    ids=["one rank", "files alike", "packed, not alike", "one file"],
)
def test_each_row_is_on_one_rank(
    kind: str, size: int, rows: list[int], packed: bool, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, rows, packed)

    def mine(rank: int) -> tuple[list[int], Any]:
        dataset = read(kind, tmp_path, batch_size=2)
        return ids_of(dataset), data.last_shard()

    parts = ranks(size).run(mine)
    total = sum(rows)
    seen = sorted(i for part, _ in parts for i in part)
    assert len(set(seen)) == len(seen) == total - total % size
    assert {len(part) for part, _ in parts} == {total // size}
    assert parts[0][1] == data.ShardReport(size, total, total // size, total % size, 0)


@pytest.mark.parametrize("kind", FORMATS)
def test_padding_has_weights_that_make_means_exact(
    kind: str, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, [5, 2])
    parts = ranks(3).run(
        lambda rank: list(
            read(kind, tmp_path, label="id", batch_size=2, remainder="pad", shuffle=True)
        )
    )
    assert [len(part) for part in parts] == [2, 2, 2]
    last = [(int(y), float(w)) for part in parts for y, w in zip(*part[1][1:], strict=True)]
    assert sorted(w for _, w in last) == [0.0, 0.0, 3.0]
    real = [int(y) for part in parts for y in part[0][1]] + [y for y, w in last if w]
    assert sorted(real) == list(range(7))
    assert all(set(part[0][2].numpy()) == {1.0} for part in parts)


@pytest.mark.parametrize("kind", FORMATS)
def test_more_ranks_than_files_and_than_rows(
    kind: str, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, [2])
    errors = outcomes(ranks(4), lambda rank: read(kind, tmp_path))
    assert all("2 rows in 1 files for 4 ranks" in str(error) for error in errors)
    assert all("remainder='pad'" in str(error) for error in errors)
    parts = ranks(4).run(
        lambda rank: list(read(kind, tmp_path, label="id", batch_size=8, remainder="pad"))
    )
    weights = [float(w) for ((_, _, (w,)),) in parts]
    assert sorted(weights) == [0.0, 0.0, 2.0, 2.0]


@pytest.mark.parametrize("kind", FORMATS)
def test_order_is_another_in_each_epoch_and_the_same_in_each_run(
    kind: str, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, [9, 9, 9, 9])

    def epochs(rank: int) -> list[list[int]]:
        dataset = read(kind, tmp_path, shuffle=True, batch_size=4)
        return [ids_of(dataset), ids_of(dataset)]

    tf.random.set_seed(3)
    first, second = ranks(2).run(epochs), ranks(2).run(epochs)
    for before, after in zip(first, second, strict=True):
        assert before == after
        assert before[0] != before[1]
        assert sorted(before[0]) == sorted(before[1])


@pytest.mark.parametrize("kind", FORMATS)
def test_ranks_that_find_other_files_all_fail(
    kind: str, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, [2, 2])
    files = sorted(tmp_path.iterdir())
    errors = outcomes(ranks(3), lambda rank: read(kind, files[:1] if rank == 1 else files))
    missing = f"Rank 1 finds others than rank 0: 'part-1.{kind}' is missing there"
    assert all(isinstance(error, ValueError) and missing in str(error) for error in errors)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_folder_that_one_rank_does_not_have(
    kind: str, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, [2, 2])
    errors = outcomes(ranks(2), lambda rank: read(kind, tmp_path if rank else tmp_path / "other"))
    assert isinstance(errors[0], FileNotFoundError)
    assert isinstance(errors[1], ValueError)
    assert "failed on rank 0: FileNotFoundError: `files` must be a folder" in str(errors[1])


@pytest.mark.parametrize("kind", FORMATS)
def test_arguments_that_differ(kind: str, ranks: Ranks, tmp_path: pathlib.Path) -> None:
    fill(tmp_path, kind, [2, 2])
    errors = outcomes(ranks(2), lambda rank: read(kind, tmp_path, batch_size=rank + 1))
    assert all("`batch_size` differs between ranks" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "files"}, "`by` must be one of 'auto', 'file', 'row'"),
        ({"remainder": "none"}, "`remainder` must be one of 'drop', 'pad', 'keep'"),
        ({"batch_size": 0}, "`batch_size` must be a positive whole number"),
        ({"shuffle": -1}, "`shuffle` must be a positive whole number or one of True, False"),
        ({"seed": 1.5}, "`seed` must be a positive whole number"),
        ({"label": "y"}, "`label` must"),
        ({"remainder": "pad"}, "it needs `label` and `batch_size`"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("kind", FORMATS)
def test_argument_that_is_wrong_on_one_rank_fails_all(
    kind: str, options: dict[str, Any], text: str, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, [2, 2])
    errors = outcomes(ranks(2), lambda rank: read(kind, tmp_path, **(options if rank else {})))
    if options == {"label": "y"} and kind != "tfrecord":
        assert all("`label` differs between ranks" in str(error) for error in errors)
        errors = outcomes(ranks(2), lambda rank: read(kind, tmp_path, **options))
    assert [type(error) for error in errors] == [ValueError, ValueError]
    assert all(text in str(error) for error in errors)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_damaged_file_is_named_on_all_ranks(
    kind: str, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, [4, 4, 0, 4, 4])
    damaged = tmp_path / f"part-3.{kind}"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-5] if kind != "csv" else content + b'5,"open')
    errors = outcomes(ranks(2), lambda rank: read(kind, tmp_path))
    assert [type(error) for error in errors] == [ValueError, ValueError]
    assert all(str(damaged) in str(error) for error in errors)


@pytest.mark.parametrize("kind", FORMATS)
def test_files_without_rows_and_hidden_ones(
    kind: str, ranks: Ranks, tmp_path: pathlib.Path
) -> None:
    fill(tmp_path, kind, [0, 3, 0, 3])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / f".part-0.{kind}.crc").write_bytes(b"crc")
    if kind != "parquet":
        (tmp_path / f"part-9.{kind}").touch()
    parts = ranks(2).run(lambda rank: ids_of(read(kind, tmp_path)))
    assert parts == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_to_read(kind: str, ranks: Ranks, tmp_path: pathlib.Path) -> None:
    fill(tmp_path, kind, [0, 0])
    errors = outcomes(ranks(2), lambda rank: read(kind, tmp_path))
    assert all("must hold at least one row. Received: 2 files" in str(error) for error in errors)


@pytest.mark.parametrize("kind", FORMATS)
def test_keeping_all_rows(kind: str, ranks: Ranks, tmp_path: pathlib.Path) -> None:
    fill(tmp_path, kind, [3, 2])
    parts = ranks(2).run(lambda rank: ids_of(read(kind, tmp_path, remainder="keep")))
    assert sorted(map(len, parts)) == [2, 3]
    assert sorted(parts[0] + parts[1]) == [0, 1, 2, 3, 4]


def test_lists_are_cut_inside_of_a_row_group(ranks: Ranks, tmp_path: pathlib.Path) -> None:
    fixed = pa.array([[i, -i] for i in range(6)], pa.list_(pa.int64(), 2))
    table = {"id": range(6), "list": [[i] * i for i in range(6)], "fixed": fixed}
    pq.write_table(pa.table({name: pa.array(v) for name, v in table.items()}), tmp_path / "0")
    parts = ranks(3).run(lambda rank: list(data.read_parquet(tmp_path, batch_size=9)))
    for rank, (batch,) in enumerate(parts):
        mine = [2 * rank, 2 * rank + 1]
        assert batch["list"].to_list() == [[i] * i for i in mine]
        assert batch["fixed"].numpy().tolist() == [[i, -i] for i in mine]


def test_a_process_set_shares_by_itself(ranks: Ranks, tmp_path: pathlib.Path) -> None:
    fill(tmp_path, "csv", [4])
    simulation = ranks(3)
    some = simulation.process_set([0, 2])
    some._handle = 1  # as if registered
    parts = simulation.run(
        lambda rank: [] if rank == 1 else ids_of(read("csv", tmp_path, process_set=some))
    )
    assert parts == [[0, 1], [], [2, 3]]
