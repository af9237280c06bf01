"""What TensorFlow's users call: tfring's collectives, eager, in a `tf.function`, and under XLA."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

import tfring
from tfring.bench.contenders.base import Prepared, UnsupportedError
from tfring.bench.problem import ROOT, Problem

# So many more calls in a graph; fewer where each takes long anyway.
_MORE, _MORE_OF_LARGE, _LARGE_BYTES = 16, 4, 2**22
_COMPRESSIONS = {"": "none", "float16": "fp16", "bfloat16": "bf16"}

# Takes and returns a list of tensors.
_Collective = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


class TensorFlowOp:
    """One rank. Results are new tensors, because the input stays alive."""

    def __init__(self) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tfring.init()
        self.rank, self.size = tfring.rank(), tfring.size()
        self.title = (
            f"tfring {tfring.__version__}, op (TensorFlow {tf.__version__}, in which calling an "
            f"empty `tf.function` takes {_empty_function_us():.0f} us)"
        )

    def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
        """Makes a way ready: `eager`, `function`, `graph`, `xla` or, eagerly, `list` and `flat`."""
        tensors = [tf.constant(array) for array in inputs]
        collective = _collective(problem)
        if way == "graph":
            return _marginal(problem, collective, tensors, inputs)
        if way == "xla":
            return _under_xla(collective, tensors)
        compiled = way == "function"
        call = _function(collective, tensors) if compiled else partial(collective, tensors)
        # On a CPU all return when the result is there.
        return Prepared(call, lambda: [result.numpy() for result in call()])

    def close(self) -> None:
        """Leaves the world."""
        tfring.shutdown()


def _empty_function_us() -> float:
    tensor = tf.constant(0.0)
    call, times = tf.function(lambda: tensor), []
    for _ in range(200):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[len(times) // 2] / 1e3


def _collective(problem: Problem) -> _Collective:
    name = "bench"
    compression = getattr(tfring.Compression, _COMPRESSIONS[problem.wire])
    reduction = {"op": tfring.Sum, "compression": compression, "name": name}
    if problem.collective == "grouped" and len(problem.counts) > 1:
        return lambda tensors: tfring.grouped_allreduce(tensors, **reduction)
    one: Callable[[tf.Tensor], tf.Tensor] = {
        "allreduce": partial(tfring.allreduce, **reduction),
        "grouped": partial(tfring.allreduce, **reduction),
        "allgather": partial(tfring.allgather, name=name),
        "alltoall": partial(tfring.alltoall, name=name),
        "broadcast": partial(tfring.broadcast, root_rank=ROOT, name=name),
        "reducescatter": partial(tfring.reducescatter, **reduction),
    }[problem.collective]
    return lambda tensors: [one(tensors[0])]


def _function(
    collective: _Collective, tensors: list[tf.Tensor], **options: Any
) -> Callable[[], list[tf.Tensor]]:
    # Captured, not passed: TensorFlow looks at each argument of a function in every call.
    return tf.function(lambda: collective(tensors), **options)


def _chain(
    problem: Problem, collective: _Collective, tensors: list[tf.Tensor], length: int
) -> Callable[[], list[tf.Tensor]]:
    """Returns a `tf.function` of so many collectives, each of which waits for the one before."""

    def run() -> list[tf.Tensor]:
        results = collective(tensors)
        for _ in range(length - 1):
            if problem.in_place:
                results = collective(results)
                continue
            with tf.control_dependencies(results):
                results = collective([tf.identity(tensor) for tensor in tensors])
        return results

    return tf.function(run)


def _marginal(
    problem: Problem, collective: _Collective, tensors: list[tf.Tensor], inputs: list[np.ndarray]
) -> Prepared:
    """One more collective in a graph: a long chain less a chain of one."""
    large = sum(array.nbytes for array in inputs) > _LARGE_BYTES
    more = _MORE_OF_LARGE if large else _MORE
    short = _chain(problem, collective, tensors, 1)
    zeros = [tf.zeros_like(tensor) for tensor in tensors]  # sums of sums would grow
    long, base = (_chain(problem, collective, zeros, length) for length in (1 + more, 1))
    long()
    return Prepared(long, lambda: [result.numpy() for result in short()], base=base, parts=more)


def _under_xla(collective: _Collective, tensors: list[tf.Tensor]) -> Prepared:
    call = _function(collective, tensors, jit_compile=True)
    try:
        call()
    except (tf.errors.OpError, NotImplementedError, ValueError) as error:
        # Names of graphs, which differ each time, come behind it.
        said = str(error).partition(" when ")[0].splitlines()[0][:80]
        raise UnsupportedError(f"XLA does not compile it here ({said})") from error
    return Prepared(call, lambda: [result.numpy() for result in call()])
