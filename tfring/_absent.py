"""Names of Horovod that are not there yet, and what to use instead."""

from __future__ import annotations

_NO_SETS = "all ranks take part in every collective"
_BUILD = "there are no MPI, Gloo or NCCL parts to ask about: delete the call"
_BROADCAST = "use broadcast_variables, or callbacks.BroadcastGlobalVariablesCallback with fit"
_WHOLE = "every variable is reduced; use {} or reduce gradients yourself with allreduce"
_ELASTIC = "when a process is lost, the job ends; restart it from a checkpoint"
_TIMELINE = "tfring.stats() tells how long this rank waited and moved data"

_INSTEAD = {
    "Adasum": "use op=Average",
    "BestModelCheckpoint": "use keras.callbacks.ModelCheckpoint on rank 0, save_best_only=True",
    "BroadcastGlobalVariablesHook": _BROADCAST,
    "PartialDistributedGradientTape": _WHOLE.format("DistributedGradientTape"),
    "PartialDistributedOptimizer": _WHOLE.format("DistributedOptimizer"),
    "alltoall": "use allgather and take the rows that are yours",
    "broadcast_": "use broadcast_variables",
    "broadcast_global_variables": _BROADCAST,
    "broadcast_object_fn": "use broadcast_object",
    "elastic": _ELASTIC,
    "gpu_available": 'use tf.config.list_physical_devices("GPU")',
    "grouped_allgather": "use allgather for each tensor",
    "grouped_reducescatter": "use grouped_allreduce and take the rows that are yours",
    "join": "give every rank equally many batches",
    "load_model": "use keras.models.load_model, then wrap the optimizer again",
    "mpi_threads_supported": _BUILD,
    "process_set_included_op": _NO_SETS,
    "reducescatter": "use allreduce and take the rows that are yours",
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
}
_INSTEAD |= dict.fromkeys(
    ("ProcessSet", "add_process_set", "global_process_set", "remove_process_set"), _NO_SETS
)
_INSTEAD |= {
    f"{name}_op": f"use {name}(), a Python int"
    for name in ("rank", "size", "local_rank", "local_size")
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
