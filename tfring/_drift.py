"""Digests of variables over ranks: compared, told of, mended."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _plan, objects, world
from tfring._digest import digest
from tfring._options import label, unwrapped
from tfring.process_sets import ProcessSet, global_process_set

ACTIONS = ("raise", "warn", "resync")
NAME = "drift"

# Elements that ranks show each other of the first variable that differs, to tell by how much.
_SHOWN = 1 << 16
# Relative difference up to which rounding may be the reason.
_ROUNDING = 1e-3

_logger = logging.getLogger("tfring")


def check_action(action: Any) -> None:
    """Raises ValueError for an action that there is not."""
    if action not in ACTIONS:
        raise ValueError(
            '`action` must be "raise", "warn" or "resync". ' + f"Received: action={action!r}"
        )


class Check:
    """The digests of this rank's variables, to be compared with those of others.

    Args:
        variables: In the same order on all ranks.
        process_set: The ranks that compare theirs.
    """

    def __init__(self, variables: Sequence[Any], process_set: ProcessSet) -> None:
        self._variables = list(variables)
        self._process_set = process_set
        self._digests = digest(self._variables)
        self._lines = _plan.lines_of(self._variables)
        of_lines = hashlib.sha256("\n".join(self._lines).encode())
        #: 16 bytes that are the same on all ranks if and only if all variables are.
        self.summary = hashlib.sha256(self._digests.tobytes() + of_lines.digest()).digest()[:16]

    def settle(self, summaries: Sequence[bytes], action: str, when: str) -> list[str]:
        """Acts on the summaries of all ranks of the set; each of them must call it.

        Args:
            summaries: In the order of the set's ranks.
            action: One of `ACTIONS`.
            when: Words for the message.

        Returns:
            Names of the variables that differed.

        Raises:
            tf.errors.FailedPreconditionError: As `check_drift`.
        """
        if len(set(summaries)) == 1:
            return []
        ranks = ranks_of(self._process_set)
        _plan.require_alike(NAME, self._lines, self._exchange, ranks=ranks)
        digests = np.stack(self._exchange(self._digests, f"{NAME}/digests"))
        found = _compared(digests)
        text = self._text(found, digests, ranks, action, when)
        if action == "raise":
            raise tf.errors.FailedPreconditionError(None, None, text)
        if world.rank() == ranks[0]:
            _logger.warning(text)
        differing = [self._variables[i] for i in found.places]
        if action == "resync":
            objects.broadcast_variables(differing, ranks[found.root], process_set=self._process_set)
        return [label(variable) for variable in differing]

    def _exchange(self, item: Any, name: str) -> list[Any]:
        return list(objects.allgather_object(item, name=name, process_set=self._process_set))

    def _text(
        self,
        found: _Found,
        digests: np.ndarray,
        ranks: Sequence[int],
        action: str,
        when: str,
    ) -> str:
        first = found.places[0]
        column = digests[:, first]
        others = [r for r, d in zip(ranks, column, strict=True) if d != column[found.root]]
        same = [r for r, d in zip(ranks, column, strict=True) if d == column[found.root]]
        shown = self._exchange(_some(self._variables[first]), f"{NAME}/values")
        size, ratio = _difference(shown, found.root)
        what = (
            f"The ranks' variables are not the same{f' {when}' if when else ''}: "
            f"{len(found.places)} of {len(self._variables)} differ. The first is "
            f"`{label(self._variables[first])}`: {_listed(others)} "
            f"{'differs' if len(others) == 1 else 'differ'} from {_listed(same)}{size}. "
        )
        if action == "resync":
            return what + f"All ranks now have the values of rank {ranks[found.root]}."
        return what + (_OF_ROUNDING if ratio <= _ROUNDING else _OF_OTHERS)


_OF_OTHERS = (
    "Let all ranks start alike (BroadcastGlobalVariablesCallback, broadcast_variables), update "
    "variables through the distributed optimizer only, equally often on all ranks, and "
    "call optimizer.register_local_var for what each rank keeps of its own. "
    "TFRING_DRIFT=off leaves out the check that fit makes."
)
_OF_ROUNDING = (
    "So small a difference comes from rounding where ranks compute on different kinds of "
    'processors or with different numbers of threads: action="resync" (in fit: '
    "TFRING_DRIFT=resync) keeps it small; or from ranks that started differently: "
    "BroadcastGlobalVariablesCallback, broadcast_variables."
)


@dataclasses.dataclass(frozen=True)
class _Found:
    """What is wrong.

    Args:
        places: Of the variables that differ.
        root: Place in the set of the lowest rank of the largest group that agrees.
    """

    places: list[int]
    root: int


def _compared(digests: np.ndarray) -> _Found:
    """Compares digests of shape (ranks, variables)."""
    groups = [row.tobytes() for row in digests]
    count = collections.Counter(groups)  # in the order of ranks, which decides among equals
    largest = max(count, key=count.__getitem__)
    places = np.flatnonzero((digests != digests[0]).any(axis=0))
    return _Found(places.tolist(), groups.index(largest))


def ranks_of(process_set: ProcessSet) -> list[int]:
    if process_set is global_process_set or process_set.ranks is None:
        return list(range(world.size()))
    return list(process_set.ranks)


def _some(variable: Any) -> np.ndarray | None:
    """A part of the elements, the same ones on all ranks, in float64."""
    flat = tf.reshape(tf.convert_to_tensor(unwrapped(variable)), [-1])
    if not (flat.dtype.is_floating or flat.dtype.is_integer):
        return None
    step = -(-int(tf.size(flat)) // _SHOWN) or 1
    return np.asarray(flat[::step]).astype(np.float64)


def _difference(values: Sequence[np.ndarray | None], root: int) -> tuple[str, float]:
    """Says how large the largest difference is, and how large relative to the values."""
    mine = values[root]
    if mine is None or not mine.size:
        return "", np.inf
    largest = float(np.max([np.abs(other - mine) for other in values if other is not None]))
    reach = float(np.max(np.abs(mine)))
    if not np.isfinite(largest) or not np.isfinite(reach):
        return ", by infinities or NaN", np.inf
    if largest == 0:
        return "", np.inf
    text = f", by up to {largest:.3g} where values reach {reach:.3g}"
    return text, largest / reach if reach else np.inf


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
