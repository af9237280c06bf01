"""What ranks agree on around the callbacks of `fit`.

A callback that is given on one rank only, or that decides by something local (the time, the loss of
its own batch), stops training, or changes the learning rate or the weights, on that rank alone. Its
rank then makes other updates than its peers, or fewer collectives, and they wait for it.

So, in a `fit` whose optimizer is distributed, ranks exchange one small report before the callbacks
of training's begin, and after those of each epoch's begin, each epoch's end and training's end:

* A wish to stop of any rank counts for all.
* The learning rate is that of the lowest rank where it changed since the last report.
* Variables (weights, and those of the optimizer) that callbacks changed somewhere are those of the
  lowest rank whose callbacks changed any. Digests of the variables before and after tell; nothing
  is sent where all ranks changed them alike.
* What training has left at an epoch's end must be the same on all ranks (`_drift`).

A wish to stop within an epoch waits until all ranks know of it (see `StopWish`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfring import _digest, _drift, _failure, _keras, _legacy_keras, _loss_scale, objects
from tfring._options import Options
from tfring._stop_wish import StopWish

NAME = "callbacks"
_UNEVEN = "JoinCallback"  # lets ranks have different numbers of batches


class Report(NamedTuple):
    """What a rank says."""

    place: str  # where in `fit` it is
    epochs: int | None
    batches: int | None  # of an epoch; None: not known beforehand
    partners: tuple[str, ...]  # callbacks that talk to those of other ranks
    steps_per_execution: int | None
    stops: bool
    rate: float | None  # None: a schedule
    rate_is_new: bool
    changed: dict[int, int]  # digests of variables, by their position
    state: bytes | None  # digest of what training keeps alike; None: not asked for
    action: str  # where that differs


class Agreement:
    """The reports of one rank during one `fit`.

    Args:
        model: What is trained.
        options: Of its optimizer; they say which ranks agree.
        variables: Gives the variables that are alike on all ranks, as far as they are made.
        epochs: Of `fit`.
        batches: Of an epoch, None where that is not known beforehand.
        partners: Callbacks that must be the same on all ranks.
        check: Gives the digests of what training keeps alike, None where they are not wanted.
        action: What to do where they differ.
    """

    def __init__(
        self,
        model: Any,
        options: Options,
        variables: Callable[[], list[Any]],
        epochs: int | None,
        batches: int | None,
        partners: Sequence[str],
        check: Callable[[], _drift.Check | None],
        action: str,
    ) -> None:
        self._model = model
        self._options = options
        self._variables = variables
        self._epochs = epochs
        self._batches = batches
        self._partners = tuple(partners)
        self._check = check
        self._action = action
        self._rate = _rate(model.optimizer)
        self.stop_wish = StopWish(model, options)

    def begin(self) -> None:
        """Requires that all ranks have the callbacks that wait for each other."""
        try:
            with self.around("begin of training", may_change=False):
                pass
        except Exception as error:
            _failure.mark_before_training(error)
            raise

    @contextlib.contextmanager
    def around(self, place: str, *, may_change: bool, after_epoch: bool = False) -> Iterator[None]:
        """Runs callbacks in its body, then agrees.

        Args:
            place: Where in `fit` this is, in words.
            may_change: Whether a callback of this rank may change variables here.
            after_epoch: Whether training has gone on since the last time.
        """
        # What training left, not yet what callbacks make of it.
        check = self._check() if after_epoch else None
        before = self._digests() if may_change else []
        yield
        after = self._digests() if may_change else []
        changed = {}
        if len(before) == len(after):  # else they were made just now
            changed = {i: new for i, new in enumerate(after) if new != before[i]}
        rate = _rate(self._model.optimizer)
        report = Report(
            place=place,
            epochs=self._epochs,
            batches=self._batches,
            partners=self._partners,
            steps_per_execution=_steps_per_execution(self._model),
            stops=bool(self._model.stop_training),
            rate=rate,
            rate_is_new=rate != self._rate,
            changed=changed,
            state=None if check is None else check.summary,
            action=self._action,
        )
        reports = objects.allgather_object(report, name=NAME, process_set=self._options.process_set)
        self._adopt(reports)
        states = [each.state for each in reports if each.state is not None]
        if check is not None and len(states) == len(reports):
            check.settle(states, reports[0].action, f"at the {place}")

    def _digests(self) -> list[int]:
        return [int(number) for number in _digest.digest(self._variables())]

    def _adopt(self, reports: list[Report]) -> None:
        ranks = self._options.ranks()
        _require_alike(reports, ranks)
        self._model.stop_training = any(report.stops for report in reports)
        self.stop_wish.know(report.steps_per_execution for report in reports)
        optimizer = self._model.optimizer
        rate = next((report.rate for report in reports if report.rate_is_new), None)
        if rate is not None and rate != _rate(optimizer):
            optimizer.learning_rate = rate
        self._rate = _rate(optimizer)
        places = sorted(set().union(*(report.changed for report in reports)))
        differ = [p for p in places if len({report.changed.get(p) for report in reports}) > 1]
        if differ:
            first = next(i for i, report in enumerate(reports) if report.changed)
            variables = self._variables()
            objects.broadcast_variables(
                [variables[place] for place in differ],
                ranks[first],
                process_set=self._options.process_set,
            )


def _require_alike(reports: Sequence[Report], ranks: Sequence[int]) -> None:
    """Raises tf.errors.FailedPreconditionError where ranks would wait for each other in vain."""
    if len({(report.place, report.epochs) for report in reports}) > 1:
        what = "All ranks must run the same epochs, with the same `epochs` and `initial_epoch`"
        said = [f"{report.place}, epochs={report.epochs}" for report in reports]
    elif len({report.partners for report in reports}) > 1:
        what = "These callbacks must be given to fit on all ranks, or on none, in the same order"
        said = [", ".join(report.partners) or "none of them" for report in reports]
    elif _UNEVEN not in reports[0].partners and _differ(report.batches for report in reports):
        what = (
            "All ranks must have equally many batches in an epoch, or they would wait for each "
            "other. Cut the data by tfring.data.shard, end with the shortest rank by tfring.data."
            f"shortest or `steps_per_epoch`, or use {_UNEVEN}"
        )
        said = [f"{report.batches} batches" for report in reports]
    else:
        return
    received = "; ".join(f"rank {rank}: {text}" for rank, text in zip(ranks, said, strict=True))
    raise tf.errors.FailedPreconditionError(None, None, f"{what}. Received: {received}")


def _differ(numbers: Iterable[int | None]) -> bool:
    return len(set(numbers) - {None}) > 1


def _rate(optimizer: Any) -> float | None:
    is_legacy = _keras.is_legacy(optimizer)
    inner = (_legacy_keras if is_legacy else _loss_scale).innermost(optimizer)
    has_schedule = (
        _legacy_keras.has_schedule(inner) if is_legacy else callable(inner._learning_rate)
    )
    return None if has_schedule else _keras.number(inner.learning_rate)


def rate_variable(optimizer: Any) -> Any:
    """Returns the variable that is the learning rate, None where there is none."""
    is_legacy = _keras.is_legacy(optimizer)
    inner = (_legacy_keras if is_legacy else _loss_scale).innermost(optimizer)
    return getattr(inner, "_hyper", {}).get("learning_rate", getattr(inner, "_learning_rate", None))


def _steps_per_execution(model: Any) -> int | None:
    """Batches between two calls of callbacks, alike in the whole `fit`; None where unknown."""
    # Keras 2 may change the number while it trains, on each rank by the time that it took.
    return None if _keras.is_legacy(model) else int(model.steps_per_execution)
