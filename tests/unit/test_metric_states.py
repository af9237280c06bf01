"""Every metric of Keras, with sample weights: the ranks' states make that of all samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from tfring import _metric_states

M = keras.metrics

Data = tuple[np.ndarray, np.ndarray]

_random = np.random.default_rng(3)
N, CLASSES = 12, 3
WEIGHTS = _random.integers(1, 4, N).astype("float32")
_scores = _random.uniform(0.05, 0.95, (N, CLASSES)).astype("float32")
_labels = _random.integers(0, CLASSES, N)
_flags = _random.integers(0, 2, (N, CLASSES)).astype("float32")

BINARY: Data = (_flags[:, :1], _scores[:, :1])
MANY: Data = (_flags, _scores)
ONE_HOT: Data = (np.eye(CLASSES, dtype="float32")[_labels], _scores / _scores.sum(1)[:, None])
SPARSE: Data = (_labels, ONE_HOT[1])
CLASS: Data = (_labels, _scores.argmax(1))

Case = tuple[Callable[[], Any], Data]


def _of(data: Data, **kinds: Callable[[], Any]) -> dict[str, Case]:
    return {name: (make, data) for name, make in kinds.items()}


CASES: dict[str, Case] = {
    **_of(
        BINARY,
        Accuracy=lambda: M.Accuracy(),
        AUC=lambda: M.AUC(),
        AUC_PR=lambda: M.AUC(curve="PR", num_thresholds=50),
        BinaryAccuracy=lambda: M.BinaryAccuracy(),
        BinaryCrossentropy=lambda: M.BinaryCrossentropy(),
        BinaryIoU=lambda: M.BinaryIoU(),
        FalseNegatives=lambda: M.FalseNegatives(),
        FalsePositives=lambda: M.FalsePositives(),
        FalsePositives_thresholds=lambda: M.FalsePositives([0.2, 0.7]),
        Hinge=lambda: M.Hinge(),
        LogCoshError=lambda: M.LogCoshError(),
        MeanAbsoluteError=lambda: M.MeanAbsoluteError(),
        MeanAbsolutePercentageError=lambda: M.MeanAbsolutePercentageError(),
        MeanSquaredError=lambda: M.MeanSquaredError(),
        MeanSquaredLogarithmicError=lambda: M.MeanSquaredLogarithmicError(),
        Poisson=lambda: M.Poisson(),
        Precision=lambda: M.Precision(),
        PrecisionAtRecall=lambda: M.PrecisionAtRecall(0.5),
        Recall=lambda: M.Recall([0.3, 0.6]),
        RecallAtPrecision=lambda: M.RecallAtPrecision(0.5),
        RootMeanSquaredError=lambda: M.RootMeanSquaredError(),
        SensitivityAtSpecificity=lambda: M.SensitivityAtSpecificity(0.5),
        SpecificityAtSensitivity=lambda: M.SpecificityAtSensitivity(0.5),
        SquaredHinge=lambda: M.SquaredHinge(),
        TrueNegatives=lambda: M.TrueNegatives(),
        TruePositives=lambda: M.TruePositives(),
    ),
    **_of(
        MANY,
        AUC_multi_label=lambda: M.AUC(multi_label=True),
        AUC_label_weights=lambda: M.AUC(multi_label=True, label_weights=[0.5, 0.3, 0.2]),
        ConcordanceCorrelation=lambda: M.ConcordanceCorrelation(),
        CosineSimilarity=lambda: M.CosineSimilarity(),
        F1Score=lambda: M.F1Score(threshold=0.5),
        FBetaScore=lambda: M.FBetaScore(average="weighted", beta=2.0, threshold=0.5),
        PearsonCorrelation=lambda: M.PearsonCorrelation(),
        R2Score=lambda: M.R2Score(),
        R2Score_weighted=lambda: M.R2Score(class_aggregation="variance_weighted_average"),
    ),
    **_of(
        ONE_HOT,
        CategoricalAccuracy=lambda: M.CategoricalAccuracy(),
        CategoricalCrossentropy=lambda: M.CategoricalCrossentropy(),
        CategoricalHinge=lambda: M.CategoricalHinge(),
        KLDivergence=lambda: M.KLDivergence(),
        OneHotIoU=lambda: M.OneHotIoU(num_classes=CLASSES, target_class_ids=[0, 2]),
        OneHotMeanIoU=lambda: M.OneHotMeanIoU(num_classes=CLASSES),
        Precision_of_a_class=lambda: M.Precision(class_id=1),
        Precision_top_k=lambda: M.Precision(top_k=2),
        Recall_top_k_of_a_class=lambda: M.Recall(top_k=2, class_id=2),
        TopKCategoricalAccuracy=lambda: M.TopKCategoricalAccuracy(k=2),
    ),
    **_of(
        SPARSE,
        SparseCategoricalAccuracy=lambda: M.SparseCategoricalAccuracy(),
        SparseCategoricalCrossentropy=lambda: M.SparseCategoricalCrossentropy(),
        SparseTopKCategoricalAccuracy=lambda: M.SparseTopKCategoricalAccuracy(k=2),
    ),
    **_of(
        CLASS,
        IoU=lambda: M.IoU(num_classes=CLASSES, target_class_ids=[1]),
        MeanIoU=lambda: M.MeanIoU(num_classes=CLASSES),
    ),
}
# Metrics of one value per sample.
OF_VALUES = {"Mean": lambda: M.Mean(), "Sum": lambda: M.Sum()}
WRAPPER = {"MeanMetricWrapper": lambda: M.MeanMetricWrapper(keras.losses.mean_squared_error)}


def together(metrics: list[Any]) -> Any:
    way = _metric_states.way(metrics[0])
    assert way.adds
    assert way.is_certain
    total = _metric_states.total(metrics[0], way, [_metric_states.state(m) for m in metrics])
    with _metric_states.replaced(metrics[:1], [total]):
        return np.asarray(metrics[0].result())


def test_none_is_forgotten() -> None:
    """New metrics of Keras are added here, and to the list of those that add up."""
    classes = {c for c in vars(M).values() if isinstance(c, type) and issubclass(c, M.Metric)}
    tested = {name.split("_")[0] for name in {**CASES, **OF_VALUES, **WRAPPER}}
    assert {cls.__name__ for cls in classes} - {"Metric"} == tested


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("case", [*CASES.values(), (WRAPPER["MeanMetricWrapper"], MANY)])
def test_all_samples(case: Case, weighted: bool) -> None:
    make, (y, prediction) = case
    weights = WEIGHTS if weighted else np.ones_like(WEIGHTS)
    batches = [slice(0, 7), slice(7, 8), slice(8, N)]
    alone, ranks = make(), [make() for _ in batches]
    for rows, rank in zip(batches, ranks, strict=True):
        for metric in (alone, rank):
            metric.update_state(y[rows], prediction[rows], sample_weight=weights[rows])
    np.testing.assert_allclose(together(ranks), np.asarray(alone.result()), rtol=1e-6)


@pytest.mark.parametrize("make", OF_VALUES.values(), ids=OF_VALUES)
def test_of_values(make: Callable[[], Any]) -> None:
    alone, ranks = make(), [make(), make()]
    for values, weights, rank in [([1.0, 2.0], [1.0, 3.0], ranks[0]), ([4.0], [2.0], ranks[1])]:
        for metric in (alone, rank):
            metric.update_state(values, sample_weight=weights)
    assert together(ranks) == pytest.approx(float(alone.result()))


class Own(M.Metric):
    """Keeps one number."""

    def __init__(self, start: float = 0.0, **variable: Any) -> None:
        super().__init__()
        self.start = start
        self.kept = self.add_variable((), "zeros", name="kept", **variable)
        self.reset_state()

    def reset_state(self) -> None:
        self.kept.assign(self.start)

    def result(self) -> Any:
        return self.kept + 0.0


@pytest.mark.parametrize(
    ("how", "expected"), [("sum", 5.0), ("mean", 2.5), ("only_first_replica", 1.0)]
)
def test_own_metric_as_its_variable_says(how: str, expected: float) -> None:
    metric = Own(aggregation=how)
    way = _metric_states.way(metric)
    assert way.is_certain == (how != "sum")  # which is the default
    states = [[np.float32(1.0)], [np.float32(4.0)]]
    assert _metric_states.total(metric, way, states) == [expected]


@pytest.mark.parametrize("options", [{"start": -1.0}, {"aggregation": "none"}], ids=str)
def test_own_metric_that_cannot_be_added_up(options: dict[str, Any]) -> None:
    metric = Own(**options)
    metric.kept.assign(7.0)
    assert _metric_states.way(metric) == _metric_states.Way(None, is_certain=False)
    assert float(metric.kept) == 7.0


class Largest(Own):
    """A running maximum."""

    def merge_states(self, states: list[list[np.ndarray]]) -> list[np.ndarray]:
        return [np.max([kept for (kept,) in states])]


def test_own_method_that_merges() -> None:
    metric = Largest(start=-np.inf)
    way = _metric_states.way(metric)
    assert way.is_certain
    states = [[np.float32(value)] for value in (3.0, 8.0, 5.0)]
    assert _metric_states.total(metric, way, states) == [8.0]


def test_own_method_that_merges_wrongly() -> None:
    class Wrong(Own):
        def merge_states(self, states: list[list[np.ndarray]]) -> list[np.ndarray]:
            return [np.stack([kept for (kept,) in states])]

    metric = Wrong()
    with pytest.raises(ValueError, match=r"`merge_states` .* class Wrong: shapes \[\(2,\)\]"):
        _metric_states.total(metric, _metric_states.way(metric), [[np.float32(1.0)]] * 2)
