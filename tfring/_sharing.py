"""What of one optimizer's gradients ranks share: the same for every kind of optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfring import _local, _plan, _reducer, _reproducible, _weights, collectives
from tfring._options import Options, is_overwritten
from tfring._order import Order
from tfring.constants import Max


@dataclasses.dataclass(frozen=True)
class Share:
    """How the gradients of one call are reduced.

    Args:
        plan: For the shared ones, in their order.
        shared: Places of what is reduced among the variables.
        own: Places of this rank's own.
        overwritten: Places of what is no gradient but a variable's next value: not in the
            plan, the largest of all ranks counts.
        finished: Places of what a tape has reduced, or scaled, already.
    """

    plan: _plan.Plan
    shared: list[int]
    own: list[int]
    overwritten: list[int]
    finished: frozenset[int]

    @property
    def not_averaged(self) -> frozenset[int]:
        """Places of what is no part of this mean over ranks or samples."""
        return self.finished.union(self.overwritten)


class Sharing:
    """Agrees with other ranks on what is reduced, and reduces it.

    Args:
        name: Prefix of the collectives' names.
        options: How to reduce.
        densify: Whether sparse gradients become dense.
        passes: Calls whose gradients make one update; alike on all ranks.
    """

    def __init__(self, name: str, options: Options, *, densify: bool, passes: int) -> None:
        self.local = _local.LocalVariables()
        self.reducer = _reducer.Reducer(name, options, densify=densify)
        self._options = options
        self._passes = passes
        self._order = Order()  # of shared variables: alike on all ranks
        self._groups_checked = False

    def agree(
        self, gradients: Sequence[Any], variables: Sequence[Any], known: Sequence[Any]
    ) -> Share:
        """Finds the plan, with the other ranks when it is new; every rank must call it.

        Args:
            gradients: One per variable, or None.
            variables: Those of this call.
            known: Those that the user's `groups` may name.

        Raises:
            ValueError: When `groups` names another variable.
            tf.errors.FailedPreconditionError: On all ranks, when they differ.
        """
        if not self._groups_checked:
            self._options.check_known([*known, *variables], "this optimizer")
            self._groups_checked = True
        shared, own = self.local.split(variables)
        overwritten = [i for i in shared if is_overwritten(variables[i])]
        shared = [i for i in shared if i not in overwritten]
        some = [variables[i] for i in shared]
        present = sum(gradients[i] is not None for i in overwritten)
        plan = self.reducer.plan_for(
            [gradients[i] for i in shared],
            some,
            self._order.places(some),
            remark=f"local variables={bool(own)}, backward_passes_per_step={self._passes}"
            + (f", values that overwrite={present}" if overwritten else ""),
        )
        finished = {i for i, g in enumerate(gradients) if _reducer.is_reduced(g)}
        for i, entry in zip(shared, plan.entries, strict=True):
            finished |= {i} if entry.kind is _plan.Kind.REDUCED else set()
        return Share(plan, shared, own, overwritten, frozenset(finished))

    def filled(self, share: Share, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients, with zeros where only other ranks have one."""
        some = [gradients[i] for i in share.shared]
        of = [variables[i] for i in share.shared]
        return _placed(gradients, share.shared, self.reducer.fill(share.plan, some, of))

    def reduced(self, share: Share, gradients: Sequence[Any]) -> list[Any]:
        """Returns the gradients, the shared ones reduced and the own ones scaled."""
        return reduced(self.reducer, self._options, share, gradients)

    def sample_means(
        self, share: Share, gradients: Sequence[Any], numbers: Any, factor: float
    ) -> list[Any]:
        """Returns the means of weighed gradients over all ranks' samples, see `sample_means`."""
        return sample_means(self.reducer, self._options, share, gradients, numbers, factor)

    def with_own_scaled(self, share: Share, gradients: Sequence[Any]) -> list[Any]:
        """Returns the gradients, this rank's own divided by the number of ranks if need be."""
        return _with_own_scaled(self._options, share, gradients)

    def with_maxima(self, share: Share, gradients: Sequence[Any]) -> list[Any]:
        """Returns the gradients, those that overwrite a variable the largest of all ranks.

        What overwrites is statistics of the whole batch, as in float8 training: the largest
        absolute values, and scales that follow from earlier ones.
        """
        places = [i for i in share.overwritten if gradients[i] is not None]
        if not (places and self._options.takes_part()):
            return list(gradients)
        maxima = collectives.grouped_allreduce(
            [gradients[i] for i in places],
            op=Max,
            name=f"{share.plan.name}/maxima",
            process_set=self._options.process_set,
        )
        return _placed(gradients, places, maxima)


def reduced(
    reducer: _reducer.Reducer, options: Options, share: Share, gradients: Sequence[Any]
) -> list[Any]:
    """Returns the gradients, the shared ones reduced and the own ones scaled."""
    result = _with_own_scaled(options, share, gradients)
    some = [result[i] for i in share.shared]
    return _placed(result, share.shared, reducer.reduce(share.plan, some))


def sample_means(
    reducer: _reducer.Reducer,
    options: Options,
    share: Share,
    gradients: Sequence[Any],
    numbers: Any,
    factor: float = 1.0,
) -> list[Any]:
    """Returns weighed gradients as means over all ranks' samples.

    Args:
        reducer: Of the shared ones.
        options: How to reduce.
        share: What is shared.
        gradients: What `_weights.weighed` made, or sums of such.
        numbers: What `_weights.numbers` returned, or the sum.
        factor: Multiplies the means.
    """

    def reduce(every: list[Any], own: Any) -> tuple[list[Any], Any]:
        some = [every[i] for i in share.shared]
        some, average = reducer.reduce_with(share.plan, some, own)
        return _placed(every, share.shared, some), average

    left_alone = share.not_averaged
    return _weights.means(gradients, left_alone, share.own, numbers, reduce, options, factor)


def _with_own_scaled(options: Options, share: Share, gradients: Sequence[Any]) -> list[Any]:
    result = list(gradients)
    for i in share.own:
        if i not in share.finished:
            result[i] = _local.scaled(_reproducible.plain(result[i]), options)
    return result


def _placed(items: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list[Any]:
    result = list(items)
    for i, item in zip(places, new, strict=True):
        result[i] = item
    return result
