"""Ranks that disagree, arrive in different orders, late, or again and again."""

from __future__ import annotations

import os
import random
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

pytestmark = pytest.mark.many_ranks


def paused(x: tf.Tensor, milliseconds: float) -> tf.Tensor:
    """The input, after a random pause of its own on each rank and call."""

    def pause(x: np.ndarray) -> np.ndarray:
        time.sleep(random.random() * milliseconds / 1000)
        return x

    result = tf.numpy_function(pause, [x], x.dtype)
    result.set_shape(x.shape)
    return result


def sum_still_works(size: int) -> None:
    assert float(hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum)) == size * (size + 1) / 2


MISMATCHES = {
    "shape": (lambda last: hvd.allreduce(tf.zeros([3 + last])), r"\(3,\)", r"\(4,\)"),
    "number of dimensions": (
        lambda last: hvd.allreduce(tf.zeros([1, 3] if last else [3])),
        r"\(3,\)",
        r"\(1, 3\)",
    ),
    "dtype": (
        lambda last: hvd.allreduce(tf.zeros([3], tf.float64 if last else tf.float32)),
        "float32",
        "float64",
    ),
    "operation": (
        lambda last: hvd.allreduce(1.0, op=hvd.Max if last else hvd.Sum),
        "Sum",
        "Max",
    ),
    "kind": (
        lambda last: hvd.allgather([1.0]) if last else hvd.allreduce([1.0]),
        "allreduce",
        "allgather",
    ),
    "root": (lambda last: hvd.broadcast(1.0, int(last)), "root", "root"),
    "columns": (
        lambda last: hvd.allgather(tf.zeros([2, 3 + last])),
        r"\(2, 3\)",
        r"\(2, 4\)",
    ),
    "length of a group": (
        lambda last: hvd.grouped_allreduce([1.0] * (2 + last)),
        "2 tensors",
        "3 tensors",
    ),
}


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(("call", "one", "other"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_disagreement_is_told_to_all(
    call, one: str, other: str, mode: str, rank: int, size: int
) -> None:
    def act() -> None:
        call(rank == size - 1)

    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        (tf.function(act) if mode == "graph" else act)()
    for text in (one, other, "ranks? 0", f"rank {size - 1}"):
        assert caught.match(text)
    sum_still_works(size)


def test_independent_ops_behind_random_pauses(rank: int, size: int) -> None:
    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allreduce(paused(x + i, 2), op=hvd.Sum) for i in range(8)]

    total = size * (size - 1) // 2
    for n in range(200):
        results = step(tf.constant([n + rank]))
        expected = [[total + size * (n + i)] for i in range(8)]
        np.testing.assert_array_equal(tf.stack(results), expected)


def test_many_ops_in_a_step(rank: int, size: int) -> None:
    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allreduce(x + float(i), op=hvd.Sum) for i in range(20)]

    total = size * (size - 1) / 2
    for n in range(300):
        results = step(tf.fill([16], float(n + rank)))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full(16, total + size * (299 + i)))


def test_opposite_orders(rank: int, size: int) -> None:
    """Two threads per rank submit two names, in an order that differs between ranks."""
    names = ["a", "b"] if rank % 2 else ["b", "a"]
    results: dict[str, float] = {}

    def reduce(name: str, delay: float) -> None:
        time.sleep(delay)
        value = {"a": 1.0, "b": 10.0}[name] * (rank + 1)
        results[name] = float(hvd.allreduce(value, op=hvd.Sum, name=name))

    for _ in range(20):
        threads = [
            threading.Thread(target=reduce, args=(name, 0.005 * i)) for i, name in enumerate(names)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = size * (size + 1) / 2
        assert results == {"a": total, "b": 10 * total}


def test_sums_have_the_same_bits_in_every_run(rank: int) -> None:
    generator = np.random.default_rng(rank)
    inputs = [
        tf.constant(generator.choice([1e8, 1.0, -1e8, 0.1, 3e-5], 50 + i), tf.float32)
        for i in range(40)
    ]

    @tf.function
    def step(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        return [hvd.allreduce(paused(t, 20), op=hvd.Sum) for t in tensors]

    runs = [tf.concat(step(inputs), 0).numpy().tobytes() for _ in range(10)]
    grouped = tf.concat(hvd.grouped_allreduce(inputs, op=hvd.Sum), 0).numpy().tobytes()
    assert len({*runs, grouped, *hvd.allgather_object(runs[0])}) == 1


def test_loop_keeps_iterations_apart(rank: int, size: int) -> None:
    @tf.function
    def loop(n: tf.Tensor) -> tf.Tensor:
        results = tf.TensorArray(tf.int32, size=n)
        for i in tf.range(n):
            results = results.write(i, hvd.allreduce(paused(i + rank, 1), op=hvd.Sum))
        return results.stack()

    expected = np.arange(50) * size + size * (size - 1) // 2
    np.testing.assert_array_equal(loop(tf.constant(50)), expected)


def test_one_rank_traces_more_often(rank: int, size: int) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum))

    for n in range(1, 6):
        # A new shape in every call on rank 0 only.
        x = tf.fill([n], 1.0 / n) if rank == 0 else tf.ones([1])
        assert abs(float(step(x)) - size) < 1e-6


def test_late_rank_is_waited_for(rank: int, size: int) -> None:
    sum_still_works(size)  # all begin now
    before = hvd.stats()
    if rank == size - 1:
        time.sleep(1.0)
    sum_still_works(size)
    waited = (hvd.stats().wait_ns - before.wait_ns) / 1e9
    moved = (hvd.stats().transfer_ns - before.transfer_ns) / 1e9
    if rank != size - 1:
        assert waited >= 0.5
    assert moved < 0.5


def test_fork_leaves_the_parent_alone(rank: int, size: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            hvd.allreduce(1.0)
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    sum_still_works(size)


def test_init_and_shutdown_in_cycles(size: int) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    sum_still_works(size)  # TensorFlow starts its own threads at its first op
    hvd.shutdown()
    before = held()
    hvd.init()
    for _ in range(4):
        hvd.shutdown()
        # The kernel may list a thread that has ended a moment longer; what leaks stays.
        deadline = time.monotonic() + 30
        while any(now > then for now, then in zip(held(), before, strict=True)):
            assert time.monotonic() < deadline, f"{held()} after {before}"
        with pytest.raises(hvd.NotInitializedError, match=r"tfring.init\(\)"):
            hvd.allreduce(1.0)
        hvd.init()
        sum_still_works(size)


def test_graph_survives_a_new_init(size: int) -> None:
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    assert float(step(tf.constant(1.0))) == size
    hvd.shutdown()
    hvd.init()
    assert float(step(tf.constant(1.0))) == size


@pytest.mark.parametrize("transformation", ["map", "interleave", "filter"])
def test_data_pipelines_are_refused(transformation: str) -> None:
    def bad(value):
        reduced = hvd.allreduce(value)
        if transformation == "map":
            return reduced
        if transformation == "filter":
            return reduced > 0
        return tf.data.Dataset.from_tensors(reduced)

    dataset = tf.data.Dataset.range(4)
    with pytest.raises(RuntimeError, match=r"tf\.data"):
        getattr(dataset, transformation)(bad)


def test_loop_over_a_dataset_in_a_function(rank: int, size: int) -> None:
    @tf.function
    def total(dataset):
        result = tf.constant(0, tf.int64)
        for value in dataset:
            result += hvd.allreduce(value * (rank + 1), op=hvd.Sum)
        return result

    assert total(tf.data.Dataset.range(5)) == 10 * size * (size + 1) // 2
