"""States of metrics: how those of several ranks become the one of all samples."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfring import _keras

# What a metric of one's own may have: True or False, to say so itself; or a method.
ADDS_UP = "states_add_up"
MERGE = "merge_states"

# Keras' metrics whose variables are counts or sums over samples, and how many they have. A
# subclass with more variables than these may hold anything.
_VARIABLES = {
    "Sum": 1,
    "Mean": 2,  # and all that wrap a function, RootMeanSquaredError
    "FalseNegatives": 1,
    "FalsePositives": 1,
    "TrueNegatives": 1,
    "TruePositives": 1,
    "Precision": 2,
    "Recall": 2,
    "AUC": 4,
    "PrecisionAtRecall": 4,
    "RecallAtPrecision": 4,
    "SensitivityAtSpecificity": 4,
    "SpecificityAtSensitivity": 4,
    "IoU": 1,  # and BinaryIoU, MeanIoU, OneHotIoU, OneHotMeanIoU
    "FBetaScore": 4,  # and F1Score
    "R2Score": 5,
}

# Ways in which the values of one variable become one. Keras has names for them.
SUM, MEAN, FIRST = "sum", "mean", "only_first_replica"

State = list[np.ndarray]

_starts_at_zero: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


class Way(NamedTuple):
    """How the states of a metric become one."""

    variables: tuple[str, ...] | None  # of each variable; None: only the results can be averaged
    merges: bool = False  # by the metric's own method, instead
    is_certain: bool = True  # else it is what Keras takes where nobody said anything

    @property
    def adds(self) -> bool:
        """Whether every variable of all samples is the sum of the ranks'."""
        return not self.merges and self.variables is not None and set(self.variables) == {SUM}


def way(metric: Any) -> Way:
    """Returns how the states of this metric become one: as its class says, or else Keras."""
    count = len(metric.variables)
    if callable(getattr(metric, MERGE, None)):
        return Way((SUM,) * count, merges=True)
    own = getattr(metric, ADDS_UP, None)
    if own is not None:
        adds = own and count > 0
        return Way((SUM,) * count if adds else None, is_certain=adds or not own)
    if is_known(metric):
        return Way((SUM,) * count)
    ways = tuple(_aggregation(variable) for variable in metric.variables)
    if not ways or not {SUM, MEAN, FIRST}.issuperset(ways):
        return Way(None, is_certain=False)
    if SUM in ways and not _resets_to_zero(metric):
        return Way(None, is_certain=False)  # n ranks would count the first state n times
    return Way(ways, is_certain=SUM not in ways)


def is_known(metric: Any) -> bool:
    """Whether it is a metric of Keras whose variables are counts and sums."""
    known = _keras.of(metric).metrics
    return any(
        isinstance(metric, cls) and len(metric.variables) == count
        for cls, count in ((getattr(known, name, ()), n) for name, n in _VARIABLES.items())
    )


def _aggregation(variable: Any) -> str:
    # Keras 2 has an enumeration; the first releases of Keras 3 have nothing but sums.
    aggregation = getattr(variable, "aggregation", SUM)
    return str(getattr(aggregation, "name", aggregation)).lower()


def _resets_to_zero(metric: Any) -> bool:
    if metric not in _starts_at_zero:
        before = state(metric)
        try:
            metric.reset_state()
            after = state(metric)
        finally:
            _assign(metric, before)
        _starts_at_zero[metric] = not any(np.any(a.astype(np.float64)) for a in after)
    return _starts_at_zero[metric]


def metrics(model: Any) -> list[Any]:
    """Returns the metrics of a model, those inside of others instead of these."""
    # In Keras 2 they are in one list, and each is a layer with `metrics` of its own.
    return list(model.metrics if _keras.is_legacy(model) else _leaves(model.metrics))


def _leaves(metrics: Sequence[Any]) -> Iterator[Any]:
    for metric in metrics:
        yield from _leaves(metric.metrics) if hasattr(metric, "metrics") else (metric,)


def state(metric: Any) -> State:
    """Returns the values of the metric's variables."""
    return [variable.numpy() for variable in metric.variables]


