"""`tfring.data.shard`: who gets which elements, and that padding leaves the numbers as they are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring import process_sets
from tfring.data import _shard, last_shard, shard


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told once is told again."""
    monkeypatch.setattr(_shard, "_told", set())


def contents(dataset: Any) -> list[Any]:
    return [tf.nest.map_structure(lambda t: t.numpy().tolist(), e) for e in dataset]


def pairs(count: int) -> Any:
    return tf.data.Dataset.range(count).map(lambda i: (i, 10 * i))


def unknown(dataset: Any) -> Any:
    """The same dataset with a length that nobody knows."""
    return dataset.filter(lambda *_: True)


ELEMENTS = {
    "drop": [[0, 3, 6], [1, 4, 7], [2, 5, 8]],
    "keep": [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]],
}


@pytest.mark.parametrize("remainder", ELEMENTS)
def test_elements_go_round_the_ranks(ranks: Callable[..., Any], remainder: str) -> None:
    data = tf.data.Dataset.range(10)
    parts = ranks(3).run(lambda _: contents(shard(data, remainder=remainder)))
    assert parts == ELEMENTS[remainder]


@pytest.mark.parametrize("remainder", ELEMENTS)
def test_elements_of_unknown_number(ranks: Callable[..., Any], remainder: str) -> None:
    data = unknown(tf.data.Dataset.range(10))
    parts = ranks(3).run(lambda _: contents(shard(data, remainder=remainder)))
    assert parts == ELEMENTS[remainder]


def test_elements_of_different_shapes_and_unknown_number(ranks: Callable[..., Any]) -> None:
    ragged = tf.ragged.constant([[1], [2, 3], [], [4], [5, 6], [7], [8]])
    data = unknown(tf.data.Dataset.from_tensor_slices({"a": ragged, "b": tf.range(7)}))
    parts = ranks(3).run(lambda _: contents(shard(data)))
    assert parts == [
        [{"a": [1], "b": 0}, {"a": [4], "b": 3}],
        [{"a": [2, 3], "b": 1}, {"a": [5, 6], "b": 4}],
        [{"a": [], "b": 2}, {"a": [7], "b": 5}],
    ]


def test_endless_data_is_never_short(ranks: Callable[..., Any]) -> None:
    data = tf.data.Dataset.range(4).repeat()
    parts = ranks(3).run(lambda _: contents(shard(data, batch_size=2).take(1)))
    assert parts == [[[0, 3]], [[1, 0]], [[2, 1]]]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
