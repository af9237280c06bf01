"""One rank of one contender: does what the benchmark says over a local socket, one at a time.

Between its turns it sleeps in `recv`. Messages are lines of JSON.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfring.bench.contenders.base import Contender, Prepared, UnsupportedError
from tfring.bench.problem import Problem


class WrongResultError(RuntimeError):
    """A collective gave other numbers than it should."""


# Each library is imported only where it is the one measured.
_CONTENDERS = {
    "engine": ("engine", "Engine"),
    "op": ("tensorflow_op", "TensorFlowOp"),
    "mpi": ("mpi", "Mpi"),
    "gloo": ("gloo", "Gloo"),
    "oneccl": ("oneccl", "OneCcl"),
    "limit": ("memory_limit", "MemoryLimit"),
}


def main(arguments: list[str]) -> int:
    """Runs `worker KIND SOCKET [FILE]` until the benchmark says end, or is gone."""
    kind, address, *files = arguments
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        contender = make(kind, files)
        stream = connection.makefile("rw", encoding="utf-8", newline="\n")
        send(stream, rank=contender.rank, size=contender.size, title=contender.title)
        serve(contender, stream)
        contender.close()
    return 0


def make(kind: str, files: list[str]) -> Contender:
    """Connects this rank with its peers."""
    module, name = _CONTENDERS[kind]
    return getattr(importlib.import_module(f"tfring.bench.contenders.{module}"), name)(*files)


def serve(contender: Contender, stream: Any) -> None:
    """Answers the benchmark's messages."""
    prepared: dict[str, Prepared] = {}
    for line in stream:
        message = json.loads(line)
        if message["do"] == "end":
            return
        if message["do"] == "forget":  # frees the tensors of the size before
            prepared.clear()
            send(stream)
        elif message["do"] == "prepare":
            try:
                prepared[message["way"]] = prepare(contender, message)
                send(stream)
            except UnsupportedError as error:
                send(stream, unsupported=str(error))
            except WrongResultError:
                raise
            except Exception as error:
                # Other libraries say in their own ways that they lack a type or a collective.
                if not message.get("lenient"):
                    raise
                send(stream, unsupported=f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            send(stream, ns=measure(prepared[message["way"]], message["calls"]))


def prepare(contender: Contender, message: dict[str, Any]) -> Prepared:
    """Makes a collective ready and proves once that its result is right."""
    way, counts = message["way"], tuple(message["counts"])
    problem = Problem(
        message["collective"],
        message["dtype"],
        counts,
        contender.rank,
        contender.size,
        message.get("wire", ""),
    )
    if way == "flat":
        problem = problem.flat()
    inputs = problem.inputs()
    prepared = contender.prepare(way, problem, inputs)
    results = prepared.results()
    if results is not None:
        require_right(results, problem.expected())
    # Sums in place would grow to infinity.
    for array in inputs:
        array.fill(0)
    return prepared


def require_right(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Raises WrongResultError unless all tensors are equal."""
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        if not np.array_equal(result.reshape(-1), right):
            raise WrongResultError(f"wrong result: tensor {number} is {result}, not {right}")


def measure(prepared: Prepared, calls: int) -> list[int]:
    """Returns the nanoseconds of each call, after some that are not counted."""
    for _ in range(1 + calls // 10):
        prepared.call()
    gc.disable()
    try:
        if prepared.base is not None:
            return marginal(prepared.call, prepared.base, prepared.parts, calls)
        stamps = [0] * (calls + 1)
        timed_calls(prepared.call, stamps)
    finally:
        gc.enable()
        if prepared.verify is not None:
            prepared.verify()
    if not prepared.paced:
        return [(stamps[-1] - stamps[0]) // calls]
    return [end - start for start, end in itertools.pairwise(stamps)]


def timed_calls(call: Callable[[], Any], stamps: list[int]) -> None:
    """Calls back to back and notes the time between calls."""
    clock = time.perf_counter_ns
    stamps[0] = clock()
    for i in range(1, len(stamps)):
        call()
        stamps[i] = clock()


def marginal(call: Callable[[], Any], base: Callable[[], Any], parts: int, calls: int) -> list[int]:
    """Returns what `call` takes beyond `base`, divided by `parts`; both take turns."""
    base()
    long, short = [0] * 2, [0] * 2
    samples = []
    for _ in range(calls):
        timed_calls(call, long)
        timed_calls(base, short)
        samples.append((long[1] - long[0] - short[1] + short[0]) // parts)
    return samples


def send(stream: Any, **message: Any) -> None:
    """Sends one answer."""
    stream.write(json.dumps(message) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