def total(metric: Any, how: Way, states: Sequence[State]) -> State:
    """Returns the state of all samples.

    Added in float64 and in rank order: the same bits on every rank.

    Args:
        metric: This rank's, whose own method merges.
        how: Not the way of results alone.
        states: Of the ranks that have seen samples, of equal shapes and dtypes.

    Raises:
        ValueError: The metric's own method returns no state.
    """
    if how.merges:
        return _merged(metric, states)
    assert how.variables is not None
    columns = zip(*states, strict=True)
    return [_one(parts, each) for parts, each in zip(columns, how.variables, strict=True)]


def _one(parts: Sequence[np.ndarray], how: str) -> np.ndarray:
    if how == FIRST:
        return parts[0]
    result: np.ndarray = np.sum([part.astype(wide_dtype(part.dtype)) for part in parts], axis=0)
    return result / len(parts) if how == MEAN else result


def wide_dtype(dtype: Any) -> type:
    """Returns the dtype in which values of this one are added."""
    return np.int64 if np.dtype(dtype).kind in "iub" else np.float64


def _merged(metric: Any, states: Sequence[State]) -> State:
    given = getattr(metric, MERGE)([list(each) for each in states])
    result = [np.asarray(each) for each in given]
    shapes = [tuple(each.shape) for each in result]
    expected = [tuple(variable.shape) for variable in metric.variables]
    if shapes != expected:
        raise ValueError(
            f"`{MERGE}` must return one array for each variable of the metric, of its shape. "
            f"Received from {describe(metric)}: shapes {shapes}, where the variables have "
            f"{expected}"
        )
    return result


def describe(metric: Any) -> str:
    """Returns the metric's name and class, for a text."""
    return f"metric '{metric.name}' of class {type(metric).__name__}"


@contextlib.contextmanager
def replaced(metrics: Sequence[Any], states: Sequence[State | None]) -> Iterator[None]:
    """Gives metrics other states for a while, and then back their own; None leaves one alone."""
    pairs = [(m, s) for m, s in zip(metrics, states, strict=True) if s is not None]
    before = [(metric, state(metric)) for metric, _ in pairs]
    try:
        for metric, values in pairs:
            _assign(metric, values)
        yield
    finally:
        for metric, values in before:
            _assign(metric, values)


def _assign(metric: Any, values: State) -> None:
    for variable, value in zip(metric.variables, values, strict=True):
        variable.assign(value.astype(tf.as_dtype(variable.dtype).as_numpy_dtype))


def results(model: Any) -> dict[str, Any]:
    """Returns the results of the model's metrics under their names in the logs."""
    return _flat(model.get_metrics_result())


def _flat(logs: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in logs.items():
        flat.update(_flat(value) if isinstance(value, dict) else {name: value})
    return flat


class Mark(float):
    """A metric's result that tells whose it is, until somebody calculates with it."""

    position: int


@contextlib.contextmanager
def marked(metrics: Sequence[Any]) -> Iterator[list[Any]]:
    """Lets each metric give a `Mark` with its position in `metrics` as its result.

    Only Keras knows under which names the results of metrics appear in the logs (those of
    several outputs, weighted ones, of equal names). So it is asked where these end up.

    Returns:
        The results proper, None until Keras has asked for one.
    """
    before = [vars(metric).get("result") for metric in metrics]
    seen: list[Any] = [None] * len(metrics)
    try:
        for position, metric in enumerate(metrics):
            object.__setattr__(metric, "result", _marker(metric.result, position, seen))
        yield seen
    finally:
        for metric, stock in zip(metrics, before, strict=True):
            object.__delattr__(metric, "result")
            if stock is not None:  # Keras 2 has one on each metric
                object.__setattr__(metric, "result", stock)


def _marker(stock: Any, position: int, seen: list[Any]) -> Any:
    mark = Mark(1.0)
    mark.position = position

    def result() -> Any:
        value = seen[position] = stock()
        return dict.fromkeys(value, mark) if isinstance(value, dict) else mark

    return result
