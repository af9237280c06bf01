"""One rank of one contender: does what the benchmark says over a local socket, one at a time.

Between its turns it sleeps in `recv`. Messages are lines of JSON.
"""

from __future__ import annotations

import gc
import itertools
import json
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tfring.bench.contenders.base import Contender, Prepared, UnsupportedError


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
    # Each library is imported only where it is the one measured.
    if kind == "engine":
        from tfring.bench.contenders.engine import Engine

        return Engine()
    if kind == "op":
        from tfring.bench.contenders.tensorflow_op import TensorFlowOp

        return TensorFlowOp()
    if kind == "mpi":
        from tfring.bench.contenders.mpi import Mpi

        return Mpi()
    if kind == "gloo":
        from tfring.bench.contenders.gloo import Gloo

        return Gloo(*files)
    from tfring.bench.contenders.memory_limit import MemoryLimit

    return MemoryLimit(*files)


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
        else:
            send(stream, ns=measure(prepared[message["way"]], message["calls"]))


def prepare(contender: Contender, message: dict[str, Any]) -> Prepared:
    """Makes an allreduce ready and proves once that its result is right."""
    array = np.full(message["count"], contender.rank + 1, dtype=message["dtype"])
    prepared = contender.prepare(message["way"], array)
    result = prepared.check()
    expected = contender.size * (contender.size + 1) // 2
    if result is not None and not (result == expected).all():
        raise RuntimeError(f"wrong result: expected {expected} everywhere, got {result}")
    # Sums in place would grow to infinity.
    array.fill(0)
    return prepared


def measure(prepared: Prepared, calls: int) -> list[int]:
    """Returns the nanoseconds of each call, after some that are not counted."""
    stamps = [0] * (calls + 1)
    for _ in range(1 + calls // 10):
        prepared.call()
    gc.disable()
    try:
        timed_calls(prepared.call, stamps)
    finally:
        gc.enable()
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


def send(stream: Any, **message: Any) -> None:
    """Sends one answer."""
    stream.write(json.dumps(message) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
