"""The engine alone: `tfr_run` through ctypes, with a request that is built once, in place."""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import byref, c_int64, c_void_p

import numpy as np

from tfring import _identity, _native, settings, world
from tfring.bench.contenders.base import Prepared, UnsupportedError

_ALLREDUCE, _SUM = 1, 1
_DTYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int8": 6,
    "int64": 9,
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

    def prepare(self, way: str, array: np.ndarray) -> Prepared:
        """Makes an in-place allreduce ready."""
        if array.dtype.name not in _DTYPES:
            raise UnsupportedError(f"no {array.dtype.name}")
        address = array.ctypes.data
        dims = (c_int64 * 1)(array.size)
        tensor = _native.Tensor(address, address, dims, 1, _DTYPES[array.dtype.name])
        request = _native.Request(
            name=b"bench",
            kind=_ALLREDUCE,
            reduce_op=_SUM,
            tensor_count=1,
            tensors=ctypes.pointer(tensor),
            prescale=1.0,
            postscale=1.0,
        )
        error = _native.Error()
        # Without argtypes, and with arguments converted once: ctypes passes them through.
        run = self._engine["tfr_run"]
        arguments = (self._world, byref(request), byref(error))

        def call() -> None:
            if run(*arguments):
                raise RuntimeError(error.text.decode())

        def check() -> np.ndarray:
            call()
            return array

        return Prepared(call, check)

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
