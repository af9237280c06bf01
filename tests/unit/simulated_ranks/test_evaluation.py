"""`evaluate` and `predict` on ranks: what one process gives, every sample once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring.keras import _rows, evaluate, predict

ROWS = 11  # in batches of 4: 4, 4, 3
_random = np.random.default_rng(5)
X = _random.normal(size=(ROWS, 2)).astype("float32")
Y = _random.integers(0, 2, (ROWS, 1)).astype("float32")
W = _random.integers(1, 4, ROWS).astype("float32")


def dense(units: int, **kwargs: Any) -> Any:
    """A layer with the same weights each time; ranks are threads, so a global seed gives others."""
    start = keras.initializers.GlorotUniform(seed=2)
    return keras.layers.Dense(units, kernel_initializer=start, **kwargs)


def model_of() -> Any:
    inputs = keras.Input((2,))
    model = keras.Model(inputs, dense(1, activation="sigmoid")(inputs))
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.TruePositives(name="hits")]
    weighted = [keras.metrics.R2Score()]
    model.compile("sgd", "mse", metrics=metrics, weighted_metrics=weighted, run_eagerly=True)
    return model


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        rows = slice(4 * index, 4 * index + 4)
        return X[rows], Y[rows], W[rows]


def uneven() -> Iterator[Any]:
    """Batches of different sizes."""
    for start, end in [(0, 3), (3, 4), (4, 9), (9, 11)]:
        yield X[start:end], Y[start:end], W[start:end]


def dataset(*, known: bool) -> Any:
    whole = tf.data.Dataset.from_tensor_slices((X, Y, W))
    return (whole if known else whole.filter(lambda x, y, w: True)).batch(4)


SOURCES = {
    "arrays": lambda: {"x": X, "y": Y, "sample_weight": W, "batch_size": 4},
    "tensors": lambda: {"x": tf.constant(X), "y": tf.constant(Y), "batch_size": 2},
    "one batch": lambda: {"x": X, "y": Y},
    "arrays, steps": lambda: {"x": X, "y": Y, "batch_size": 4, "steps": 2},
    "dataset": lambda: {"x": dataset(known=True)},
    "dataset, steps": lambda: {"x": dataset(known=True), "steps": 2},
    "endless": lambda: {"x": dataset(known=True).repeat(), "steps": 5},
    "unknown length": lambda: {"x": dataset(known=False)},
    "unknown length, steps": lambda: {"x": dataset(known=False), "steps": 2},
    "PyDataset": lambda: {"x": Batches()},
    "threaded PyDataset": lambda: {"x": Batches(workers=2)},
    "generator": lambda: {"x": uneven()},
}
ALL_SOURCES = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


@ALL_SOURCES
def test_evaluate(ranks: Any, source: Any) -> None:
    expected = model_of().evaluate(**source(), return_dict=True, verbose=0)

    def body(rank: int) -> dict[str, float]:
        return evaluate(model_of(), **source(), return_dict=True, verbose=0)

    results = ranks(3).run(body)
    assert all(result == results[0] for result in results)
    assert results[0] == pytest.approx(expected, rel=1e-5)


@ALL_SOURCES
def test_predict(ranks: Any, source: Any) -> None:
    def arguments() -> dict[str, Any]:
        return {k: v for k, v in source().items() if k not in ("y", "sample_weight")}

    expected = model_of().predict(**arguments(), verbose=0)
    results = ranks(2).run(lambda rank: predict(model_of(), **arguments(), verbose=0))
    for result in results:
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_evaluate_gives_a_list_as_keras_does(ranks: Any) -> None:
    expected = model_of().evaluate(X, Y, batch_size=4, verbose=0)
    for result in ranks(2).run(lambda r: evaluate(model_of(), X, Y, batch_size=4, verbose=0)):
        assert result == pytest.approx(expected, rel=1e-5)


def test_evaluate_gives_one_number_as_keras_does(ranks: Any) -> None:
    def run(function: Any) -> Any:
        model = keras.Sequential([keras.Input((2,)), dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return function(model, X, Y, batch_size=4, verbose=0)

    expected = run(lambda model, *data, **options: model.evaluate(*data, **options))
    for result in ranks(2).run(lambda rank: run(evaluate)):
        assert result == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("return_dict", [False, True])
def test_evaluate_nothing(ranks: Any, return_dict: bool) -> None:
    def body(rank: int) -> Any:
        return evaluate(model_of(), X[:0], Y[:0], verbose=0, return_dict=return_dict)

    assert ranks(2).run(body) == [{} if return_dict else []] * 2


@pytest.mark.parametrize("data", [X[:0], dataset(known=False).take(0)], ids=["arrays", "dataset"])
def test_predict_nothing(ranks: Any, data: Any) -> None:
    with pytest.raises(ValueError, match="at least one sample. Received: no sample on any rank"):
        ranks(2).run(lambda rank: predict(model_of(), data, verbose=0))


def test_masks(ranks: Any) -> None:
    """A batch's loss depends on all its masks, so batches must stay whole."""
    words = np.array([[1, 2, 0], [3, 0, 0], [1, 1, 1], [2, 0, 0], [3, 3, 0]])
    targets = np.arange(15.0, dtype="float32").reshape(5, 3, 1)

    def run(function: Any) -> Any:
        start = keras.initializers.GlorotUniform(seed=3)
        embedding = keras.layers.Embedding(4, 2, start, mask_zero=True)
        model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding, dense(1)])
        model.compile("sgd", "mse", weighted_metrics=["mae"], run_eagerly=True)
        return function(model, words, targets, batch_size=2, verbose=0, return_dict=True)

    expected = run(lambda model, *data, **options: model.evaluate(*data, **options))
    for result in ranks(2).run(lambda rank: run(evaluate)):
        assert result == pytest.approx(expected, rel=1e-6)


