"""Names by which collectives of different ranks find each other, and their order in a graph.

The engine pairs the n-th use of a name on one rank with the n-th use on every other. Calls
without a name get one from where they stand, never from a counter of the process: a function
that one rank traces twice still pairs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Shared by all kinds, so that two ranks that call different collectives are told at once.
EAGER = "eager"

_CALLS = "_tfring_calls"


class _GraphCalls:
    """Collectives of one graph: how many, how often each name, and the last op of each name.

    Ranks outside a process set do not see its calls, so each set counts apart.
    """

    def __init__(self) -> None:
        self.counts: collections.Counter[int] = collections.Counter()
        self.uses: collections.Counter[tuple[int, str]] = collections.Counter()
        self.last: dict[tuple[int, str], Any] = {}
        self.barrier: Any = None


def emit(
    create: Callable[[str, bool], Any],
    name: str | None,
    *,
    process_set: int = 0,
    barrier: bool = False,
) -> Any:
    """Creates a collective op under its pairing name, after the ops that it must follow.

    Args:
        create: takes the pairing name, and whether the op runs eagerly; creates the op and
            returns its tensors, or the op.
        name: the user's name, or None.
        process_set: id of the ranks that take part.
        barrier: the op follows, and is followed by, every other collective of its function; in
            a v1 graph nothing follows without `tf.control_dependencies`.

    Returns:
        What `create` returned.
    """
    if tf.executing_eagerly():
        return create(name or EAGER, True)
    graph = tf.compat.v1.get_default_graph()
    _refuse_data_function(graph)
    calls = _calls_of(graph)
    key = name or f"{_path(graph)}/{calls.counts[process_set]}"
    calls.counts[process_set] += 1
    own = (process_set, key)
    if not hasattr(graph, "outer_graph"):
        return create(_numbered(calls, own), False)
    before = list(calls.last.values()) if barrier else [calls.last.get(own)]
    before.append(calls.barrier)
    with tf.control_dependencies([op for op in before if op is not None]):
        result = create(key, False)
    first = result[0] if isinstance(result, (list, tuple)) else result
    op = getattr(first, "op", first)
    calls.last[own] = op
    if barrier:
        calls.barrier = op
    return result


def _numbered(calls: _GraphCalls, own: tuple[int, str]) -> str:
    """Returns a name of its own for a call in a v1 graph.

    A session runs any part of the graph: calls there must not wait for each other, and so cannot
    share a name.
    """
    use = calls.uses[own]
    calls.uses[own] += 1
    return f"{own[1]}#{use}" if use else own[1]


def _refuse_data_function(graph: Any) -> None:
    """Raises RuntimeError inside `Dataset.map`, `interleave` and their kind.

    They make elements ahead and in parallel, so that ranks would pair different elements. A scan,
    which is also what a loop over a dataset in a `tf.function` becomes, keeps its order.
    """
    while graph is not None:
        name = getattr(graph, "name", "")
        if name.startswith("Dataset_") and not name.startswith("Dataset_scan"):
            raise RuntimeError(
                "A collective cannot run inside a function of a tf.data pipeline, which makes its "
                "elements in an order of its own on each rank. Call it in the training step. "
                f"Received: a call inside {name!r}"
            )
        graph = getattr(graph, "outer_graph", None)


def _calls_of(graph: Any) -> _GraphCalls:
    calls = getattr(graph, _CALLS, None)
    if calls is None:
        calls = _GraphCalls()
        setattr(graph, _CALLS, calls)
    return calls


def _path(graph: Any) -> str:
    """Returns the name of the function, with the branches and loop bodies inside it.

    A function that is called by another keeps its own name only: which caller traced it first may
    differ between ranks.
    """
    part = getattr(graph, "name", "graph").rstrip("0123456789_") or "function"
    outer = getattr(graph, "outer_graph", None)
    is_branch_or_body = type(graph).__name__ != "FuncGraph"
    if outer is None or not is_branch_or_body:
        return part
    return f"{_path(outer)}/{part}"
