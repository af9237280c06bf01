"""The ops as TensorFlow runs them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _ops


def names_in(function: tf.types.experimental.PolymorphicFunction, *args) -> list[str]:
    graph = function.get_concrete_function(*args).graph
    ops = [op for op in graph.get_operations() if op.type.startswith("Tfring")]
    return [tf.compat.as_str(op.get_attr("tensor_name")) for op in ops]


def test_many_asynchronous_ops(world: None) -> None:
    # A kernel that keeps TensorFlow's callback by pointer crashes here within a few steps.
    @tf.function
    def step(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        return [hvd.allreduce(tensor + 1.0, op=hvd.Sum) for tensor in tensors]

    tensors = [tf.fill([64], float(i)) for i in range(20)]
    for _ in range(300):
        results = step(tensors)
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full([64], i + 1.0))


def test_constants_are_reduced_in_every_step(world: None) -> None:
    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        hvd.allreduce(tf.constant(1.0))  # unused, and other ranks wait for it
        return hvd.allreduce(tf.constant(2.0)), hvd.allreduce(tf.constant(2.0))

    step()
    before = hvd.stats().collectives
    for _ in range(5):
        step()
    assert hvd.stats().collectives - before == 15


def test_independent_collectives_are_not_chained(world: None) -> None:
    def all_of(x: tf.Tensor) -> list[tf.Tensor]:
        some = [hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0), hvd.rank_op()]
        return [*some, hvd.reducescatter(x), hvd.alltoall(x)]

    graph = tf.function(all_of).get_concrete_function(tf.ones([2])).graph
    ops = [op for op in graph.get_operations() if op.type.startswith("Tfring")]
    assert [list(op.control_inputs) for op in ops] == [[]] * 6


@pytest.mark.parametrize("wait", [hvd.barrier, hvd.join])
def test_barrier_and_join_stand_between(world: None, wait) -> None:
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        first = hvd.allreduce(x)
        wait()
        return [first, hvd.allgather(x)]

    graph = tf.function(function).get_concrete_function(tf.ones([2])).graph
    first, middle, last = [op for op in graph.get_operations() if op.type.startswith("Tfring")]
    assert (first in middle.control_inputs, middle in last.control_inputs) == (True, True)


def test_equal_names_in_a_graph_are_ordered(world: None) -> None:
    function = tf.function(lambda x: [hvd.allreduce(x, name="a"), hvd.allreduce(x, name="a")])
    graph = function.get_concrete_function(tf.ones([2])).graph
    first, second = [op for op in graph.get_operations() if op.type == "TfringAllreduce"]
    assert first in second.control_inputs


def test_barrier_is_ordered(world: None) -> None:
    def three(x: tf.Tensor) -> list[tf.Tensor]:
        before = hvd.allreduce(x)
        hvd.barrier()
        return [before, hvd.allreduce(x)]

    graph = tf.function(three).get_concrete_function(tf.ones([2])).graph
    first, barrier, second = [op for op in graph.get_operations() if op.type.startswith("Tfring")]
    assert first in barrier.control_inputs
    assert barrier in second.control_inputs


def test_names_do_not_depend_on_the_number_of_traces(world: None) -> None:
    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allreduce(x), hvd.allgather(x), hvd.allreduce(x, name="mine")]

    expected = ["step/0", "step/1", "mine"]
    assert [names_in(step, tf.ones([n])) for n in (1, 2, 3)] == [expected] * 3


def test_names_in_called_functions_and_branches(world: None) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x)

    seen: list[str] = []

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        def branch() -> tf.Tensor:
            result = hvd.allreduce(x)
            seen.append(tf.compat.as_str(result.op.get_attr("tensor_name")))
            return result

        return inner(x) + tf.cond(x[0] > 0, branch, lambda: x)

    outer(tf.ones([2]))
    assert names_in(inner, tf.ones([2])) == ["inner/0"]
    assert seen == ["outer/cond_true/0"]


def test_result_shares_nothing_with_a_buffer_that_others_hold(world: None) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = x + 1.0
        return y, hvd.allreduce(y, op=hvd.Sum, prescale_factor=3.0)

    kept, scaled = step(tf.zeros([1000]))
    np.testing.assert_array_equal(kept, np.ones(1000))
    np.testing.assert_array_equal(scaled, np.full(1000, 3.0))


def test_graph_after_shutdown_and_again_after_init() -> None:
    hvd.init()
    step = tf.function(lambda x: hvd.allreduce(x))
    step(tf.ones([2]))
    hvd.shutdown()
    # Nothing is traced again: this is the kernel's own answer.
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"call tfring.init\(\) first"):
        step(tf.ones([2]))
    hvd.init()
    np.testing.assert_array_equal(step(tf.ones([2])), [1.0, 1.0])
    hvd.shutdown()


def test_wrong_reduce_op_is_told_by_the_engine(world: None) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        _ops.library().tfring_allreduce(
            tensors=[tf.constant(1.0)],
            tensor_name="wrong",
            reduce_op=77,
            prescale_bits=0,
            postscale_bits=0,
        )


def test_while_loop_keeps_iterations_apart(world: None) -> None:
    @tf.function
    def loop(n: tf.Tensor) -> tf.Tensor:
        total = tf.TensorArray(tf.int32, size=n)
        for i in tf.range(n):
            total = total.write(i, hvd.allreduce(i * 10, op=hvd.Sum))
        return total.stack()

    np.testing.assert_array_equal(loop(tf.constant(50)), np.arange(50) * 10)


def test_shutdown_while_another_thread_runs_ops() -> None:
    """A world that is being freed is never used: no crash, and a clear error."""
    step = tf.function(lambda x: [hvd.allreduce(x + float(i)) for i in range(8)])
    for _ in range(5):
        hvd.init()
        step(tf.ones([4]))
        running, ended = threading.Event(), []

        def run(running: threading.Event = running, ended: list = ended) -> None:
            try:
                while True:
                    step(tf.ones([4]))
                    running.set()
            except (tf.errors.FailedPreconditionError, tf.errors.AbortedError) as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert running.wait(60)
        hvd.shutdown()
        thread.join(60)
        assert len(ended) == 1
