"""Names of Horovod that are not there, and what to use instead."""

from __future__ import annotations

_ELASTIC = "when a process is lost, the job ends; restart it from a checkpoint"
_TIMELINE = "`with tfring.trace(path):` writes what the collectives in it did"

_INSTEAD = {
    "LocalGradientAggregationHelper": "use DistributedOptimizer(backward_passes_per_step=...)",
    "_executing_eagerly": "use tf.executing_eagerly()",
    "elastic": _ELASTIC,
    "mpi_ops": "its functions are in tfring itself",
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
}


def error(module: str, name: str) -> AttributeError:
    """Returns what a module's `__getattr__` raises for a name that it does not have."""
    if name in _INSTEAD:
        return AttributeError(f"Horovod's `{name}` is not in {module}: {_INSTEAD[name]}.")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
