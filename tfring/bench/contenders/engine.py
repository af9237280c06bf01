"""The engine alone: `tfr_run` through ctypes, with a request that is built once."""

from __future__ import annotations

import os
import time
from ctypes import byref, c_int64, c_void_p
from functools import partial

import numpy as np

from tfring import _identity, _native, settings, world
from tfring.bench.contenders.base import Prepared, UnsupportedError, into
from tfring.bench.problem import ROOT, Problem

_SUM = 1
_KINDS = {
    "allreduce": 1,
    "grouped": 1,
    "allgather": 2,
    "broadcast": 3,
    "reducescatter": 5,
    "alltoall": 6,
}
_DTYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int8": 6,
    "int64": 9,
    "bfloat16": 14,
    "float16": 19,
}


class Engine:
    """One rank; it does not load TensorFlow."""

    def __init__(self) -> None:
        identity = _identity.from_environment(os.environ)
        config = world._config(identity, settings.load(), f"{identity.job}/bench")
        self._engine = _native.engine()
        self._world, info = c_void_p(), _native.Info()
        _native.call("tfr_world_create", byref(config), byref(self._world))
        self._engine.tfr_world_info(self._world, byref(info))
        self.rank, self.size = info.rank, info.size
        version = self._engine.tfr_version().decode()
        self.title = f"tfring {version}, engine ({self._overhead_us():.2f} us of it ctypes)"

    def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
        """Makes a request ready, in place where shapes allow."""
        if problem.dtype not in _DTYPES:
            raise UnsupportedError(f"no {problem.dtype}")
        outputs = problem.outputs(inputs)
        dtype = _DTYPES[problem.dtype]
        tensors = (_native.Tensor * len(inputs))()
        for tensor, source, target in zip(tensors, inputs, outputs, strict=True):
            dims = (c_int64 * 1)(source.size)
            tensor.input, tensor.output = source.ctypes.data, target.ctypes.data
            tensor.dims, tensor.ndims, tensor.dtype = dims, 1, dtype
        request = _native.Request(
            name=b"bench",
            kind=_KINDS[problem.collective],
            reduce_op=_SUM if problem.reduces else 0,
            root=ROOT,
            tensor_count=len(tensors),
            tensors=tensors,
            prescale=1.0,
            postscale=1.0,
            wire_dtype=_DTYPES[problem.wire] if problem.wire else 0,
        )
        error = _native.Error()
        # Without argtypes, and with arguments converted once: ctypes passes them through.
        call = partial(self._engine["tfr_run"], self._world, byref(request), byref(error))

        def verify() -> None:
            if error.code:
                raise RuntimeError(error.text.decode())

        return into(outputs, call, keeps=inputs, verify=verify)

    def close(self) -> None:
        """Leaves the world."""
        self._engine.tfr_world_shutdown(self._world)

    def _overhead_us(self) -> float:
        """Measures a call that does next to nothing, made as the measured ones are."""
        function, info = self._engine["tfr_world_info"], _native.Info()
        arguments = (self._world, byref(info))
        times = []
        for _ in range(5):
            start = time.perf_counter_ns()
            for _ in range(1000):
                function(*arguments)
            times.append(time.perf_counter_ns() - start)
        return min(times) / 1e6
