"""oneCCL on host memory, over its C++ face, through a small library compiled on the spot."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_void_p
from functools import partial
from pathlib import Path

import numpy as np

from tfring.bench.contenders.base import Prepared, UnsupportedError, into, one_by_one, packed
from tfring.bench.problem import Problem

_TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 4,
    "int64": 6,
    "float16": 8,
    "float32": 9,
    "float64": 10,
    "bfloat16": 11,
}
_COMPILE_S, _MEET_S = 50.0, 55.0


class OneCcl:
    """One rank; who it is comes from tfring's launcher, where ranks meet is a file."""

    def __init__(self, meeting_file: str) -> None:
        self.rank = int(os.environ["TFRING_RANK"])
        self.size = int(os.environ["TFRING_SIZE"])
        meeting = Path(meeting_file)
        library = meeting.with_suffix(".so")
        if self.rank == 0:
            _compile(library)
        else:
            _wait_for(meeting)
        self._ccl = ctypes.CDLL(str(library))
        version = divmod(self._ccl.bench_version(), 100)
        self.title = f"oneCCL {version[0]}.{version[1]} (C++, host memory)"
        address = ctypes.create_string_buffer(self._ccl.bench_address_bytes())
        if self.rank == 0:
            self._require(self._ccl.bench_serve(address))
            written = meeting.with_suffix(".new")
            written.write_bytes(address.raw)
            written.rename(meeting)
        else:
            address.raw = meeting.read_bytes()
        self._require(self._ccl.bench_join(self.rank, self.size, address))

    def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
        """Makes a collective ready, in place where shapes allow."""
        if problem.dtype not in _TYPES:
            raise UnsupportedError(f"oneCCL has no {problem.dtype}")
        outputs = problem.outputs(inputs)
        if problem.collective == "grouped" and way == "packed":
            return into(outputs, packed(inputs, lambda flat: self._call("allreduce", flat, flat)))
        if problem.collective in ("allreduce", "grouped"):
            calls = [self._call("allreduce", array, array) for array in inputs]
            return into(outputs, calls[0] if len(calls) == 1 else one_by_one(calls))
        return into(outputs, self._call(problem.collective, inputs[0], outputs[0]))

    def close(self) -> None:
        """The process ends."""

    def _call(self, name: str, source: np.ndarray, target: np.ndarray) -> Callable[[], None]:
        # The elements that one rank gives to or gets from another.
        count = source.size
        if name == "alltoall":
            count //= self.size
        elif name == "reducescatter":
            count = target.size
        function = self._ccl[f"bench_{name}"]
        addresses = c_void_p(source.ctypes.data), c_void_p(target.ctypes.data)
        call = partial(function, *addresses, c_size_t(count), c_int(_TYPES[source.dtype.name]))

        def checked(keeps: object = (source, target)) -> None:
            if call():
                raise RuntimeError(f"oneCCL: {name} failed")

        return checked

    def _require(self, code: int) -> None:
        if code:
            raise RuntimeError("oneCCL did not start")


def _compile(library: Path) -> None:
    prefix = os.environ["CCL_ROOT"]
    command = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{prefix}/include"]
    command += [str(Path(__file__).with_suffix(".cc")), f"{prefix}/lib/libccl.so.1"]
    command += ["-Wl,--allow-shlib-undefined", "-o", str(library)]
    subprocess.run(command, check=True, timeout=_COMPILE_S)


def _wait_for(file: Path) -> None:
    until = time.monotonic() + _MEET_S
    while not file.exists():
        if time.monotonic() > until:
            raise RuntimeError("rank 0 did not start")
        time.sleep(0.01)
