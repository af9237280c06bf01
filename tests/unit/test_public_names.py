from __future__ import annotations

import subprocess
import sys

import pytest

import tfring as hvd

NAMES = {
    "Average",
    "CommunicationError",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "NotInitializedError",
    "Product",
    "Stats",
    "Sum",
    "__version__",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "keras",
    "local_rank",
    "local_size",
    "rank",
    "run",
    "shutdown",
    "size",
    "stats",
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
    assert (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 3, 4, 5)


@pytest.mark.parametrize("module", ["tfring", "tfring.world", "tfring.settings", "tfring.errors"])
def test_import_loads_no_tensorflow(module: str) -> None:
    code = f"import sys, {module}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