def test_nested_inputs_and_outputs(ranks: Any) -> None:
    data = {"a": X, "b": X[:, :1]}

    def run(function: Any) -> Any:
        a, b = keras.Input((2,), name="a"), keras.Input((1,), name="b")
        outputs = {"sum": dense(2)(a), "pair": [b * 2.0, keras.ops.cast(b, "int32")]}
        return function(keras.Model({"a": a, "b": b}, outputs), data, batch_size=4, verbose=0)

    expected = run(lambda model, *args, **options: model.predict(*args, **options))
    for result in ranks(3).run(lambda rank: run(predict)):
        tf.nest.assert_same_structure(result, expected)
        for actual, wanted in zip(tf.nest.flatten(result), tf.nest.flatten(expected), strict=True):
            assert actual.dtype == wanted.dtype
            np.testing.assert_allclose(actual, wanted, rtol=1e-6)


@pytest.mark.parametrize("chunk_bytes", [1, 12])
def test_chunks(ranks: Any, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    """One row, and three rows, at a time."""
    monkeypatch.setattr(_rows, "_CHUNK_BYTES", chunk_bytes)
    expected = model_of().predict(X, verbose=0)
    simulation = ranks(2)
    for result in simulation.run(lambda r: predict(model_of(), X, batch_size=4, verbose=0)):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


class Ragged(keras.Model):
    """Predicts rows that are as long as the longest of the batch."""

    def call(self, x: Any) -> Any:
        return x[:, : tf.cast(tf.reduce_max(x), tf.int32)]


def test_rows_of_different_lengths(ranks: Any) -> None:
    data = np.array([[1, 1, 0], [1, 0, 0], [2, 2, 0], [3, 1, 1]], "float32")
    expected = Ragged().predict(data, batch_size=2, verbose=0)
    for result in ranks(2).run(lambda r: predict(Ragged(), data, batch_size=2, verbose=0)):
        assert result.to_list() == expected.to_list()


def test_on_one_rank(ranks: Any) -> None:
    first, second = ranks(2).run(lambda r: predict(model_of(), X, root_rank=1, verbose=0))
    assert first is None
    np.testing.assert_allclose(second, model_of().predict(X, verbose=0), rtol=1e-6)


@pytest.mark.parametrize("kind", [True, "interleaved"])
def test_predict_on_shards(ranks: Any, kind: Any) -> None:
    def body(rank: int) -> Any:
        mine = X[rank::2] if kind == "interleaved" else np.split(X, [3])[rank]
        return predict(model_of(), mine, sharded=kind, verbose=0)

    for result in ranks(2).run(body):
        np.testing.assert_allclose(result, model_of().predict(X, verbose=0), rtol=1e-5)


@pytest.mark.parametrize("first", [3, 0])
def test_evaluate_on_shards(ranks: Any, first: int) -> None:
    expected = model_of().evaluate(X, Y, verbose=0, return_dict=True)

    def body(rank: int) -> Any:
        x, y = np.split(X, [first])[rank], np.split(Y, [first])[rank]
        return evaluate(model_of(), x, y, sharded=True, verbose=0, return_dict=True)

    for result in ranks(2).run(body):
        assert result == pytest.approx(expected, rel=1e-5)


class Failing(keras.callbacks.Callback):
    def on_test_begin(self, logs: Any = None) -> None:
        raise OSError("disk full")

    on_predict_begin = on_test_begin


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_error_of_one_rank(ranks: Any, name: str) -> None:
    """That rank raises its own, the others say whose it is."""

    def body(rank: int) -> str:
        options: dict[str, Any] = {"callbacks": [Failing()] if rank == 1 else [], "verbose": 0}
        call = evaluate if name == "evaluate" else predict
        data = (X, Y) if name == "evaluate" else (X,)
        kind = OSError if rank == 1 else RuntimeError
        with pytest.raises(kind) as raised:
            call(model_of(), *data, batch_size=4, **options)
        return str(raised.value)

    texts = ranks(2).run(body)
    assert texts == [f"`{name}` failed on rank 1: OSError: disk full", "disk full"]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"x": [[1.0, 2.0]]}, TypeError, r"Received: float\. .* `sharded=True`"),
        ({"x": X, "y": Y[:5]}, ValueError, "Received: arrays of 5, 11 samples"),
        ({"x": dataset(known=True).repeat()}, ValueError, "`steps` must be given"),
        ({"x": X, "batch_size": 0}, ValueError, "`batch_size` must be 1 or more"),
    ],
    ids=["no arrays", "lengths", "no end", "batch size"],
)
def test_data_that_cannot_be_divided(ranks: Any, arguments: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        ranks(2).run(lambda rank: evaluate(model_of(), **arguments, verbose=0))


@pytest.mark.parametrize("options", [{"sharded": "rows"}, {"root_rank": 2}], ids=str)
def test_arguments_of_predict(ranks: Any, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"`{name}` must be .* Received: {name}="):
        ranks(2).run(lambda rank: predict(model_of(), X, **options))
