"""MetricAverageCallback: metrics that are no means, against one process with all samples."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from tfring import _metric_reports
from tfring.callbacks import MetricAverageCallback
from tfring.optimizer import DistributedOptimizer

SCORES = np.array([0.9, 0.2, 0.6, 0.7], "float32")
LABELS = np.array([1.0, 0.0, 0.0, 1.0], "float32")
# Where the samples are cut among ranks: all metrics on three ranks, these also on two.
ON_TWO = ("AUC", "Recall", "FBetaScore", "R2Score")

M = keras.metrics
METRICS = {
    "AUC": lambda: M.AUC(name="m"),
    "AUC PR": lambda: M.AUC(num_thresholds=50, curve="PR", name="m"),
    "Precision": lambda: M.Precision(name="m"),
    "Recall": lambda: M.Recall(thresholds=0.65, name="m"),
    "PrecisionAtRecall": lambda: M.PrecisionAtRecall(0.5, name="m"),
    "RecallAtPrecision": lambda: M.RecallAtPrecision(0.6, name="m"),
    "SensitivityAtSpecificity": lambda: M.SensitivityAtSpecificity(0.5, name="m"),
    "SpecificityAtSensitivity": lambda: M.SpecificityAtSensitivity(0.5, name="m"),
    "TruePositives": lambda: M.TruePositives(name="m"),
    "FalsePositives": lambda: M.FalsePositives(name="m"),
    "TrueNegatives": lambda: M.TrueNegatives(name="m"),
    "FalseNegatives": lambda: M.FalseNegatives(name="m"),
    "BinaryIoU": lambda: M.BinaryIoU(name="m"),
    "F1Score": lambda: M.F1Score(average="micro", threshold=0.5, name="m"),
    "FBetaScore": lambda: M.FBetaScore(average=None, beta=2.0, threshold=0.5, name="m"),
    "R2Score": lambda: M.R2Score(name="m"),
    "RootMeanSquaredError": lambda: M.RootMeanSquaredError(name="m"),
    "BinaryAccuracy": lambda: M.BinaryAccuracy(name="m"),
}


class Spread(keras.metrics.Metric):
    """Largest minus smallest prediction, which no sum gives."""

    states_add_up = False

    def __init__(self, name: str = "spread") -> None:
        super().__init__(name=name)
        self.low = self.add_weight(name="low", initializer="zeros")
        self.high = self.add_weight(name="high", initializer="zeros")

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        self.low.assign(keras.ops.minimum(self.low, keras.ops.min(prediction)))
        self.high.assign(keras.ops.maximum(self.high, keras.ops.max(prediction)))

    def result(self) -> Any:
        return self.high - self.low


class MergingSpread(Spread):
    """Says how its states become one."""

    def merge_states(self, states: list[list[np.ndarray]]) -> list[np.ndarray]:
        lows, highs = zip(*states, strict=True)
        return [np.min(lows), np.max(highs)]


class Square(keras.metrics.Metric):
    """The square of the sum of predictions."""

    def __init__(self, states_add_up: bool | None, start: float = 0.0) -> None:
        super().__init__(name="square")
        self.states_add_up = states_add_up
        self.start = start
        self.sum = self.add_weight(name="sum", initializer="zeros")
        self.reset_state()

    def reset_state(self) -> None:
        self.sum.assign(self.start)

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        self.sum.assign_add(keras.ops.sum(prediction))

    def result(self) -> Any:
        return (self.sum - self.start) ** 2


class PerClass(keras.metrics.Metric):
    """Gives several values, all of sums."""

    states_add_up = True

    def __init__(self) -> None:
        super().__init__(name="per_class")
        self.sums = self.add_weight(name="sums", shape=(2,), initializer="zeros")

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        hits = keras.ops.sum(y * prediction), keras.ops.sum((1 - y) * prediction)
        self.sums.assign_add(keras.ops.stack(hits))

    def result(self) -> Any:
        return {"share_1": self.sums[1] / self.sums[0], "share_2": self.sums[0] / self.sums[1]}


class CountingMean(keras.metrics.Mean):
    """A mean with one more variable."""

    def __init__(self) -> None:
        super().__init__(name="counting")
        self.most = self.add_weight(name="most", initializer="zeros")

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        super().update_state(prediction)
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(prediction)))

    def reset_state(self) -> None:
        super().reset_state()
        self.most.assign(0.0)

    def result(self) -> Any:
        return super().result() + self.most


def model_of(metrics: list[Any], **kwargs: Any) -> Any:
    """A model that gives its input."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", metrics=metrics, run_eagerly=True, **kwargs)
    return model


