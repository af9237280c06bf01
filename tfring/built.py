"""What this installation can do, under the names by which Horovod's scripts ask.

There is one engine, so most answers are fixed. They are true in the meaning for which scripts
ask: `gloo_*` means "collectives on CPU tensors work, without MPI". `verbose` has no effect.
"""

from __future__ import annotations

import ctypes

from tfring import gpu_libraries

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def mpi_built(verbose: bool = False) -> bool:
    """Returns False: the engine does not use MPI."""
    return False


def mpi_enabled() -> bool:
    """Returns False: the engine does not use MPI."""
    return False


def mpi_threads_supported() -> bool:
    """Returns False: there is no MPI that could be called from several threads.

    Horovod raises where it was built without MPI.
    """
    return False


def gloo_built(verbose: bool = False) -> bool:
    """Returns True: collectives on CPU tensors work, without MPI."""
    return True


def gloo_enabled() -> bool:
    """Returns True: collectives on CPU tensors work, without MPI."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """Returns the version of NCCL that tensors of GPUs would use, as `NCCL_VERSION_CODE` counts.

    0 where the kernels for GPUs are not built (`tfring build-gpu`) or NCCL cannot be loaded: then
    data travels through the memory of the hosts.
    """
    if not cuda_built():
        return 0
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL(gpu_libraries.nccl() or "libnccl.so.2")
    except OSError:
        return 0
    return 0 if library.ncclGetVersion(ctypes.byref(version)) else version.value


def ddl_built(verbose: bool = False) -> bool:
    """Returns False: the engine does not use IBM's DDL."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Returns False: the engine does not use oneCCL."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """Returns whether kernels for GPUs are built for this TensorFlow (`tfring build-gpu`).

    Where they are not, TensorFlow copies a GPU's tensors to the host for a collective, and back.
    """
    from tfring import _ops, gpu_build

    return gpu_build.is_built(_ops.tensorflow())


def rocm_built(verbose: bool = False) -> bool:
    """Returns False: no operation of this package runs on a ROCm device."""
    return False


def gpu_available(ext_base_name: str | None = None, verbose: bool = False) -> bool:
    """Returns whether TensorFlow sees a GPU.

    Args:
        ext_base_name: accepted for Horovod's scripts; has no effect.
        verbose: has no effect.
    """
    from tfring import _ops

    return bool(_ops.tensorflow().config.list_physical_devices("GPU"))
