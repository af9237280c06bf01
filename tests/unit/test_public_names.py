from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
import sys

import pytest

import tfring as hvd
from tfring import _absent

NAMES = {
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Checkpoint",
    "CommunicationError",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "NotInitializedError",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Stats",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "batch_samples",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "build_gpu",
    "callbacks",
    "ccl_built",
    "check_drift",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "data",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "is_version_greater_equal_than",
    "join",
    "keras",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "pin_gpu",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "stats",
    "trace",
}


def test_no_name_comes_or_goes_unseen() -> None:
    assert set(hvd.__all__) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_name_resolves(name: str) -> None:
    assert getattr(hvd, name) is not None
    assert name in dir(hvd)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'allreduc'"):
        hvd.allreduc  # noqa: B018


def test_constants_are_horovods() -> None:
    assert (hvd.Average, hvd.Sum, hvd.Adasum) == (0, 1, 2)
    assert (hvd.Min, hvd.Max, hvd.Product) == (3, 4, 5)


@pytest.mark.parametrize("module", ["tfring", "tfring.world", "tfring.settings", "tfring.errors"])
def test_import_loads_no_tensorflow(module: str) -> None:
    code = f"import sys, {module}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        (hvd, "start_timeline", r"tfring.trace\(path\)"),
    ],
)
def test_absent_name_of_horovod_says_what_to_use(module, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"`{name}` is not in {module.__name__}: .*{instead}"):
        getattr(module, name)
    assert not hasattr(module, name)


def test_name_of_the_other_module_is_told() -> None:
    with pytest.raises(AttributeError, match=r"use tfring.barrier\."):
        hvd.keras.barrier  # noqa: B018


@pytest.mark.parametrize("module", ["tfring", "tfring.keras"])
def test_no_name_is_both_there_and_absent(module: str) -> None:
    assert not set(_absent._INSTEAD) & set(dir(importlib.import_module(module)))


@pytest.mark.parametrize("code", ["import tfring.keras", "from tfring import callbacks"])
def test_source_tree_says_that_it_is_not_installed(code: str, tmp_path: pathlib.Path) -> None:
    sources = pathlib.Path(__file__).parents[2] / "tfring"
    (tmp_path / "tfring").mkdir()
    for source in [*sources.glob("*.py"), sources / "keras"]:
        (tmp_path / "tfring" / source.name).symlink_to(source)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: tfring.callbacks is not in ")
    assert "run `pip install .` there" in done.stderr
