"""Names of Horovod that are not there yet, and what to use instead."""

from __future__ import annotations

_BUILD = "there are no MPI, Gloo or NCCL parts to ask about: delete the call"
_BROADCAST = "use broadcast_variables, or callbacks.BroadcastGlobalVariablesCallback with fit"
_ELASTIC = "when a process is lost, the job ends; restart it from a checkpoint"
_TIMELINE = "tfring.stats() tells how long this rank waited and moved data"

_INSTEAD = {
    "BestModelCheckpoint": "use keras.callbacks.ModelCheckpoint on rank 0, save_best_only=True",
    "BroadcastGlobalVariablesHook": _BROADCAST,
    "broadcast_global_variables": _BROADCAST,
    "elastic": _ELASTIC,
    "gpu_available": 'use tf.config.list_physical_devices("GPU")',
    "load_model": "use keras.models.load_model, then wrap the optimizer again",
    "mpi_threads_supported": _BUILD,
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
}
_INSTEAD |= dict.fromkeys(
    (
        *("mpi_built", "mpi_enabled", "gloo_built", "gloo_enabled", "nccl_built"),
        *("ddl_built", "ccl_built", "cuda_built", "rocm_built"),
    ),
    _BUILD,
)


def error(module: str, name: str) -> AttributeError:
    """Returns what a module's `__getattr__` raises for a name that it does not have."""
    if name in _INSTEAD:
        return AttributeError(f"Horovod's `{name}` is not in {module} yet: {_INSTEAD[name]}.")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
