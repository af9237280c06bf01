"""Collectives in functions that XLA compiles give what they give outside of them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

ROWS = 12  # divides by 2, 3 and 4


def compiled(function: Callable[..., Any]) -> Any:
    return tf.function(function, jit_compile=True, autograph=False)


def values(dtype: tf.DType, rank: int) -> tf.Tensor:
    if dtype == tf.bool:
        return tf.constant([(i + rank) % 3 == 0 for i in range(ROWS)])
    return tf.cast(tf.range(ROWS) % 5 + rank + 1, dtype)


def is_same(function: Callable[..., Any], *tensors: tf.Tensor) -> None:
    for ours, plain in zip(
        tf.nest.flatten(compiled(function)(*tensors)),
        tf.nest.flatten(tf.function(function, autograph=False)(*tensors)),
        strict=True,
    ):
        assert ours.dtype == plain.dtype
        np.testing.assert_array_equal(ours.numpy(), plain.numpy())


COLLECTIVES = {
    "allreduce": lambda x: hvd.allreduce(x + 1, op=hvd.Sum),
    "average": lambda x: hvd.allreduce(x),
    "scaled": lambda x: hvd.allreduce(x, prescale_factor=0.5, postscale_factor=3.0),
    "adasum": lambda x: hvd.allreduce(x, op=hvd.Adasum),
    "fp16": lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
    "grouped": lambda x: hvd.grouped_allreduce([x, tf.cast(x, tf.int32), x[0]], op=hvd.Sum),
    "allgather": hvd.allgather,
    "grouped allgather": lambda x: hvd.grouped_allgather([x, tf.cast(x[:2], tf.int8)]),
    "broadcast": lambda x: hvd.broadcast(x * 2, root_rank=1),
    "reducescatter": lambda x: hvd.reducescatter(tf.reshape(x[:10], [5, 2]), op=hvd.Sum),
    "alltoall": lambda x: hvd.alltoall(x),
    "even splits": lambda x: hvd.alltoall(x, splits=[ROWS // hvd.size()] * hvd.size()),
    "sizes": lambda x: (hvd.size_op(), hvd.rank_op()),
}


@pytest.mark.many_ranks
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collective(collective: str, rank: int, size: int) -> None:
    if collective == "adasum" and size & (size - 1):
        pytest.skip("Adasum takes 1, 2, 4, ... ranks")
    is_same(COLLECTIVES[collective], values(tf.float32, rank))


DTYPES = [
    "float16",
    "bfloat16",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "bool",
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype(dtype: str, rank: int) -> None:
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        ops = [hvd.Min, hvd.Max, hvd.Product, *([] if x.dtype == tf.bool else [hvd.Sum])]
        return [hvd.allreduce(x, op=op) for op in ops] + [hvd.allgather(x), hvd.broadcast(x, 0)]

    is_same(function, values(tf.as_dtype(dtype), rank))


@pytest.mark.parametrize("count", [0, 1, 1 << 14, (1 << 24) // 4])
def test_ten_calls_that_do_not_depend_on_each_other(count: int, rank: int, size: int) -> None:
    calls = 10 if count < 1 << 20 else 2

    @compiled
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allreduce(x + float(i), op=hvd.Sum) for i in range(calls)][::-1]

    for _ in range(100 if count < 1 << 10 else 3):
        results = function(tf.fill([count], float(rank)))
    for i, result in enumerate(reversed(results)):
        expected = np.full(count, size * (size - 1) / 2 + size * i, np.float32)
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("outside", [False, True], ids=["tape inside", "tape outside"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: hvd.allreduce(x),
        lambda x: hvd.allreduce(x, op=hvd.Max),
        lambda x: hvd.allreduce(x, op=hvd.Product),
        lambda x: hvd.allgather(x),
        lambda x: hvd.broadcast(x, 0),
        lambda x: hvd.reducescatter(x, op=hvd.Sum),
        lambda x: hvd.alltoall(x),
        lambda x: hvd.allreduce(x * hvd.allreduce(x * x)),
    ],
    ids=["average", "max", "product", "allgather", "broadcast", "scatter", "alltoall", "chain"],
)
def test_gradient(function: Callable[[Any], Any], outside: bool, rank: int) -> None:
    def gradient(of: Callable[[Any], Any], x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = of(x)
            loss = tf.reduce_sum(y * tf.cast(tf.range(tf.size(y)) + rank, tf.float32))
        return tape.gradient(loss, x)

    x = values(tf.float32, rank) / 4.0
    ours = gradient(compiled(function), x) if outside else compiled(gradient)(function, x)
    np.testing.assert_allclose(ours, gradient(function, x), rtol=1e-6)


def test_second_derivative(rank: int) -> None:
    def second(x: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(hvd.allreduce(x**3, op=hvd.Sum))
            first = inner.gradient(y, x)
        return outer.gradient(first, x)

    is_same(second, values(tf.float32, rank))


def test_dimensions_that_are_not_known_when_it_is_traced(rank: int, size: int) -> None:
    signature = [tf.TensorSpec([None, None])]

    @tf.function(jit_compile=True, input_signature=signature)
    def function(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x), hvd.alltoall(x)

    for rows in (size, 2 * size):
        reduced, gathered, exchanged = function(tf.fill([rows, 2], float(rank)))
        np.testing.assert_array_equal(reduced, np.full([rows, 2], size * (size - 1) / 2))
        np.testing.assert_array_equal(gathered[:, 0], np.repeat(np.arange(size), rows))
        np.testing.assert_array_equal(exchanged[:, 1], np.repeat(np.arange(size), rows // size))


def test_loops_and_branches(rank: int, size: int) -> None:
    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = hvd.allreduce(x, op=hvd.Sum, name="in the loop") / float(size)
        add = lambda: hvd.allreduce(x, op=hvd.Sum)  # noqa: E731
        return i + 1, tf.cond(i % 2 == 0, add, lambda: hvd.broadcast(x, 0) + 1.0)

    def gradient(w: tf.Tensor) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = tf.while_loop(lambda i, _: i < 6, body, [0, w], maximum_iterations=6)[1]
            y += hvd.allreduce(w)
        return y, tape.gradient(y, w)

    is_same(gradient, tf.fill([3], float(rank)))


def test_the_same_functions_inside_and_outside(size: int) -> None:
    x = tf.ones([64, 64])
    inner = compiled(lambda x: hvd.allreduce(x, op=hvd.Sum, name="inner"))
    plain = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="plain"), autograph=False)
    plain(x)  # traced outside first
    both = compiled(lambda x: plain(x) + inner(x) + plain(2.0 * x))

    @tf.function(autograph=False)
    def outer(x: tf.Tensor) -> list[tf.Tensor]:
        first, between = inner(x), hvd.allreduce(x, op=hvd.Sum, name="between")
        return [first, between, both(x), inner(between), plain(x)]

    for _ in range(20):
        results = outer(x)
    assert [float(result[0, 0]) for result in results] == [size, size, 4 * size, size**2, size]


def test_functions_on_threads_that_ranks_start_in_different_order(rank: int, size: int) -> None:
    x = tf.ones([64, 64])

    def make(i: int) -> Any:
        def function(x: tf.Tensor) -> tf.Tensor:
            first = hvd.allreduce(0.0 * tf.matmul(x, x) + float(i), op=hvd.Sum, name=f"first {i}")
            return hvd.allreduce(first, op=hvd.Max, name=f"second {i}")

        return compiled(function)

    functions = [make(i) for i in range(4)]
    for function in functions:
        function(x)
    wrong: list[int] = []

    def run(i: int) -> None:
        for _ in range(20):
            if not np.all(functions[i](x).numpy() == i * size):
                wrong.append(i)

    threads = [threading.Thread(target=run, args=[i]) for i in range(4)]
    for thread in threads if rank % 2 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_process_sets_and_barriers(rank: int, size: int) -> None:
    evens = hvd.add_process_set(range(0, size, 2))

    def function(x: tf.Tensor) -> tf.Tensor:
        hvd.barrier()
        if rank % 2 == 0:
            x = hvd.allreduce(x, op=hvd.Sum, process_set=evens)
        hvd.barrier()
        return x

    result = compiled(function)(tf.ones([2]))
    np.testing.assert_array_equal(result, [len(range(0, size, 2)) if rank % 2 == 0 else 1] * 2)
    hvd.remove_process_set(evens)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "alltoall"])
def test_a_set_that_has_other_ranks_after_another_init(collective: str, rank: int) -> None:
    """Its handle is the same, but not the sizes of results."""

    def begin(*sets: Any) -> None:
        hvd.barrier()
        hvd.shutdown()
        hvd.init(process_sets=list(sets))

    alone = hvd.ProcessSet([0])
    begin(alone)
    function = compiled(lambda x: getattr(hvd, collective)(x, process_set=alone))
    if rank == 0:
        function(tf.ones([1000]))
    begin(hvd.ProcessSet([0, 1]))
    if rank == 0:
        with pytest.raises(tf.errors.FailedPreconditionError, match="place 0 of 1 ranks"):
            function(tf.ones([1000]))
    begin()


@pytest.mark.many_ranks
@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_unequal_rows_are_one_clear_error(collective: str, rank: int, size: int) -> None:
    function = compiled(getattr(hvd, collective))
    rows = [size * (r + 1) for r in range(size)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{rows[0]}, {rows[1]}") as caught:
        function(tf.ones([rows[rank]]))
    assert "same first dimension on all ranks" in caught.value.message
    assert "tfring:" not in caught.value.message
    assert function(tf.ones([size])).shape[0] >= size


@pytest.mark.many_ranks
def test_ranks_that_disagree_are_told_so(rank: int) -> None:
    function = compiled(lambda x: hvd.allreduce(x))
    with pytest.raises(tf.errors.FailedPreconditionError, match="do not agree"):
        function(tf.ones([1 + rank]))
    np.testing.assert_array_equal(function(tf.ones([4])), np.ones(4))


def test_slices_travel_as_they_are(rank: int, size: int) -> None:
    @compiled
    def function(values: tf.Tensor) -> tf.Tensor:
        slices = tf.IndexedSlices(values, tf.constant([0, 0, rank]), tf.constant([size, 1]))
        return tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorFlow, about the memory of dense ones
        result = function(tf.ones([3, 1]))
    expected = np.ones([size, 1])
    expected[0] += 2 * size
    np.testing.assert_array_equal(result, expected)


def test_what_cannot_be_compiled_says_so(size: int) -> None:
    x = tf.ones([2 * size])
    with pytest.raises(NotImplementedError, match="outside of functions with jit_compile=True"):
        compiled(hvd.join)()
    if size > 1:
        with pytest.raises(NotImplementedError, match="must be equal"):
            compiled(lambda x: hvd.alltoall(x, splits=[2 * size] + [0] * (size - 1)))(x)
