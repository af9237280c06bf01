"""`check_drift`: are the variables of all ranks the same, bit for bit?"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _checks, _guarded, _plan, objects, world
from tfring._autograph import as_it_stands
from tfring._digest import digest
from tfring._options import label, unwrapped
from tfring.process_sets import ProcessSet, global_process_set

__all__ = ["check_drift"]

ACTIONS = ("raise", "warn", "resync")

_NAME = "drift"
# Elements that ranks show each other of the first variable that differs, to tell by how much.
_SHOWN = 1 << 16
# Relative difference up to which rounding may be the reason.
_ROUNDING = 1e-3

_logger = logging.getLogger("tfring")


@as_it_stands
def check_drift(
    target: Any,
    action: str = "raise",
    process_set: ProcessSet | None = None,
    *,
    non_trainable: bool = False,
    when: str = "",
) -> list[str]:
    """Compares variables over ranks, and acts when they are not the same, bit for bit.

    Every rank must call it, outside of `tf.function`. Costs one pass over the variables and
    an exchange of 16 bytes; more only when something differs. All ranks then do the same.
    In `fit`, a distributed optimizer has this done at the end of each epoch (`TFRING_DRIFT`),
    and `callbacks.DriftCallback` every so many steps.

    Of a model are compared its trainable weights and its optimizer's variables; of an
    optimizer, what it trains and its variables. Left out is what each rank has of its own:
    local variables with their slots, sums of gradients that are not complete yet, and the
    optimizer's state with `op=Adasum`. Moving statistics (`BatchNormalization`), states of random
    numbers and metrics differ between ranks that see different samples; they are left out
    unless `non_trainable`, or when you list them.

    Args:
        target: A Keras model, a Keras optimizer, or a list of variables (numbers of any dtype).
        action: "raise"; "warn" (logger `tfring`, on the lowest rank); or "resync": all ranks get
            the values of the largest group of ranks that agree, among equals that with the
            lowest rank, and a warning.
        process_set: The ranks to compare. Default: those of the distributed optimizer, or all.
        non_trainable: Also a model's other weights.
        when: Words for the message, such as "after step 100".

    Returns:
        Names of the variables that differed; [] when all were the same.

    Raises:
        ValueError: When `action` is another one.
        TypeError: When `target` is something else, or holds text.
        RuntimeError: Inside a `tf.function`.
        tf.errors.FailedPreconditionError: On all ranks, when variables differ and `action` is
            "raise"; and always when the ranks' lists of variables differ.
        tf.errors.AbortedError: When a peer is lost.

    Example:

    >>> import tensorflow as tf, tfring as hvd
    >>> hvd.init()
    >>> weights = [tf.Variable([1.0, 2.0])]
    >>> hvd.check_drift(weights)
    []
    """
    _checks.eager("check_drift")
    check_action(action)
    variables, members = _resolved(target, process_set, non_trainable)
    world.require_usable()
    ranks = _ranks(members)
    if len(ranks) == 1 or (process_set is None and world.rank() not in ranks):
        return []
    check = Check(variables, members)
    seen = objects.allgather_object(check.summary, name=_NAME, process_set=members)
    return check.settle(seen, action, when)


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
        # Without names: ranks may have numbered their layers differently.
        self._lines = [
            f"#{i}: {tf.as_dtype(v.dtype).name} {tuple(v.shape)}" for i, v in enumerate(variables)
        ]
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
        ranks = _ranks(self._process_set)
        _plan.require_alike(_NAME, self._lines, self._exchange, ranks=ranks)
        digests = np.stack(self._exchange(self._digests, f"{_NAME}/digests"))
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
        shown = self._exchange(_some(self._variables[first]), f"{_NAME}/values")
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


def _resolved(
    target: Any, process_set: ProcessSet | None, non_trainable: bool
) -> tuple[list[Any], ProcessSet]:
    if process_set is not None and not isinstance(process_set, ProcessSet):
        raise TypeError(
            "`process_set` must be a tfring.ProcessSet, or None. "
            f"Received: process_set={process_set!r}"
        )
    if hasattr(target, "trainable_variables") and not isinstance(target, (list, tuple)):
        optimizer = getattr(target, "optimizer", None)
        variables = _guarded.of_model(target, non_trainable)
    elif hasattr(target, "apply_gradients"):
        optimizer, variables = target, _guarded.of_optimizer(target)
    elif isinstance(target, (list, tuple)) and all(_is_variable(item) for item in target):
        optimizer, variables = None, list(target)
    else:
        raise TypeError(
            "`target` must be a Keras model, a Keras optimizer or a list of variables. "
            f"Received: target={target!r} of type {type(target).__name__}"
        )
    return variables, process_set or _guarded.process_set_of(optimizer)


def _is_variable(item: Any) -> bool:
    return isinstance(unwrapped(item), tf.Variable) or tf.is_tensor(item)


def _ranks(process_set: ProcessSet) -> list[int]:
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
