"""Eager allreduces that are made again with arguments that were right before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _eager, collectives


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.init()


@pytest.fixture
def x() -> tf.Tensor:
    return tf.constant([1.0, 2.0])


@contextlib.contextmanager
def no_checks() -> Iterator[None]:
    """Lets every call fail that would be checked."""

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("this call was not known")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "grouped_allreduce", fail)
        yield


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"op": hvd.Sum},
    {"average": True},
    {"name": "same"},
    {"prescale_factor": 3.0, "postscale_factor": 0.5},
    {"process_set": hvd.global_process_set},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_the_second_call_is_known_and_gives_the_same(
    x: tf.Tensor, arguments: dict[str, Any]
) -> None:
    first = hvd.allreduce(x, **arguments)
    with no_checks():
        second = hvd.allreduce(x, **arguments)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "other",
    [{"op": hvd.Min}, {"prescale_factor": 2.0}, {"name": "other"}, {"process_set": None}],
    ids=str,
)
def test_other_arguments_are_checked(x: tf.Tensor, other: dict[str, Any]) -> None:
    hvd.allreduce(x, name="t")
    with no_checks(), pytest.raises(AssertionError, match="not known"):
        hvd.allreduce(x, **{"name": "t", **other})


def test_another_dtype_is_checked(x: tf.Tensor) -> None:
    hvd.allreduce(x, op=hvd.Sum, name="dtype")
    with pytest.raises(ValueError, match="`op` must be Min"):
        hvd.allreduce(tf.constant([True]), op=hvd.Sum, name="dtype")


@pytest.mark.parametrize("value", [2.0, [1.0, 2.0], np.ones(2, "float32")], ids=str)
def test_what_is_no_tensor_is_converted_each_time(value: Any) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(hvd.allreduce(value), value)


def test_scales_need_not_be_hashable(x: tf.Tensor) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(hvd.allreduce(x, prescale_factor=np.array(2.0)), [2.0, 4.0])


def test_calls_are_recorded_on_a_tape(x: tf.Tensor) -> None:
    hvd.allreduce(x, postscale_factor=3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, postscale_factor=3.0)
    np.testing.assert_array_equal(tape.gradient(y, x), [3.0, 3.0])


def test_a_world_that_has_ended(x: tf.Tensor) -> None:
    hvd.allreduce(x)
    hvd.shutdown()
    with pytest.raises(hvd.NotInitializedError):
        hvd.allreduce(x)


def test_names_without_end_take_bounded_memory(
    x: tf.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_eager, "_LIMIT", 4)
    for i in range(10):
        hvd.allreduce(x, name=f"step{i}")
    assert len(_eager._known) <= 4
