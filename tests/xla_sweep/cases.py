"""Ten collectives that do not depend on each other, in one compiled function, and what they give.

Values are small integers that depend on place, rank, call and repeat, so that results are exact in
every dtype and a stale or swapped buffer shows. The compiled function compares all results with
what they must be, in every repeat.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import tfring as hvd

CALLS = 10
COLLECTIVES = (
    "sum",
    "average",
    "min",
    "max",
    "product",
    "grouped",
    "allgather",
    "broadcast",
    "reducescatter",
    "alltoall",
    "barrier",
    "mixed",
)

# Takes a call's own tensor, its number, and `want(rank)`: that call's tensor on a rank. Returns
# pairs of a result and what it must be.
Case = Callable[[Any, int, Callable[[int], Any]], list[tuple[Any, Any]]]


def has(collective: str, dtype: tf.DType) -> bool:
    """Whether there is such a collective of such a dtype."""
    adds_up = collective in ("sum", "average", "grouped", "reducescatter", "mixed")
    return not (adds_up and dtype == tf.bool)


def function(collective: str, dtype: tf.DType, size_in_bytes: int) -> Any:
    """Makes the compiled function.

    Args:
        collective: One of `COLLECTIVES`; "mixed" has one call of each of the others.
        dtype: Of the tensors.
        size_in_bytes: Of the larger of a call's tensor and its result, about.

    Returns:
        A `tf.function` that takes the number of the repeat, an int32, and returns the results and,
        for each, whether all of it is right.
    """
    count = max(1, size_in_bytes // dtype.size)

    @tf.function(jit_compile=True, autograph=False)
    def run(repeat: Any) -> tuple[list[Any], list[Any]]:
        results, right = [], []
        for call in range(CALLS):
            kind = _MIXED[call] if collective == "mixed" else collective
            for result, expected in _call(kind, dtype, count, call, repeat):
                results.append(result)
                right.append(tf.reduce_all(tf.equal(result, expected)))
        return results, right

    return run


def _call(
    collective: str, dtype: tf.DType, count: int, call: int, repeat: Any
) -> list[tuple[Any, Any]]:
    size = hvd.size()
    if collective == "barrier":
        hvd.barrier()
        return []
    if collective == "alltoall":
        count = -(-count // size) * size
    if collective == "allgather":
        count = max(1, count // size)
    small = collective == "product" or dtype == tf.bool

    def want(rank: int) -> Any:
        if small:
            numbers = (tf.range(count) + rank + call + repeat) % 2
            return tf.cast(numbers if dtype == tf.bool else numbers + 1, dtype)
        return tf.cast(tf.range(count) % 7 + (rank + call + repeat % 5), dtype)

    return _CASES[collective](want(hvd.rank()), call, want)


def _combined(by: Callable[[Any, Any], Any], want: Callable[[int], Any]) -> Any:
    return functools.reduce(by, (want(rank) for rank in range(hvd.size())))


def _reduced(op: Any, by: Callable[[Any, Any], Any]) -> Case:
    return lambda x, _, want: [(hvd.allreduce(x, op=op), _combined(by, want))]


def _both(x: Any, y: Any, *, of_bool: Any, otherwise: Any) -> Any:
    return (of_bool if x.dtype == tf.bool else otherwise)(x, y)


_ADD = _reduced(hvd.Sum, tf.add)
_MIN = functools.partial(_both, of_bool=tf.logical_and, otherwise=tf.minimum)
_MAX = functools.partial(_both, of_bool=tf.logical_or, otherwise=tf.maximum)
_PRODUCT = functools.partial(_both, of_bool=tf.logical_and, otherwise=tf.multiply)


def _average(x: Any, _: int, want: Callable[[int], Any]) -> list[tuple[Any, Any]]:
    total, size = _combined(tf.add, want), hvd.size()
    mean = total / size if x.dtype.is_floating else total // size
    return [(hvd.allreduce(x), tf.cast(mean, x.dtype))]


def _grouped(x: Any, _: int, want: Callable[[int], Any]) -> list[tuple[Any, Any]]:
    count = x.shape[0]
    cuts = [0, count // 2, count // 2 + count // 3, count]
    parts = list(itertools.pairwise(cuts))
    total = _combined(tf.add, want)
    results = hvd.grouped_allreduce([x[a:b] for a, b in parts], op=hvd.Sum)
    return [(result, total[a:b]) for result, (a, b) in zip(results, parts, strict=True)]


def _allgather(x: Any, _: int, want: Callable[[int], Any]) -> list[tuple[Any, Any]]:
    return [(hvd.allgather(x), tf.concat([want(rank) for rank in range(hvd.size())], 0))]


def _broadcast(x: Any, call: int, want: Callable[[int], Any]) -> list[tuple[Any, Any]]:
    root = call % hvd.size()
    return [(hvd.broadcast(x, root), want(root))]


def _reducescatter(x: Any, _: int, want: Callable[[int], Any]) -> list[tuple[Any, Any]]:
    part, over = divmod(x.shape[0], hvd.size())
    rank = hvd.rank()
    first = rank * part + min(rank, over)
    own = _combined(tf.add, want)[first : first + part + (rank < over)]
    return [(hvd.reducescatter(x, op=hvd.Sum), own)]


def _alltoall(x: Any, _: int, want: Callable[[int], Any]) -> list[tuple[Any, Any]]:
    part, mine = x.shape[0] // hvd.size(), hvd.rank()
    blocks = [want(rank)[mine * part : (mine + 1) * part] for rank in range(hvd.size())]
    return [(hvd.alltoall(x), tf.concat(blocks, 0))]


_CASES: dict[str, Case] = {
    "sum": _ADD,
    "average": _average,
    "min": _reduced(hvd.Min, _MIN),
    "max": _reduced(hvd.Max, _MAX),
    "product": _reduced(hvd.Product, _PRODUCT),
    "grouped": _grouped,
    "allgather": _allgather,
    "broadcast": _broadcast,
    "reducescatter": _reducescatter,
    "alltoall": _alltoall,
}
_MIXED: Sequence[str] = [*(name for name in COLLECTIVES if name not in ("average", "mixed"))]


def wrong(run: Any, repeats: int) -> str:
    """Runs a function and returns what was wrong; empty: nothing.

    Args:
        run: Of `function`.
        repeats: How often; each sees other numbers.
    """
    for repeat in range(repeats):
        _, right = run(tf.constant(repeat))
        told = [bool(one) for one in right]
        if not all(told):
            return f"repeat {repeat}: results {[i for i, ok in enumerate(told) if not ok]} of " + (
                f"{len(told)}"
            )
    return ""
