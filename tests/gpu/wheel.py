"""Builds the kernels for GPUs against an installed TensorFlow for GPUs, and uses what can be used.

Run it with a Python that has `tensorflow` (not tensorflow-cpu) and tfring: `python
tests/gpu/wheel.py`. A GPU is not needed: then it checks that the library builds and loads, that
all five kernels are registered for GPUs, that CPU tensors go on as before, and that NVIDIA's own
libnccl has all that the engine looks up.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tfring import gpu_libraries

OPS = ("Allreduce", "Allgather", "Broadcast", "Reducescatter", "Alltoall")


def _kernels(op: str) -> set[str]:
    from tensorflow.python.framework import kernels

    return {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(op).kernel}


def _has_what_is_looked_up(library: str, source: str, prefix: str) -> None:
    """Checks that NVIDIA's library has every symbol that the engine requires of it."""
    text = (pathlib.Path(__file__).parents[2] / "custom_ops/core/nccl" / source).read_text()
    names = re.findall(r"^  TFR_REQUIRE\((\w+)\);", text, re.MULTILINE)
    loaded = ctypes.CDLL(library)
    assert len(names) > 10
    for name in names:
        assert hasattr(loaded, prefix + name), prefix + name


def _headers_say_the_same() -> bool:
    """Checks the engine's own declarations against NVIDIA's headers; False where there are none."""
    root = pathlib.Path(__file__).parents[2]
    folders = [flag for path in gpu_libraries.include_folders() for flag in ("-isystem", path)]
    if not any((pathlib.Path(folder) / "nccl.h").exists() for folder in folders):
        return False
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-fsyntax-only", f"-I{root}", *folders]
    subprocess.run([*command, str(root / "tests/gpu/headers.cc")], check=True, timeout=120)
    return True


def main() -> int:
    """Returns 0 if all is well, 77 where this TensorFlow is one for CPUs."""
    import tensorflow as tf

    import tfring as hvd

    if not tf.test.is_built_with_cuda():
        print(f"skipped: TensorFlow {tf.__version__} here is one for CPUs")
        return 77
    path = hvd.build_gpu()
    print(f"built for TensorFlow {tf.__version__}: {os.path.basename(path)}")
    hvd.init()
    for op in OPS:
        assert _kernels(f"Tfring{op}") == {"CPU", "GPU"}, op
    assert _kernels("TfringBarrier") == {"CPU"}
    assert float(hvd.allreduce(tf.constant(2.0), op=hvd.Sum)) == 2.0
    print("registered")
    for library, source, prefix in (
        (gpu_libraries.cudart(), "cuda_api.cc", "cuda"),
        (gpu_libraries.nccl(), "nccl_api.cc", "nccl"),
    ):
        if library is not None:
            _has_what_is_looked_up(library, source, prefix)
            print(f"has all that is looked up: {library}")
    if _headers_say_the_same():
        print("the engine's declarations are those of NVIDIA's headers")
    if tf.config.list_physical_devices("GPU"):
        with tf.device("GPU:0"):
            x = tf.random.normal((1000,))
            y = hvd.allreduce(x, op=hvd.Sum)
        assert "GPU" in y.device
        tf.debugging.assert_equal(x, y)
        print("allreduce on a GPU")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        code = main()
    sys.exit(code)
