"""Names by which collectives of different ranks find each other, and their order in a graph.

The engine pairs the n-th use of a name on one rank with the n-th use on every other. Calls
without a name get one from where they stand, never from a counter of the process: a function
that one rank traces twice still pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Shared by all kinds, so that two ranks that call different collectives are told at once.
EAGER = "eager"

_CALLS = "_tfring_calls"


class _GraphCalls:
    """Collectives of one graph: how many, how often each name, and the last op of each name."""

    def __init__(self) -> None:
        self.count = 0
        self.uses: dict[str, int] = {}
        self.last: dict[str, Any] = {}
        self.barrier: Any = None


def emit(create: Callable[[str], Any], name: str | None, *, barrier: bool = False) -> Any:
    """Creates a collective op under its pairing name, after the ops that it must follow.

    Args:
        create: takes the pairing name and creates the op; returns its tensors, or the op.
        name: the user's name, or None.
        barrier: the op follows, and is followed by, every other collective of its function; in
            a v1 graph nothing follows without `tf.control_dependencies`.

    Returns:
        What `create` returned.
    """
    if tf.executing_eagerly():
        return create(name or EAGER)
    graph = tf.compat.v1.get_default_graph()
    _refuse_data_function(graph)
    calls = _calls_of(graph)
    key = name or f"{_path(graph)}/{calls.count}"
    calls.count += 1
    if not hasattr(graph, "outer_graph"):
        return create(_numbered(calls, key))
    before = list(calls.last.values()) if barrier else [calls.last.get(key)]
    before.append(calls.barrier)
    with tf.control_dependencies([op for op in before if op is not None]):
        result = create(key)
    op = result[0].op if isinstance(result, (list, tuple)) else result
    calls.last[key] = op
    if barrier:
        calls.barrier = op
    return result


def _numbered(calls: _GraphCalls, key: str) -> str:
    """Returns a name of its own for a call in a v1 graph.

    A session runs any part of the graph: calls there must not wait for each other, and so cannot
    share a name.
    """
    use = calls.uses.get(key, 0)
    calls.uses[key] = use + 1
    return f"{key}#{use}" if use else key


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
