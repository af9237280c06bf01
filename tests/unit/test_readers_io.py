"""What goes through tensorflow-io: where it loads, it reads; elsewhere the error says why not."""

from __future__ import annotations

import json
import pathlib
import types
from typing import Any

import pytest
import tensorflow as tf

from tfring import data
from tfring.data import io

pytestmark = pytest.mark.usefixtures("world")

on_2_16 = pytest.mark.skipif(
    not tf.__version__.startswith("2.16."), reason="tensorflow-io loads on TensorFlow 2.16 only"
)

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "row",
        "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}],
    }
)
FEATURES = {
    "id": tf.io.FixedLenFeature([], tf.int64),
    "text": tf.io.FixedLenFeature([], tf.string),
}
CALLS = {
    "register_filesystems": io.register_filesystems,
    "read_avro": lambda: io.read_avro([__file__], FEATURES, SCHEMA, batch_size=2),
    "read_orc": lambda: io.read_orc([__file__], ["id"]),
    "read_kafka": lambda: io.read_kafka("topic", 1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("version", ["2.15.1", "2.17.0", "2.21.0", "3.0.0"])
def test_other_tensorflow(name: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf, "__version__", version)
    with pytest.raises(ImportError, match=rf"io\.{name} needs .* 2\.16 only.*TensorFlow {version}"):
        CALLS[name]()


@pytest.mark.parametrize("name", CALLS)
def test_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf, "__version__", "2.16.2")
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_io", None)
    with pytest.raises(ImportError, match=r"cannot be imported.*pip install 'tfring\[io\]'"):
        CALLS[name]()


class Kafka:
    """Stands in for tensorflow_io: its datasets hold what they were made with."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.IODataset = types.SimpleNamespace(from_kafka=self.from_kafka)

    def from_kafka(self, topic: str, **options: Any) -> tf.data.Dataset:
        self.asked.append({"topic": topic, **options})
        messages = [f"{topic}-{options['partition']}-{i}" for i in range(2)]
        return tf.data.Dataset.from_tensor_slices((messages, ["", ""]))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    double = Kafka()
    monkeypatch.setattr(tf, "__version__", "2.16.2")
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_io", double)
    return double


def test_kafka_reads_all_partitions(kafka: Kafka) -> None:
    dataset = io.read_kafka("t", 2, servers="a:1,b:2", start=3, stop=9, configuration=["x=y"])
    assert [m.numpy() for m, _ in dataset] == [b"t-0-0", b"t-0-1", b"t-1-0", b"t-1-1"]
    common = {"topic": "t", "start": 3, "stop": 9, "servers": "a:1,b:2", "configuration": ["x=y"]}
    assert kafka.asked == [{**common, "partition": 0}, {**common, "partition": 1}]


@pytest.mark.parametrize(
    ("partitions", "error"), [(0, ValueError), (-1, ValueError), ("2", TypeError)]
)
def test_kafka_partitions(partitions: Any, error: type[Exception], kafka: Kafka) -> None:
    with pytest.raises(error, match=r"`partitions` must be .* Received: "):
        io.read_kafka("t", partitions)


def avro(rows: list[tuple[int, str]]) -> bytes:
    """An object container file of Avro 1.8 with one block."""

    def number(value: int) -> bytes:
        value, result = value << 1, b""
        while value > 127:
            result += bytes([value & 127 | 128])
            value >>= 7
        return result + bytes([value])

    def text(value: str) -> bytes:
        return number(len(value)) + value.encode()

    sync = bytes(range(16))
    block = b"".join(number(i) + text(t) for i, t in rows)
    meta = number(2) + text("avro.schema") + text(SCHEMA) + text("avro.codec") + text("null")
    head = b"Obj\x01" + meta + number(0) + sync
    return head + (number(len(rows)) + number(len(block)) + block + sync if rows else b"")


@pytest.fixture
def avro_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    for part in range(2):
        rows = [(4 * part + i, f"t{4 * part + i}") for i in range(4)]
        (tmp_path / f"{part}.avro").write_bytes(avro(rows))
    return tmp_path


@on_2_16
def test_avro(avro_folder: pathlib.Path) -> None:
    dataset = io.read_avro(avro_folder, FEATURES, SCHEMA, "id", batch_size=3)
    batches = [(x["text"].numpy().tolist(), y.numpy().tolist()) for x, y in dataset]
    assert batches[0] == ([b"t0", b"t1", b"t2"], [0, 1, 2])
    assert [len(y) for _, y in batches] == [3, 3, 2]
    assert data.last_shard() == (1, 8, 8, 0, 0)


@on_2_16
def test_avro_shuffled(avro_folder: pathlib.Path) -> None:
    dataset = io.read_avro(avro_folder, FEATURES, SCHEMA, batch_size=3, shuffle=True)
    ids = [int(i) for batch in dataset for i in batch["id"]]
    assert ids != sorted(ids)
    assert sorted(ids) == list(range(8))


@on_2_16
@pytest.mark.parametrize("kind", ["Avro", "ORC"])
def test_files_of_another_kind(kind: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "0").write_text("text")
    with pytest.raises(ValueError, match=rf"{tmp_path}/0: is no {kind} file"):
        if kind == "Avro":
            io.read_avro(tmp_path, FEATURES, SCHEMA, batch_size=3)
        else:
            io.read_orc(tmp_path, ["id"])


@pytest.fixture
def orc_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    pa = pytest.importorskip("pyarrow", exc_type=ImportError)
    orc = pytest.importorskip("pyarrow.orc", exc_type=ImportError)
    for part in range(2):
        ids = [4 * part + i for i in range(4)]
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"t{i}" for i in ids]})
        orc.write_table(table, str(tmp_path / f"{part}.orc"))
    return tmp_path


@on_2_16
@pytest.mark.parametrize("columns", [["id"], ["text", "id"]], ids=str)
def test_orc(columns: list[str], orc_folder: pathlib.Path) -> None:
    dataset = io.read_orc(orc_folder, columns, batch_size=3)
    batches = [{name: v.numpy().tolist() for name, v in batch.items()} for batch in dataset]
    expected = {"id": [0, 1, 2], "text": [b"t0", b"t1", b"t2"]}
    assert batches[0] == {name: expected[name] for name in columns}
    assert [len(batch["id"]) for batch in batches] == [3, 3, 2]


@on_2_16
def test_orc_without_the_column(orc_folder: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=rf"{orc_folder}/0\.orc: .*other"):
        io.read_orc(orc_folder, ["other"])


@on_2_16
def test_orc_shuffled_with_a_label(orc_folder: pathlib.Path) -> None:
    dataset = io.read_orc(orc_folder, ["id", "text"], "id", shuffle=True)
    assert sorted(int(y) for _, y in dataset) == list(range(8))


@on_2_16
def test_file_systems_come_with_it() -> None:
    io.register_filesystems()
    assert {"az", "gs", "hdfs", "s3"} <= set(tf.io.gfile.get_registered_schemes())
