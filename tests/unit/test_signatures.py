"""Arguments stand in Horovod's order with Horovod's defaults; ours may follow."""

from __future__ import annotations

import inspect

import pytest

import tfring as hvd

NONE = hvd.Compression.none
ALL = hvd.global_process_set

REDUCE = {"average": None, "device_dense": "", "device_sparse": "", "compression": NONE, "op": None}
SCALES = {"prescale_factor": 1.0, "postscale_factor": 1.0}
REQUIRED = inspect.Parameter.empty

SIGNATURES = {
    "init": {"comm": None, "process_sets": None},
    "shutdown": {},
    "is_initialized": {},
    "size": {},
    "rank": {},
    "local_size": {},
    "local_rank": {},
    "cross_size": {},
    "cross_rank": {},
    "is_homogeneous": {},
    "mpi_threads_supported": {},
    "mpi_enabled": {},
    "gloo_enabled": {},
    "gpu_available": {"ext_base_name": None, "verbose": False},
    "ProcessSet": {"ranks_or_comm": REQUIRED},
    "add_process_set": {"process_set": REQUIRED},
    "remove_process_set": {"process_set": REQUIRED},
    "allreduce": {
        "tensor": REQUIRED,
        **REDUCE,
        **SCALES,
        "name": None,
        "process_set": ALL,
        "ignore_name_scope": False,
    },
    "grouped_allreduce": {
        "tensors": REQUIRED,
        **REDUCE,
        **SCALES,
        "process_set": ALL,
        "ignore_name_scope": False,
        "name": None,
    },
    "allgather": {"tensor": REQUIRED, "name": None, "ignore_name_scope": False, "process_set": ALL},
    "grouped_allgather": {
        "tensors": REQUIRED,
        "name": None,
        "ignore_name_scope": False,
        "process_set": ALL,
    },
    "broadcast": {
        "tensor": REQUIRED,
        "root_rank": REQUIRED,
        "name": None,
        "ignore_name_scope": False,
        "process_set": ALL,
    },
    "broadcast_": {"variables": REQUIRED, "root_rank": REQUIRED, "name": None, "process_set": ALL},
    "alltoall": {
        "tensor": REQUIRED,
        "splits": None,
        "name": None,
        "ignore_name_scope": False,
        "process_set": ALL,
    },
    "reducescatter": {
        "tensor": REQUIRED,
        "device_dense": "",
        "compression": NONE,
        "op": hvd.Average,
        "name": None,
        "process_set": ALL,
        "ignore_name_scope": False,
        **SCALES,
    },
    "grouped_reducescatter": {
        "tensors": REQUIRED,
        "device_dense": "",
        "compression": NONE,
        "op": hvd.Average,
        "process_set": ALL,
        **SCALES,
    },
    "join": {},
    "broadcast_variables": {
        "variables": REQUIRED,
        "root_rank": REQUIRED,
        "process_set": ALL,
        "inplace": False,
    },
    "broadcast_object": {
        "obj": REQUIRED,
        "root_rank": 0,
        "session": None,
        "name": None,
        "process_set": ALL,
    },
    "broadcast_object_fn": {"root_rank": 0, "session": None, "name": None, "process_set": ALL},
    "allgather_object": {"obj": REQUIRED, "session": None, "name": None, "process_set": ALL},
    "size_op": {"process_set_id": 0, "name": None},
    "process_set_included_op": {"process_set_id": 0, "name": None},
    "local_size_op": {"name": None},
    "rank_op": {"name": None},
    "local_rank_op": {"name": None},
    "split_list": {"l": REQUIRED, "n": REQUIRED},
    "is_version_greater_equal_than": {"ver": REQUIRED, "target": REQUIRED},
}
# What we have beyond Horovod, at the end.
OURS = {
    "init": ["start_timeout", "warn_after", "fail_after", "interfaces", "shared_memory"],
    "grouped_reducescatter": ["name"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters
    expected = SIGNATURES[name]
    assert list(parameters) == [*expected, *OURS.get(name, [])]
    for argument, default in expected.items():
        assert parameters[argument].default == default
        assert parameters[argument].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