def test_a_step_of_all_ranks_is_a_batch_of_one_process(
    ranks: Callable[..., Any], size: int, known: bool, remainder: str
) -> None:
    data = pairs(23) if known else unknown(pairs(23))
    parts = ranks(size).run(lambda _: contents(shard(data, batch_size=2, remainder=remainder)))
    alone = [x for x, _ in contents(pairs(23).batch(2 * size))]
    if remainder == "drop":
        alone[-1] = alone[-1][: len(alone[-1]) // size * size]
    steps = [sorted(_real(step)) for step in zip(*parts, strict=False)]
    assert steps == [batch for batch in alone if batch]


def _real(step: Any) -> list[int]:
    return [
        x
        for batch in step
        for x, weight in zip(batch[0], batch[2] if len(batch) == 3 else batch[0], strict=True)
        if len(batch) == 2 or weight > 0
    ]


def test_rows_of_batches_of_all_ranks(ranks: Callable[..., Any]) -> None:
    data = pairs(10).batch(7)
    parts = ranks(3).run(lambda _: contents(shard(data, by="batch")))
    assert [[x for x, _ in part] for part in parts] == [[[0, 3], [7]], [[1, 4], [8]], [[2, 5], [9]]]


def test_batches_too_small_for_all_ranks_are_dropped(ranks: Callable[..., Any]) -> None:
    data = tf.data.Dataset.range(8).batch(3)
    parts = ranks(3).run(lambda _: contents(shard(data, by="batch")))
    assert parts == [[[0], [3]], [[1], [4]], [[2], [5]]]


def test_batches_too_small_to_keep_are_an_error_on_all_ranks(ranks: Callable[..., Any]) -> None:
    def fails(_: int) -> str:
        with pytest.raises(tf.errors.InvalidArgumentError, match="fewer rows than there are ranks"):
            contents(shard(tf.data.Dataset.range(8).batch(3), by="batch", remainder="keep"))
        return "raised"

    assert ranks(3).run(fails) == ["raised"] * 3


def test_static_shapes_survive(ranks: Callable[..., Any]) -> None:
    data = pairs(12).batch(6, drop_remainder=True)
    specs = ranks(3).run(lambda _: shard(data, by="batch").element_spec)
    assert [spec[0].shape.as_list() for spec in specs] == [[2]] * 3


def test_sparse_rows(ranks: Callable[..., Any]) -> None:
    dense = np.arange(1, 15).reshape(7, 2)
    data = tf.data.Dataset.from_tensors(tf.sparse.from_dense(dense))

    def part(_: int) -> Any:
        (only,) = shard(data, by="batch")
        return tf.sparse.to_dense(only).numpy().tolist()

    assert ranks(3).run(part) == [
        dense[[0, 3]].tolist(),
        dense[[1, 4]].tolist(),
        dense[[2, 5]].tolist(),
    ]


@pytest.mark.parametrize("of", ["dataset", "unknown", "batches", "arrays"])
@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize(("size", "count", "batch"), [(2, 11, 3), (3, 13, 2), (4, 9, 2), (4, 2, 5)])
def test_padded_gradient_is_that_of_the_real_samples(
    ranks: Callable[..., Any], of: str, weighted: bool, size: int, count: int, batch: int
) -> None:
    generator = np.random.default_rng(count)
    arrays = tuple(generator.normal(size=(count, k)) for k in (3, 1))
    arrays += (generator.uniform(0.5, 2.0, size=count),) if weighted else ()
    samples = tf.data.Dataset.from_tensor_slices(arrays)

    def padded(_: int) -> list[np.ndarray]:
        if of == "arrays":
            part = shard(arrays, remainder="pad", batch_size=batch)
            dataset = tf.data.Dataset.from_tensor_slices(part).batch(batch)
        elif of == "batches":
            dataset = shard(samples.batch(size * batch), by="batch", remainder="pad")
        else:
            given = samples if of == "dataset" else unknown(samples)
            dataset = shard(given, remainder="pad", batch_size=batch)
        return [gradient(*element) for element in dataset]

    steps = zip(*ranks(size).run(padded), strict=True)
    averaged = [np.mean(step, axis=0) for step in steps]
    alone = [gradient(*element) for element in samples.batch(size * batch)]
    np.testing.assert_allclose(averaged, alone, rtol=1e-6)


def gradient(x: Any, y: Any, weights: Any = None) -> np.ndarray:
    """Of a mean over the batch, as Keras' losses reduce it."""
    kernel = tf.Variable([[0.3], [-0.2], [0.5]], dtype=x.dtype)
    with tf.GradientTape() as tape:
        losses = tf.reduce_mean(tf.square(y - x @ kernel), axis=-1)
        losses = losses if weights is None else losses * tf.cast(weights, losses.dtype)
        loss = tf.reduce_sum(losses) / tf.cast(tf.size(losses), losses.dtype)
    return tape.gradient(loss, kernel).numpy()


def test_arrays_keep_their_structure(ranks: Callable[..., Any]) -> None:
    data = ({"a": np.arange(7), "b": tf.range(7)}, [np.arange(14).reshape(7, 2)], None)

    def part(_: int) -> Any:
        inputs, (y,), nothing = shard(data)
        return inputs["a"].tolist(), inputs["b"].numpy().tolist(), y[:, 0].tolist(), nothing

    assert ranks(2).run(part) == [
        ([0, 2, 4], [0, 2, 4], [0, 4, 8], None),
        ([1, 3, 5], [1, 3, 5], [2, 6, 10], None),
    ]


def test_files_are_all_read(ranks: Callable[..., Any]) -> None:
    files = [f"/data/{i}.tfrecord" for i in range(5)]
    assert ranks(2).run(lambda _: shard(files)) == [files[::2], files[1::2]]


def test_files_may_lie_elsewhere_on_other_hosts(ranks: Callable[..., Any]) -> None:
    parts = ranks(2).run(lambda rank: shard([f"/host{rank}/a", f"/host{rank}/b"]))
    assert parts == [["/host0/a"], ["/host1/b"]]


@pytest.mark.parametrize(
    ("remainder", "own", "dropped", "padded", "log"),
    [
        ("drop", 3, 1, 0, "drops 1 of 10 elements"),
        ("pad", 4, 0, 2, "repeats 2 of 10 elements with a sample weight of 0"),
    ],
)
def test_counts_are_told(
    ranks: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    remainder: str,
    own: int,
    dropped: int,
    padded: int,
    log: str,
) -> None:
    def report(_: int) -> Any:
        for _ in range(2):
            shard(pairs(10), remainder=remainder, batch_size=2)
        return last_shard()

    with caplog.at_level(logging.WARNING, "tfring"):
        reports = ranks(3).run(report)
    assert reports == [(3, 10, own, dropped, padded)] * 3
    assert [r.getMessage() for r in caplog.records] == [
        f"shard {log}, so that 3 ranks get equally many"
    ]


def test_nothing_is_told_where_all_fits(
    ranks: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    ranks(2).run(lambda _: shard(pairs(10)))
    assert caplog.records == []


ERRORS = {
    "shuffled without seed": (
        lambda: shard(tf.data.Dataset.range(8).shuffle(8).batch(2)),
        "shuffles, or draws random numbers, without a seed",
    ),
    "unordered": (lambda: shard(pairs(8).with_options(unordered())), "deterministic=False"),
    "too few": (lambda: shard(pairs(1)), "Received: 1 elements for 2 ranks, remainder='drop'"),
    "empty": (lambda: shard(pairs(0), remainder="pad", batch_size=2), "Received: 0 elements"),
    "too few files": (lambda: shard(["a"]), "Received: 1 files for 2 ranks"),
    "no files": (lambda: shard([]), "did a pattern of file names match none"),
    "files of a dataset": (lambda: shard(pairs(8), by="file"), "`by` must be 'element' or"),
    "batches of arrays": (lambda: shard(np.arange(8), by="batch"), "`by` must be 'element' for"),
    "pad without batch size": (lambda: shard(pairs(8), remainder="pad"), "needs `batch_size`"),
    "pad without weights": (
        lambda: shard(tf.data.Dataset.range(8), remainder="pad", batch_size=2),
        r"elements must be tuples \(x, y\)",
    ),
    "pad files": (lambda: shard(["a", "b"], remainder="pad"), "needs samples with weights"),
    "bad remainder": (lambda: shard(pairs(8), remainder="wrap"), "Received: remainder='wrap'"),
    "bad batch size": (lambda: shard(pairs(8), batch_size=0), "Received: batch_size=0"),
    "batch size of batches": (
        lambda: shard(pairs(8).batch(4), by="batch", batch_size=2),
        "goes with by='element' only",
    ),
    "lengths": (lambda: shard((np.arange(3), np.arange(4))), r"shapes \(3,\), \(4,\)"),
}


def unordered() -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return options


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_alike_on_all_ranks(ranks: Callable[..., Any], case: str) -> None:
    call, text = ERRORS[case]

    def fails(_: int) -> None:
        with pytest.raises(ValueError, match=text):
            call()

    ranks(2).run(fails)


@pytest.mark.parametrize("data", [(i for i in range(3)), 3, tf.data.Dataset.range(4)])
def test_what_cannot_be_cut(ranks: Callable[..., Any], data: Any) -> None:
    def fails(_: int) -> None:
        with pytest.raises(TypeError, match="Received"):
            shard(data, by="batch" if isinstance(data, tf.data.Dataset) else None)

    ranks(2).run(fails)


DIFFERENT = {
    "lengths": (lambda rank: pairs(8 + rank), "number of elements differs"),
    "types": (lambda rank: tf.data.Dataset.range(8) if rank else pairs(8), "element_spec differs"),
    "seeds": (lambda rank: pairs(8).shuffle(8, seed=rank + 1), "seeds of shuffles differs"),
    "kinds": (lambda rank: pairs(8) if rank else np.arange(8), "kind of `data` differs"),
    "values": (lambda rank: np.arange(8) + rank, "values .a digest of some rows. differs"),
    "files": (lambda rank: ["a", "b"][:: 1 - 2 * rank], "list of files differs"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_data_must_be_the_same_on_all_ranks(ranks: Callable[..., Any], case: str) -> None:
    make, text = DIFFERENT[case]

    def fails(rank: int) -> None:
        with pytest.raises(ValueError, match=f"{text} between ranks.*on rank 0, .* on rank 1"):
            shard(make(rank))

    ranks(2).run(fails)


def test_a_fault_of_one_rank_reaches_all(ranks: Callable[..., Any]) -> None:
    def fails(rank: int) -> None:
        text = "Received: remainder='x'" if rank else "failed on rank 1: ValueError: `remainder`"
        with pytest.raises(ValueError, match=text):
            shard(pairs(8), remainder="x" if rank else "drop")

    ranks(2).run(fails)


def test_seeded_shuffle_of_all_is_cut_without_overlap(ranks: Callable[..., Any]) -> None:
    def part(_: int) -> list[list[int]]:
        mine = shard(tf.data.Dataset.range(20).shuffle(20, seed=3))
        return [contents(mine), contents(mine)]  # two epochs, in different orders

    first, second = ranks(2).run(part)
    assert sorted(first[0] + second[0]) == sorted(first[1] + second[1]) == list(range(20))
    assert first[0] != first[1]


def test_parts_are_those_of_a_process_set(
    ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = ranks(3)
    pair = simulation.process_set([0, 2])
    monkeypatch.setattr(process_sets.ProcessSet, "handle", property(lambda members: 1))

    def part(rank: int) -> list[int]:
        return contents(shard(tf.data.Dataset.range(5), process_set=pair)) if rank != 1 else []

    assert simulation.run(part) == [[0, 2], [], [1, 3]]
