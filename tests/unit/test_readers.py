"""What the readers of folders make of files, on one rank."""

from __future__ import annotations

import datetime
import decimal
import gzip
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring import data
from tfring.data import _arrow, _files, _parquet

pa = pytest.importorskip("pyarrow", exc_type=ImportError)
pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)

pytestmark = pytest.mark.usefixtures("world")


def rows(dataset: tf.data.Dataset) -> list[Any]:
    """Elements as Python objects: dicts, or tuples of a dict and a label."""

    def plain(value: Any) -> Any:
        found = value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy()
        return found.tolist() if hasattr(found, "tolist") else found

    return [tf.nest.map_structure(plain, element) for element in dataset]


@pytest.fixture
def write_csv(tmp_path: pathlib.Path):
    def write(text: str | bytes, name: str = "0.csv") -> pathlib.Path:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return write


@pytest.fixture
def write_parquet(tmp_path: pathlib.Path):
    def write(columns: dict[str, Any], name: str = "0.parquet", **options: Any) -> pathlib.Path:
        pq.write_table(pa.table(columns), tmp_path / name, **options)
        return tmp_path

    return write


# Files.


@pytest.mark.parametrize("how", ["folder", "text", "glob", "list", "file"])
def test_ways_to_name_files(how: str, write_csv) -> None:
    folder = write_csv("a\n1\n")
    file = folder / "0.csv"
    ways = {"folder": folder, "text": str(folder), "glob": f"{folder}/*", "file": file}
    assert rows(data.read_csv(ways.get(how, [file]))) == [{"a": 1}]


def test_files_are_read_in_the_order_of_their_paths(write_csv) -> None:
    for number in (2, 10, 1):
        folder = write_csv(f"a\n{number}\n", f"{number}.csv")
    files = [folder / "2.csv", folder / "10.csv", folder / "1.csv"]
    assert [row["a"] for row in rows(data.read_csv(files))] == [1, 10, 2]


