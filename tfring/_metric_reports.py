"""What ranks tell each other of their metrics, and the logs of all samples that come of it."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfring import _keras, _metric_states, collectives, objects, world
from tfring._metric_states import State, Way
from tfring.constants import Sum

# States of more numbers travel apart, as sums: of n ranks' states, each rank would get n.
_LARGE = 1 << 16


class Entry(NamedTuple):
    """What a rank says about one value of its logs."""

    value: np.ndarray
    weight: float
    which: int  # snapshot
    is_result: bool  # the model has a result of this name and value
    owner: int | None  # the metric whose result that is; None: unknown, or several
    twins: frozenset[int]  # metrics of another name, whose result this may be


class Sent(NamedTuple):
    """What a rank says about one metric."""

    text: str
    kind: str
    way: Way
    shapes: list[tuple[tuple[int, ...], str]]
    state: State | None  # None: too large
    digest: bytes

    @property
    def likeness(self) -> tuple[Any, ...]:
        """What must be alike on all ranks."""
        return self.kind, self.way, self.shapes, self.state is None


class Report(NamedTuple):
    """What a rank sends."""

    entries: dict[str, Entry]
    snapshots: list[list[Sent] | None]  # None: saw no samples


class Snapshot:
    """The metrics of a model at the end of training or validation.

    Args:
        model: After at least one batch.
        prefix: Of their names in the logs.
    """

    def __init__(self, model: Any, prefix: str = "") -> None:
        self.prefix = prefix
        self.metrics = _metric_states.metrics(model)
        self.results, self._owners, self._own = _results(model, self.metrics)
        self.states = [_metric_states.state(metric) for metric in self.metrics]
        self._counts = [_count(metric) for metric in self.metrics]
        self.ways = [_metric_states.way(metric) for metric in self.metrics]

    def entry(self, name: str, value: np.ndarray, which: int) -> Entry:
        """Returns what there is to say about a log.

        Args:
            name: Without prefix.
            value: A number, or several.
            which: This snapshot's position.
        """
        result = self.results.get(name)
        if result is not None and _close(value, np.asarray(result)):
            owner = self._owners.get(name)
            return Entry(value, self._weight([owner]), which, True, owner, frozenset())
        twins = [] if np.all(value == np.rint(value)) else self._twins(value)
        return Entry(value, self._weight(twins), which, False, None, frozenset(twins))

    def sent(self) -> list[Sent]:
        """Returns what there is to say about the metrics."""
        return list(map(_sent, self.metrics, self.ways, self.states))

    def _twins(self, value: np.ndarray) -> list[int]:
        # A training step of one's own may log results of metrics under other names.
        owns = enumerate(self._own)
        return [i for i, own in owns if own is not None and _close(value, own, rtol=1e-6)]

    def _weight(self, positions: Sequence[int | None]) -> float:
        # The sum of sample weights behind a log; where unknown, that behind the loss.
        for position in (*positions, self._owners.get("loss")):
            count = None if position is None else self._counts[position]
            if count is not None:
                return count
        return 1.0


def snapshot(model: Any, prefix: str = "") -> Snapshot | None:
    """Returns the metrics as they stand, None where they have seen no sample."""
    metrics = _metric_states.metrics(model)
    counting = [m for m in metrics if m.variables and _metric_states.is_known(m)]
    if not metrics or (counting and not any(np.any(v) for m in counting for v in _wide(m))):
        return None
    return Snapshot(model, prefix)


def report(logs: dict[str, Any], snapshots: Sequence[Snapshot | None]) -> Report:
    """Returns what this rank sends.

    Args:
        logs: By name, with the snapshots' prefixes.
        snapshots: The first is that of logs without a prefix.
    """
    sent = [None if each is None else each.sent() for each in snapshots]
    return Report(_entries(logs, snapshots), sent)


def report_of_logs(logs: dict[str, Any], snapshots: Sequence[Snapshot | None]) -> Report:
    """Returns what this rank sends where logs are to be averaged only; as `report`."""
    return Report(_entries(logs, snapshots), [])


def _entries(logs: dict[str, Any], snapshots: Sequence[Snapshot | None]) -> dict[str, Entry]:
    arrays = {name: np.asarray(value) for name, value in logs.items()}
    return {
        name: _entry(name, array, snapshots)
        for name, array in arrays.items()
        if array.dtype.kind in "fiub"
    }


def exchange(mine: Report, name: str) -> list[Report]:
    """Returns the reports of all ranks, in rank order."""
    return objects.allgather_object(mine, name=name)


def combined(
    model: Any,
    snapshots: Sequence[Snapshot | None],
    reports: Sequence[Report],
    *,
    whole: Sequence[int] = (),
) -> dict[str, Any]:
    """Returns the logs of all samples; the same on all ranks, which must all call it.

    Args:
        model: Its metrics calculate; their state stays.
        snapshots: This rank's.
        reports: All ranks'.
        whole: Snapshots whose samples are the same on all ranks, if their states are.
    """
    result = averages(reports)
    for which, mine in enumerate(snapshots):
        seen = [r for r, each in enumerate(reports) if each.snapshots[which] is not None]
        if not seen:
            continue
        some = [reports[r] for r in seen]
        states = [each.snapshots[which] or [] for each in some]
        if which in whole and len(seen) == len(reports) and _same(states):
            states = states[:1]
        totals = _totals(mine, states, is_alone=len(states) == 1)
        values = {} if mine is None else _values(model, mine, some, which, totals)
        if len(seen) < len(reports):  # a rank that has seen nothing cannot calculate
            values = objects.allgather_object(values, name="metric results")[seen[0]]
        result.update(values)
        _warn(some, which)
    return result


def _entry(name: str, value: np.ndarray, snapshots: Sequence[Snapshot | None]) -> Entry:
    for which, each in reversed(list(enumerate(snapshots))):
        if each is not None and name.startswith(each.prefix):
            return each.entry(name.removeprefix(each.prefix), value, which)
    return Entry(value, 0.0, 0, False, None, frozenset())


def _sent(metric: Any, how: Way, state: State) -> Sent:
    shapes = [(array.shape, str(array.dtype)) for array in state]
    is_large = not how.merges and sum(array.size for array in state) > _LARGE
    is_large = is_large and (how.adds or how.variables is None)
    digest = hashlib.blake2b(b"".join(a.tobytes() for a in state)).digest() if is_large else b""
    text, kind = _metric_states.describe(metric), type(metric).__name__
    return Sent(text, kind, how, shapes, None if is_large else state, digest)


def averages(reports: Sequence[Report]) -> dict[str, Any]:
    """Weighted means in float64, added in rank order: the same bits on every rank."""
    result = {}
    for name in sorted(set().union(*(each.entries for each in reports))):
        entries = [each.entries[name] for each in reports if name in each.entries]
        # A rank without samples may report NaN.
        counted = [e for e in entries if e.weight > 0] or entries
        if len({e.value.shape for e in counted}) == 1:
            weights = np.array([e.weight for e in counted])
            weights = weights if weights.sum() > 0 else np.ones_like(weights)
            parts = [e.value.astype(np.float64) * w for e, w in zip(counted, weights, strict=True)]
            result[name] = plain(np.sum(parts, axis=0) / weights.sum())
    return result


def _same(states: Sequence[list[Sent]]) -> bool:
    first = states[0]
    return all(
        len(each) == len(first) and all(map(_same_state, each, first)) for each in states[1:]
    )


def _same_state(a: Sent, b: Sent) -> bool:
    if a.likeness != b.likeness or a.digest != b.digest:
        return False
    if a.state is None or b.state is None:
        return True
    return all(
        np.allclose(x.astype(np.float64), y.astype(np.float64), rtol=1e-6, atol=0, equal_nan=True)
        for x, y in zip(a.state, b.state, strict=True)
    )


def _totals(
    mine: Snapshot | None, states: Sequence[list[Sent]], *, is_alone: bool
) -> list[State | None]:
    """Returns the state of each metric for all samples, None where there is none."""
    if any(len(each) != len(states[0]) for each in states):
        return [None] * (len(mine.metrics) if mine else 0)
    totals: list[State | None] = []
    for position, column in enumerate(zip(*states, strict=True)):
        first = column[0]
        known = first.way.variables is not None
        alike = all(each.likeness == first.likeness for each in column)
        if not known or not alike:
            totals.append(None)
        elif first.state is None:
            own = None if mine is None else mine.states[position]
            totals.append(own if is_alone else _summed(own, first))
        elif mine is None:
            totals.append(None)
        else:
            parts = [each.state for each in column if each.state is not None]
            totals.append(_metric_states.total(mine.metrics[position], first.way, parts))
    return totals


def _summed(own: State | None, like: Sent) -> State:
    state = own or [np.zeros(shape, dtype) for shape, dtype in like.shapes]
    wide = [tf.constant(a.astype(_metric_states.wide_dtype(a.dtype))) for a in state]
    summed = collectives.grouped_allreduce(wide, op=Sum, name="metric state")
    return [each.numpy() for each in summed]


def _values(
    model: Any,
    mine: Snapshot,
    reports: Sequence[Report],
    which: int,
    totals: Sequence[State | None],
) -> dict[str, Any]:
    """Returns the logs that come of states; their names are the same on all ranks."""
    result = {}
    with _metric_states.replaced(mine.metrics, totals):
        by_name = _metric_states.results(model)
        for name, first in reports[0].entries.items():
            entries = [each.entries.get(name) for each in reports]
            found = [e for e in entries if e is not None and e.which == which]
            if first.which != which or len(found) < len(entries):
                continue
            if all(e.is_result and e.owner == first.owner for e in found):
                needed = totals if first.owner is None else [totals[first.owner]]
                value = by_name[name.removeprefix(mine.prefix)]
            else:
                twins = frozenset.intersection(*(e.twins for e in found))
                needed = [totals[min(twins)]] if twins else [None]
                value = mine.metrics[min(twins)].result() if twins else None
            if all(total is not None for total in needed):
                result[name] = plain(value)
    return result


def _warn(reports: Sequence[Report], which: int) -> None:
    if world.rank() != 0:
        return
    columns = zip(*(each.snapshots[which] or [] for each in reports), strict=False)
    for position, column in enumerate(columns):
        first = column[0]
        if first.way.is_certain or len(column) == 1:
            continue
        if first.way.variables is not None:
            _warn_once(_ADDED.format(first.text))
        elif _differ(reports, which, position):
            _warn_once(_AVERAGED.format(first.text))


def _differ(reports: Sequence[Report], which: int, position: int) -> bool:
    for name, first in reports[0].entries.items():
        if first.which == which and first.owner == position:
            others = [each.entries[name].value for each in reports if name in each.entries]
            return any(not np.array_equal(first.value, o, equal_nan=True) for o in others)
    return False


_WAY_OUT = (
    "Give the class `states_add_up = True` if its variables are sums or counts over samples, "
    "`states_add_up = False` to have its results averaged, or a method `merge_states(states)` that "
    "makes the state of all samples of the ranks' states."
)
_ADDED = (
    "The {} does not say how states of several ranks become one; its variables were added up, as "
    "Keras does where nothing else is said, which is wrong for, say, a maximum. " + _WAY_OUT
)
_AVERAGED = (
    "The results of {} were averaged over ranks, weighted by samples, which is right for means "
    "only: its variables cannot be added up, since they do not start at zero or say otherwise. "
    + _WAY_OUT
)


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _results(
    model: Any, metrics: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, int], list[np.ndarray | None]]:
    """Returns the results by name, the metrics behind those of one alone, and their results."""
    try:
        with _metric_states.marked(metrics) as seen:
            logs = _metric_states.results(model)
    except (AttributeError, TypeError, ValueError):
        # A user's own function that needs tensors.
        return _metric_states.results(model), {}, [None] * len(metrics)
    owners = {k: v.position for k, v in logs.items() if isinstance(v, _metric_states.Mark)}
    if len(owners) < len(logs) or any(isinstance(each, dict) for each in seen):
        logs = _metric_states.results(model)  # some are made of several, or several of one
    else:
        logs = {name: seen[owner] for name, owner in owners.items()}
    own = [None if each is None or isinstance(each, dict) else np.asarray(each) for each in seen]
    return logs, owners, own


def _count(metric: Any) -> float | None:
    is_mean = isinstance(metric, _keras.of(metric).metrics.Mean)
    return _keras.number(metric.count) if is_mean else None


def _close(a: np.ndarray, b: np.ndarray, rtol: float = 1e-5) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=rtol, equal_nan=True)


def _wide(metric: Any) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in _metric_states.state(metric)]


def plain(value: Any) -> Any:
    """Returns a number as Keras has it in logs, an array otherwise."""
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array