def fit(model: Any, rows: slice, callbacks: list[Any], **kwargs: Any) -> dict[str, Any]:
    """Trains and validates with different samples; returns the logs."""
    x, y = SCORES[:, None], LABELS[:, None]
    order = slice(None, None, -1)
    history = model.fit(
        x[order][rows],
        y[order][rows],
        batch_size=4,
        validation_data=(x[rows], y[rows]),
        callbacks=callbacks,
        verbose=0,
        **kwargs,
    ).history
    return {name: values[0] for name, values in history.items()}


def on_ranks(ranks: Any, make: Any, split: list[int], **kwargs: Any) -> list[dict[str, Any]]:
    bounds = [0, *split, len(SCORES)]

    def body(rank: int) -> dict[str, Any]:
        rows = slice(bounds[rank], bounds[rank + 1])
        return fit(model_of([make()], **kwargs), rows, [MetricAverageCallback()])

    return ranks(len(bounds) - 1).run(body)


@pytest.mark.parametrize(
    ("metric", "split"), [*((name, [1, 2]) for name in METRICS), *((name, [3]) for name in ON_TWO)]
)
def test_the_value_of_one_process(ranks: Any, metric: str, split: list[int]) -> None:
    make = METRICS[metric]
    ranks(1)
    alone = fit(model_of([make()]), slice(None), [])
    results = on_ranks(ranks, make, split)
    for logs in results:
        assert logs.keys() == alone.keys()
        for name, expected in alone.items():
            np.testing.assert_allclose(logs[name], expected, rtol=1e-6, err_msg=name)
            np.testing.assert_array_equal(logs[name], results[0][name])
            assert type(logs[name]) is type(expected)


def test_precision_of_3_and_1(ranks: Any) -> None:
    """Rank 0 is right in 1 of 2, rank 1 in 1 of 1: 2 of 3, where the mean by samples is 5/8."""
    (first, second) = on_ranks(ranks, lambda: M.Precision(name="precision"), [3])
    assert first["val_precision"] == second["val_precision"] == pytest.approx(2 / 3)


def test_weighted_and_equal_names(ranks: Any) -> None:
    ranks(1)
    kwargs = {"weighted_metrics": [M.Precision(name="same")]}
    alone = fit(model_of([M.Recall(name="same")], **kwargs), slice(None), [])

    def body(rank: int) -> dict[str, Any]:
        kwargs = {"weighted_metrics": [M.Precision(name="same")]}
        rows = slice(0, 3) if rank == 0 else slice(3, 4)
        return fit(model_of([M.Recall(name="same")], **kwargs), rows, [MetricAverageCallback()])

    for logs in ranks(2).run(body):
        assert logs == pytest.approx(alone, rel=1e-6)