@pytest.mark.parametrize(
    ("files", "error", "text"),
    [
        ("none", FileNotFoundError, "must be a folder, a file, a glob or a list of files"),
        ("none/*.csv", ValueError, "must lead to at least one file that is not hidden"),
        (["none"], FileNotFoundError, "must name files that exist. Received: 'none'"),
        (["a", "a"], ValueError, "must name each file once"),
        ([], ValueError, "Received: files=0 paths"),
        (3, TypeError, "Received: files=3 of type int"),
    ],
    ids=str,
)
def test_files_that_are_not_there(files: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        data.read_csv(files)


@pytest.mark.parametrize("how", ["folder", "glob", "list", "glob of hidden"])
def test_hidden_files_are_read_where_they_are_named(how: str, write_csv) -> None:
    write_csv("a\n1\n")
    folder = write_csv("a\n2\n", "_0.csv")
    ways = {"glob": f"{folder}/*", "glob of hidden": f"{folder}/_*", "list": [folder / "_0.csv"]}
    found = [row["a"] for row in rows(data.read_csv(ways.get(how, folder)))]
    assert found == ([2] if how in ("list", "glob of hidden") else [1])


def test_a_folder_of_folders_is_not_half_read(write_csv) -> None:
    folder = write_csv("a\n1\n")
    (folder / "more").mkdir()
    with pytest.raises(ValueError, match=r"must be a folder of files only.*Give a glob"):
        data.read_csv(folder)


def test_files_of_equal_names_in_two_folders(tmp_path: pathlib.Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.csv").write_text("a\n1\n")
    names = [file.name for file in _files.find(f"{tmp_path}/*/*.csv")]
    assert names == [f"{tmp_path}/a/0.csv", f"{tmp_path}/b/0.csv"]


# CSV.


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a,b\n1,x\n-2,\n", {}, [{"a": 1, "b": b"x"}, {"a": -2, "b": b""}]),
        ("a\r\n1\r\n", {}, [{"a": 1}]),
        ("a\n1\n2.5\n", {}, [{"a": 1.0}, {"a": 2.5}]),
        ("a\n1\nx\n", {}, [{"a": b"1"}, {"a": b"x"}]),
        ("a\n18446744073709551616\n", {}, [{"a": 2.0**64}]),
        ("a\n007\n", {"dtypes": {"a": "string"}}, [{"a": b"007"}]),
        ("a,b\n1,2\n", {"columns": ["b"]}, [{"b": 2}]),
        ("a,b\n1,2\n", {"columns": ["b"], "label": "a"}, [({"b": 2}, 1)]),
        ("a,b\n1,2\n,3\n", {"defaults": {"a": 9}}, [{"a": 1, "b": 2}, {"a": 9, "b": 3}]),
        ("a,b\nNA,2\n", {"na_value": "NA", "defaults": {"a": 9}}, [{"a": 9, "b": 2}]),
        ("a\tb\n1\t2\n", {"delimiter": "\t"}, [{"a": 1, "b": 2}]),
        ("1,2\n3,4", {"names": ["a", "b"]}, [{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
        (b'\xef\xbb\xbfa,"b\nc"\n1,2\n', {}, [{"a": 1, "b\nc": 2}]),
    ],
    ids=str,
)
def test_csv(text: Any, options: dict[str, Any], expected: Any, write_csv) -> None:
    found = rows(data.read_csv(write_csv(text), **options))
    assert found == expected


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n3\n", {}, "Expect 2 fields but have 1 in record"),
        ("a,b\n1,2\n,3\n", {}, r"Field 0 is required but missing in record.*`defaults`"),
        ("a\n1.5\n", {"dtypes": {"a": "int32"}}, "Field 0 in record is not a valid int32: 1.5"),
        ('a\n"open\n', {}, "without closing quoted field"),
        ("a,a\n1,2\n", {}, "two columns have the same name"),
        (b"a\n\xff\xfe\n", {}, "can't decode"),
        (b"\x1f\x8bnot gzip", {}, "compression"),
        (gzip.compress(b"a\n" + b"12345\n" * 1000)[:-12], {}, "ended before the end-of-stream"),
        (gzip.compress(b"a\n1\n")[:-4] + b"size", {}, "Incorrect length of data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_csv_that_does_not_fit_is_named(
    text: Any, options: dict[str, Any], message: str, write_csv
) -> None:
    folder = write_csv(text)
    with pytest.raises(ValueError, match=rf"{folder}/0\.csv: .*{message}"):
        data.read_csv(folder, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": []}, "`columns` must be a list of at least one name.*Received: columns=."),
        ({"columns": "a"}, "`columns` must be a list of at least one name.*columns='a'"),
        ({"columns": ["c"]}, "`columns` must name columns of the files, a, b. .*columns='c'"),
        ({"label": "c"}, "`label` must name columns of the files, a, b. .*label='c'"),
        ({"dtypes": {"c": "int32"}}, "`dtypes` must be given for columns that are read, a, b"),
        ({"defaults": {"c": 1}}, "`defaults` must be given for columns that are read, a, b"),
        ({"dtypes": {"a": "bool"}}, "`dtypes` must be of int32, .* Received: 'bool' for 'a'"),
        ({"dtypes": {"a": "text"}}, "Received: 'text' for 'a'"),
        ({"delimiter": "::"}, "`delimiter` must be one ASCII character"),
        ({"names": ["a", "a"]}, "`names` must hold the names of all columns, each once"),
    ],
    ids=str,
)
def test_csv_arguments(options: dict[str, Any], message: str, write_csv) -> None:
    with pytest.raises(ValueError, match=message):
        data.read_csv(write_csv("a,b\n1,2\n"), **options)


def test_csv_files_with_other_columns_are_both_named(write_csv) -> None:
    write_csv("a,b\n1,2\n", "0.csv")
    folder = write_csv("b,a\n1,2\n", "1.csv")
    with pytest.raises(ValueError, match=r"1\.csv has other columns than .*0\.csv: .*'b', 'a'"):
        data.read_csv(folder)


# TFRecord.


def write_records(file: pathlib.Path, records: list[bytes], compression: str = "") -> None:
    with tf.io.TFRecordWriter(str(file), compression) as writer:
        for record in records:
            writer.write(record)


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_records_as_bytes(compression: str, tmp_path: pathlib.Path) -> None:
    write_records(tmp_path / "0", [b"a", b"", b"c"], compression)
    assert rows(data.read_tfrecord(tmp_path)) == [b"a", b"", b"c"]
    assert int(data.read_tfrecord(tmp_path, batch_size=2).cardinality()) == 2


def test_a_record_whose_length_looks_like_gzip(tmp_path: pathlib.Path) -> None:
    write_records(tmp_path / "0", [b"x" * 0x8B1F])
    assert (tmp_path / "0").read_bytes()[:2] == b"\x1f\x8b"
    (record,) = data.read_tfrecord(tmp_path)
    assert len(record.numpy()) == 0x8B1F


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:29] + b"z" + b[30:], "corrupted record at 29"),
        (lambda b: b[:-3], "truncated record at 34"),
        (lambda b: b[:40], "ends inside of a record, at byte 34 of 40"),
        (lambda b: b"some text", "ends inside of a record, at byte 0 of 9"),
        (lambda b: b"some text of more bytes", "corrupted record at 0"),
    ],
    ids=["value", "end", "header", "little text", "text"],
)
def test_damaged_records(damage: Any, message: str, tmp_path: pathlib.Path) -> None:
    write_records(tmp_path / "0", [b"a", b"b", b"c"])
    (tmp_path / "0").write_bytes(damage((tmp_path / "0").read_bytes()))
    with pytest.raises(ValueError, match=rf"{tmp_path}/0: .*{message}"):
        data.read_tfrecord(tmp_path)


