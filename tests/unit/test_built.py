"""What Horovod's scripts ask about the build, and the helpers that they import."""

from __future__ import annotations

import doctest

import pytest
import tensorflow as tf

import tfring as hvd
from tfring import util


@pytest.mark.parametrize("question", ["gloo_built", "gloo_enabled"])
def test_collectives_without_mpi_work(question: str) -> None:
    assert getattr(hvd, question)() is True


@pytest.mark.parametrize(
    "question",
    [
        *("mpi_built", "mpi_enabled", "mpi_threads_supported"),
        *("ddl_built", "ccl_built", "cuda_built", "rocm_built"),
    ],
)
def test_parts_that_are_not_there(question: str) -> None:
    assert getattr(hvd, question)() is False


def test_nccl_is_a_version_number() -> None:
    assert hvd.nccl_built() == 0
    assert type(hvd.nccl_built()) is int


def test_gpu_is_what_tensorflow_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    for devices in ([], ["GPU:0"]):
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda _, found=devices: found)
        assert hvd.gpu_available("tensorflow") is bool(devices)


def test_examples_of_the_helpers() -> None:
    assert doctest.testmod(util) == (0, 5)


@pytest.mark.parametrize(
    ("length", "parts", "sizes"),
    [(5, 2, [3, 2]), (2, 4, [1, 1, 0, 0]), (0, 1, [0]), (6, 3, [2] * 3)],
)
def test_split_list(length: int, parts: int, sizes: list[int]) -> None:
    split = hvd.split_list(list(range(length)), parts)
    assert [len(part) for part in split] == sizes
    assert [item for part in split for item in part] == list(range(length))


def test_bad_number_of_parts() -> None:
    with pytest.raises(ValueError, match="`n` must be a positive number"):
        hvd.split_list([1], 0)


def test_power_of_two() -> None:
    hvd.check_num_rank_power_of_2(4)
    with pytest.raises(ValueError, match="must be a power of two.*num_rank=6"):
        hvd.check_num_rank_power_of_2(6)
    assert not hvd.num_rank_is_power_2(0)


def test_older_spelling_warns() -> None:
    resolve = hvd.handle_average_backwards_compatibility
    assert resolve(None, None) == hvd.Average
    for average, expected in ((True, hvd.Average), (False, hvd.Sum)):
        with pytest.warns(DeprecationWarning, match="`average` is deprecated"):
            assert resolve(None, average) == expected
    with pytest.raises(ValueError, match="give only one"):
        resolve(hvd.Sum, True)


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        ("2.4.0", "2.4.0", True),
        ("2.10.0", "2.9.9", True),
        ("2.3.9", "2.4.0", False),
        ("2.16.0-rc1", "2.16.0", True),
        ("3", "2.99.0", True),
        ("2.16", "2.16.1", False),
    ],
)
def test_versions(version: str, target: str, expected: bool) -> None:
    assert util.is_version_greater_equal_than(version, target) is expected


@pytest.mark.parametrize(("version", "target"), [("2.4.0", "2.4"), ("2.4.0", "x"), ("x", "2.4.0")])
def test_bad_versions(version: str, target: str) -> None:
    with pytest.raises(ValueError, match="Received: "):
        util.is_version_greater_equal_than(version, target)