def test_the_state_stays(ranks: Any) -> None:
    def body(rank: int) -> list[Any]:
        rows = slice(0, 3) if rank == 0 else slice(3, 4)
        model = model_of([M.AUC(), M.Precision()])
        fit(model, rows, [MetricAverageCallback()])
        own = model_of([M.AUC(), M.Precision()])
        fit(own, rows, [])
        assert all("result" not in vars(metric) for metric in model.metrics)
        return [[v.numpy() for v in m.metrics_variables] for m in (model, own)]

    for after, own in ranks(2).run(body):
        for a, b in zip(after, own, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_does_not_add_up_is_averaged_by_samples(ranks: Any) -> None:
    """0.9 of 3 samples, 0.7 of 1."""
    for logs in on_ranks(ranks, Spread, [3]):
        assert logs["val_spread"] == pytest.approx((3 * 0.9 + 0.7) / 4)


AVERAGE = (3 * 1.7**2 + 0.49) / 4


@pytest.mark.parametrize(("says", "expected"), [(True, 2.4**2), (False, AVERAGE)])
@pytest.mark.filterwarnings("error:.*Square")
def test_own_metric_says_so(ranks: Any, says: bool, expected: float) -> None:
    for logs in on_ranks(ranks, lambda: Square(says), [3]):
        assert logs["val_square"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("start", "expected", "text"),
    [
        (0.0, 2.4**2, "'square' of class Square does not say .* were added up"),
        (1.0, AVERAGE, "results of metric 'square' of class Square were averaged"),
    ],
    ids=["starts at zero", "starts at one"],
)
def test_own_metric_that_says_nothing(ranks: Any, start: float, expected: float, text: str) -> None:
    """It adds up, as for Keras, if it can; a warning tells it, and the way out."""
    _metric_reports._warn_once.cache_clear()
    with pytest.warns(UserWarning, match=f"{text}.* `states_add_up = True`") as caught:
        results = on_ranks(ranks, lambda: Square(None, start), [3])
    assert [logs["val_square"] for logs in results] == pytest.approx([expected] * 2)
    assert len([w for w in caught if "square" in str(w.message)]) == 1


def test_own_metric_that_merges(ranks: Any) -> None:
    for logs in on_ranks(ranks, lambda: MergingSpread("spread"), [3]):
        assert logs["val_spread"] == pytest.approx(0.9)


def test_several_values_of_one_metric(ranks: Any) -> None:
    for logs in on_ranks(ranks, PerClass, [3]):
        assert logs["val_share_1"] == pytest.approx(0.8 / 1.6)
        assert logs["val_share_2"] == pytest.approx(1.6 / 0.8)


def test_subclass_with_more_variables(ranks: Any) -> None:
    """It may hold anything, so nothing but its own word counts: here, that results are averaged."""

    class Refusing(CountingMean):
        states_add_up = False

    for logs in on_ranks(ranks, Refusing, [3]):
        assert logs["val_counting"] == pytest.approx((1.7 + 3 * 0.9 + 0.7 + 0.7) / 4)


class OwnLogs(keras.Sequential):
    """Logs what is no metric's result, under a metric's name; and one made of two metrics."""

    def test_step(self, data: Any) -> dict[str, Any]:
        logs = super().test_step(data)
        return {**logs, "precision": float(len(data[0]))}

    def get_metrics_result(self) -> dict[str, Any]:
        logs = super().get_metrics_result()
        return {**logs, "product": logs["precision"] * logs["recall"]}


def test_logs_that_are_made_of_metrics(ranks: Any) -> None:
    def body(rank: int) -> dict[str, Any]:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = OwnLogs([keras.Input((1,)), layer])
        metrics = [M.Precision(name="precision"), M.Recall(name="recall")]
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=metrics, run_eagerly=True)
        rows = slice(0, 3) if rank == 0 else slice(3, 4)
        return fit(model, rows, [MetricAverageCallback()])

    for logs in ranks(2).run(body):
        assert logs["product"] == pytest.approx(2 / 3)
        assert logs["val_product"] == pytest.approx(2 / 3)


def test_metrics_that_differ_between_ranks(ranks: Any) -> None:
    """Then nobody's totals are the metric's: values are averaged, alike on all ranks."""

    def body(rank: int) -> dict[str, Any]:
        thresholds = 50 + rank
        rows = slice(0, 3) if rank == 0 else slice(3, 4)
        model = model_of([M.AUC(num_thresholds=thresholds, name="auc")])
        return fit(model, rows, [MetricAverageCallback()])

    first, second = ranks(2).run(body)
    assert first == second
    assert first["val_loss"] == pytest.approx(np.mean((SCORES - LABELS) ** 2), rel=1e-6)