@pytest.mark.parametrize("kept", [10, 60, -4])
def test_packed_records_that_end_too_early(kept: int, tmp_path: pathlib.Path) -> None:
    write_records(tmp_path / "0", [b"%d" % i for i in range(100)], "GZIP")
    (tmp_path / "0").write_bytes((tmp_path / "0").read_bytes()[:kept])
    with pytest.raises(ValueError, match=f"{tmp_path}/0: "):
        data.read_tfrecord(tmp_path)


def test_features_that_the_records_do_not_have(tmp_path: pathlib.Path) -> None:
    write_records(tmp_path / "0", [b""])
    with pytest.raises(ValueError, match=rf"{tmp_path}/0: .*'?x"):
        data.read_tfrecord(tmp_path, {"x": tf.io.FixedLenFeature([], tf.int64)})


def test_compression_by_another_name(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="`compression` must be one of 'auto', 'none', 'gzip'"):
        data.read_tfrecord(tmp_path, compression="GZIP")


# Parquet.

DAY = datetime.datetime(1970, 1, 2)
COLUMNS = {
    "bool": ([True, False], [True, False]),
    "uint8": (pa.array([1, 255], pa.uint8()), [1, 255]),
    "float16": (np.array([1.5, 2], np.float16), [1.5, 2.0]),
    "text": (["ä", ""], ["ä".encode(), b""]),
    "large text": (pa.array(["a", "b"], pa.large_string()), [b"a", b"b"]),
    "bytes": ([b"\0\xff", b""], [b"\0\xff", b""]),
    "categories": (pa.array(["a", "b"]).dictionary_encode(), [b"a", b"b"]),
    "lists": ([[1, 2], []], [[1, 2], []]),
    "lists of text": ([["a"], ["b", "c"]], [[b"a"], [b"b", b"c"]]),
    "fixed lists": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], [3, 4]]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_parquet_types(name: str, write_parquet) -> None:
    written, expected = COLUMNS[name]
    (batch,) = rows(data.read_parquet(write_parquet({"c": written}), batch_size=2))
    assert batch == {"c": expected}


def test_parquet_rows_without_batches(write_parquet) -> None:
    folder = write_parquet({"x": [1.5, 2.5], "l": [[1], []], "y": [0, 1]})
    expected = [({"x": 1.5, "l": [1]}, 0), ({"x": 2.5, "l": []}, 1)]
    assert rows(data.read_parquet(folder, label="y")) == expected


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [([1, 2], "float32", [1.0, 2.0]), ([DAY], "int64", [86_400_000_000]), ([7], "string", [b"7"])],
)
def test_parquet_cast(values: Any, dtype: str, expected: Any, write_parquet) -> None:
    dataset = data.read_parquet(write_parquet({"c": values}), dtypes={"c": dtype}, batch_size=2)
    assert dataset.element_spec["c"].dtype == dtype
    assert rows(dataset) == [{"c": expected}]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("values", [[1, None], ["a", None], [[1, None], [2]]], ids=str)
