"""`check_drift`: are the variables of all ranks the same, bit for bit?"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring import _checks, _drift, objects, optimizer, world
from tfring._autograph import as_it_stands
from tfring._options import unwrapped
from tfring.process_sets import ProcessSet

__all__ = ["check_drift"]


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
    _drift.check_action(action)
    variables, members = _resolved(target, process_set, non_trainable)
    world.require_usable()
    ranks = _drift.ranks_of(members)
    if len(ranks) == 1 or (process_set is None and world.rank() not in ranks):
        return []
    check = _drift.Check(variables, members)
    seen = objects.allgather_object(check.summary, name=_drift.NAME, process_set=members)
    return check.settle(seen, action, when)


def _resolved(
    target: Any, process_set: ProcessSet | None, non_trainable: bool
) -> tuple[list[Any], ProcessSet]:
    if process_set is not None and not isinstance(process_set, ProcessSet):
        raise TypeError(
            "`process_set` must be a tfring.ProcessSet, or None. "
            f"Received: process_set={process_set!r}"
        )
    if hasattr(target, "trainable_variables") and not isinstance(target, (list, tuple)):
        of = getattr(target, "optimizer", None)
        variables = optimizer.guarded_of_model(target, non_trainable)
    elif hasattr(target, "apply_gradients"):
        of, variables = target, optimizer.guarded_variables(target)
    elif isinstance(target, (list, tuple)) and all(_is_variable(item) for item in target):
        of, variables = None, list(target)
    else:
        raise TypeError(
            "`target` must be a Keras model, a Keras optimizer or a list of variables. "
            f"Received: target={target!r} of type {type(target).__name__}"
        )
    return variables, process_set or optimizer.process_set_of(of)


def _is_variable(item: Any) -> bool:
    return isinstance(unwrapped(item), tf.Variable) or tf.is_tensor(item)