class Halves(keras.Model):
    """Two outputs in a dict; own steps that log trackers under names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.error = M.Mean(name="error")
        self.score = M.AUC(name="score")

    def call(self, x: Any) -> Any:
        return x

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        self.error.update_state((y - self(x)) ** 2)
        self.score.update_state(y, self(x))
        return {"my_error": self.error.result(), "score": self.score.result()}

    train_step = test_step

    @property
    def metrics(self) -> list[Any]:
        return [self.error, self.score]


def test_own_training_step(ranks: Any) -> None:
    def run(rows: slice, callbacks: list[Any]) -> dict[str, Any]:
        model = Halves()
        model.compile(run_eagerly=True)
        return fit(model, rows, callbacks)

    ranks(1)
    alone = run(slice(None), [])
    parts = [slice(0, 3), slice(3, 4)]
    for logs in ranks(2).run(lambda rank: run(parts[rank], [MetricAverageCallback()])):
        assert logs == pytest.approx(alone, rel=1e-6)


def test_several_outputs(ranks: Any) -> None:
    """Metrics and weighted metrics in a dict by output, with sample weights."""
    x, y = SCORES[:, None], LABELS[:, None]
    weights = np.array([1.0, 2.0, 3.0, 4.0], "float32")

    def run(rows: slice, callbacks: list[Any]) -> dict[str, Any]:
        inputs = keras.Input((1,))
        outputs = {
            "a": keras.layers.Rescaling(1.0, name="a")(inputs),
            "b": keras.layers.Rescaling(0.5, name="b")(inputs),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            "sgd",
            {"a": "mse", "b": "mae"},
            metrics={"a": [M.Precision(name="p"), "mae"]},
            weighted_metrics={"b": [M.AUC(name="auc")], "a": ["mse"]},
            run_eagerly=True,
        )
        targets, weight = {"a": y[rows], "b": y[rows]}, {"a": weights[rows], "b": weights[rows]}
        options = {"validation_data": (x[rows], targets, weight), "verbose": 0}
        fitted = model.fit(x[rows], targets, sample_weight=weight, callbacks=callbacks, **options)
        history = fitted.history
        return {name: values[0] for name, values in history.items()}

    ranks(1)
    alone = run(slice(None), [])
    parts = [slice(0, 3), slice(3, 4)]
    for logs in ranks(2).run(lambda rank: run(parts[rank], [MetricAverageCallback()])):
        assert logs == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("none", ["empty", "not given"])
def test_a_rank_without_validation_data(ranks: Any, none: str) -> None:
    """It gets the others' result."""
    x, y = SCORES[:, None], LABELS[:, None]

    def run(rank: int, callbacks: list[Any]) -> dict[str, Any]:
        model = model_of([M.AUC(name="auc"), M.R2Score(name="r2")])
        data = (x, y) if rank == 0 else (x[:0], y[:0]) if none == "empty" else None
        options = {"validation_data": data, "callbacks": callbacks, "verbose": 0}
        history = model.fit(x, y, **options).history
        return {name: values[0] for name, values in history.items()}

    ranks(1)
    alone = run(0, [])
    for logs in ranks(2).run(lambda rank: run(rank, [MetricAverageCallback()])):
        assert logs == pytest.approx(alone, rel=1e-6)


def test_the_whole_set_on_each_rank_counts_once(ranks: Any) -> None:
    x, y = SCORES[:, None], LABELS[:, None]

    def run(callbacks: list[Any]) -> dict[str, Any]:
        model = model_of([M.TruePositives(name="hits"), M.AUC(name="auc")])
        history = model.fit(x, y, validation_data=(x, y), callbacks=callbacks, verbose=0).history
        return {name: values[0] for name, values in history.items()}

    ranks(1)
    alone = run([])
    for logs in ranks(2).run(lambda rank: run([MetricAverageCallback()])):
        assert logs["val_hits"] == alone["val_hits"]
        assert logs["val_auc"] == pytest.approx(alone["val_auc"])


@pytest.mark.parametrize("split", [[3], [4]], ids=["both", "one has none"])
def test_large_states_are_reduced(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, split: list[int]
) -> None:
    monkeypatch.setattr(_metric_reports, "_LARGE", 3)
    ranks(1)

    def make() -> Any:
        return M.MeanIoU(num_classes=2, name="iou")

    x = np.rint(SCORES)[:, None]
    y = LABELS[:, None]
    alone = model_of([make()]).evaluate(x, y, verbose=0, return_dict=True)
    rows = [slice(0, split[0]), slice(split[0], 4)]

    def body(rank: int) -> dict[str, Any]:
        model = model_of([make()])
        data = (x[rows[rank]], y[rows[rank]])
        callbacks = [MetricAverageCallback()]
        fitted = model.fit(x, y, validation_data=data, callbacks=callbacks, verbose=0)
        return {name: values[0] for name, values in fitted.history.items()}

    simulation = ranks(2)
    for logs in simulation.run(body):
        assert logs["val_iou"] == pytest.approx(alone["iou"])
    assert "metric state" in simulation.names()


@pytest.mark.parametrize("return_dict", [False, True])
def test_evaluate_on_its_own(ranks: Any, return_dict: bool) -> None:
    x, y = SCORES[:, None], LABELS[:, None]
    options = {"verbose": 0, "return_dict": return_dict}
    ranks(1)
    alone = model_of([M.AUC(name="auc")]).evaluate(x, y, **options)

    def body(rank: int) -> Any:
        rows = slice(0, 3) if rank == 0 else slice(3, 4)
        model, callback = model_of([M.AUC(name="auc")]), MetricAverageCallback()
        model.fit(x, y, callbacks=[callback], verbose=0)
        return model.evaluate(x[rows], y[rows], callbacks=[callback], **options)

    for result in ranks(2).run(body):
        assert result == pytest.approx(alone, rel=1e-6)