def test_parquet_nulls(values: Any, statistics: bool, write_parquet) -> None:
    folder = write_parquet({"c": values}, write_statistics=statistics)
    known = statistics and not isinstance(values[0], list)
    # Where the footer does not tell, it is seen while reading, through TensorFlow.
    error = ValueError if known else tf.errors.InvalidArgumentError
    with pytest.raises(error, match=rf"column 'c' with a null in {folder}/0\.parquet"):
        rows(data.read_parquet(folder))
    default = "n" if values[0] == "a" else 5
    (batch,) = rows(data.read_parquet(folder, defaults={"c": default}, batch_size=2))
    assert batch["c"] == {"1": [1, 5], "a": [b"a", b"n"]}.get(str(values[0]), [[1, 5], [2]])


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"c": [decimal.Decimal("1.5")]}, {}, r"has the type decimal128\(2, 1\), which TensorFlow"),
        ({"c": [{"a": 1}]}, {}, "has the type struct"),
        ({"c": [[[1]]]}, {}, "has the type list"),
        ({"c": [{"a": 1}]}, {"dtypes": {"c": "int32"}}, "cannot be cast"),
        ({"c": [1]}, {"dtypes": {"c": "complex64"}}, "`dtypes` must be of int8"),
        ({"c": [1]}, {"columns": ["d"]}, "`columns` must name columns of the files, c."),
        ({"c": [1]}, {"defaults": {"d": 1}}, "`defaults` must be given for columns"),
    ],
)
def test_parquet_columns_that_do_not_fit(
    columns: Any, options: dict[str, Any], message: str, write_parquet
) -> None:
    with pytest.raises(ValueError, match=message):
        data.read_parquet(write_parquet(columns), **options)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": [1.5]}, "type int64 in .*0.parquet, but of type double in .*1.parquet"),
        ({"b": [1]}, "type int64 in .*0.parquet, but not there in .*1.parquet"),
    ],
)
def test_parquet_files_with_other_columns(other: Any, message: str, write_parquet) -> None:
    write_parquet({"a": [1]})
    folder = write_parquet(other, "1.parquet")
    with pytest.raises(ValueError, match=message):
        data.read_parquet(folder)


def test_parquet_files_with_other_types_may_be_cast(write_parquet) -> None:
    write_parquet({"a": [1]})
    folder = write_parquet({"a": [1.5]}, "1.parquet")
    found = rows(data.read_parquet(folder, dtypes={"a": "float32"}))
    assert found == [{"a": 1.0}, {"a": 1.5}]


def test_parquet_is_not_something_else(tmp_path: pathlib.Path) -> None:
    (tmp_path / "0.parquet").write_text("text")
    with pytest.raises(ValueError, match=rf"{tmp_path}/0\.parquet: .*Parquet"):
        data.read_parquet(tmp_path)


def test_parquet_reads_only_the_row_groups_it_needs(write_parquet) -> None:
    folder = write_parquet({"c": list(range(20))}, row_group_size=4)
    batches = list(_parquet._batches(str(folder / "0.parquet"), 6, 7, ["c"]))
    assert [v for batch in batches for v in batch["c"].to_pylist()] == list(range(6, 13))


def test_parquet_on_a_file_system_of_tensorflow(write_parquet) -> None:
    local = write_parquet({"c": [1, 2, 3]}) / "0.parquet"
    with tf.io.gfile.GFile("ram://folder/0.parquet", "wb") as file:
        file.write(local.read_bytes())
    assert rows(data.read_parquet("ram://folder", batch_size=4)) == [{"c": [1, 2, 3]}]


def test_parquet_without_pyarrow(write_parquet, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_parquet({"c": [1]})
    monkeypatch.setattr(_arrow, "pa", None)
    monkeypatch.setattr(_arrow, "_missing", "No module named 'pyarrow'")
    with pytest.raises(
        ImportError, match=r"No module named 'pyarrow'. Run `pip install 'tfring\[parquet\]'`"
    ):
        data.read_parquet(folder)
