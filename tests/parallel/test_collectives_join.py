"""Join: ranks whose data ends earlier."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_everybody_is_told_who_came_last(mode: str, rank: int, size: int) -> None:
    join = hvd.join if mode == "eager" else tf.function(hvd.join)
    for last in range(size):
        # The others have joined before the last one: it serves them an allreduce first.
        if rank == last:
            while float(hvd.allreduce(1.0, op=hvd.Sum)) > 1.0:
                pass
        else:
            float(hvd.allreduce(1.0, op=hvd.Sum))
        result = join()
        assert (result.dtype, result.shape, int(result)) == (tf.int32, (), last)


def test_absent_ranks_are_zeros_and_averages_are_of_the_active(rank: int, size: int) -> None:
    # Rank r has r + 1 batches.
    sums, averages, largest = [], [], []
    for step in range(rank + 1):
        x = tf.constant([rank + 1.0, 2.0])
        sums.append(hvd.allreduce(x, op=hvd.Sum).numpy())
        averages.append(hvd.allreduce(x).numpy())
        largest.append(step)
    assert int(hvd.join()) == size - 1
    for step in range(rank + 1):
        active = [r + 1.0 for r in range(step, size)]
        np.testing.assert_allclose(sums[step], [sum(active), 2.0 * len(active)])
        np.testing.assert_allclose(averages[step], [sum(active) / len(active), 2.0], rtol=1e-6)


def test_groups_and_functions_go_on(rank: int, size: int) -> None:
    @tf.function
    def reduce(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        return hvd.grouped_allreduce([x, y], op=hvd.Sum)

    if rank == 0:
        hvd.join()
    else:
        first, second = reduce(tf.ones([3]), tf.constant([2.0], tf.float64))
        np.testing.assert_array_equal(first, np.full(3, size - 1.0))
        np.testing.assert_array_equal(second, [2.0 * (size - 1)])
        hvd.join()


@pytest.mark.many_ranks
@pytest.mark.parametrize(
    "collective",
    [
        lambda: hvd.allgather(tf.ones([1])),
        lambda: hvd.broadcast(1.0, 1),
        lambda: hvd.reducescatter(tf.ones([hvd.size()])),
        lambda: hvd.alltoall(tf.ones([hvd.size()])),
        lambda: hvd.barrier(),
    ],
    ids=["allgather", "broadcast", "reducescatter", "alltoall", "barrier"],
)
def test_other_collectives_fail_on_the_active(collective, rank: int, size: int) -> None:
    if rank != 0:
        with pytest.raises(tf.errors.FailedPreconditionError, match="rank 0"):
            collective()
    hvd.join()
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size


@pytest.mark.ranks(2)
def test_training_until_all_data_is_used(rank: int) -> None:
    """Gradient 1 for 5 batches and 3 for 3 batches, SGD with rate 1."""
    w = 0.0
    for _ in range(5 if rank == 0 else 3):
        w -= float(hvd.allreduce(1.0 if rank == 0 else 3.0))
    last = int(hvd.join())
    assert last == 0
    # Who joined earlier takes over what the last one has.
    assert float(hvd.broadcast(w, last)) == -8.0


@pytest.mark.many_ranks
def test_other_operations_are_over_the_active(rank: int, size: int) -> None:
    if rank != 0:
        for op, expected in (
            (hvd.Min, [1.0, -(size - 1.0)]),
            (hvd.Max, [size - 1.0, -1.0]),
            (hvd.Product, [np.prod(np.arange(1.0, size)), np.prod(-np.arange(1.0, size))]),
        ):
            result = hvd.allreduce(tf.constant([float(rank), -float(rank)]), op=op)
            np.testing.assert_array_equal(result, expected)
    hvd.join()


@pytest.mark.many_ranks
def test_wrong_arguments_while_a_rank_has_joined(rank: int, size: int) -> None:
    if rank == 1:
        with pytest.raises(TypeError):
            hvd.allreduce("text")
    elif rank != 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1"):
            hvd.allreduce(1.0)
    if rank != 0:
        assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size - 1
    hvd.join()
