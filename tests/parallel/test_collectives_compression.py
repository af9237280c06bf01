"""Compression.fp16 and bf16: inputs are rounded once and added up in float32."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

COMPRESSIONS = pytest.mark.parametrize(
    ("compression", "narrow"),
    [(hvd.Compression.fp16, tf.float16), (hvd.Compression.bf16, tf.bfloat16)],
    ids=["fp16", "bf16"],
)
OPS = {
    hvd.Sum: np.add,
    hvd.Average: np.add,
    hvd.Min: np.minimum,
    hvd.Max: np.maximum,
    hvd.Product: np.multiply,
}


def drawn(rank: int, dtype: str, count: int = 3001) -> np.ndarray:
    # Few enough bits that float64 and float32 are rounded alike, yet not in 16 bits.
    return np.random.default_rng(rank).integers(-(2**20), 2**20, count).astype(dtype) / 2**19


def rounded(values: np.ndarray, narrow: tf.DType) -> np.ndarray:
    return tf.cast(tf.cast(values, narrow), tf.float32).numpy()


@COMPRESSIONS
@pytest.mark.parametrize("op", OPS, ids=lambda op: {0: "average", 1: "sum"}.get(op, str(op)))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_values(
    compression: Any, narrow: tf.DType, op: int, dtype: str, rank: int, size: int
) -> None:
    result = hvd.allreduce(drawn(rank, dtype), op=op, compression=compression)
    assert result.dtype == dtype
    want = functools.reduce(OPS[op], [rounded(drawn(r, dtype), narrow) for r in range(size)])
    if op == hvd.Average:
        want = want / np.float32(size)
    np.testing.assert_array_equal(result, want)


@COMPRESSIONS
def test_factors(compression: Any, narrow: tf.DType, rank: int, size: int) -> None:
    result = hvd.allreduce(
        drawn(rank, "float32"),
        op=hvd.Sum,
        prescale_factor=0.3,
        postscale_factor=1.7,
        compression=compression,
    )
    scaled = [drawn(r, "float32") * np.float32(0.3) for r in range(size)]
    want = functools.reduce(np.add, [rounded(values, narrow) for values in scaled])
    np.testing.assert_array_equal(result, want * np.float32(1.7))


@COMPRESSIONS
def test_other_dtypes_travel_as_they_are(compression: Any, narrow: tf.DType, size: int) -> None:
    others = [tf.constant(2**24 + 1), tf.constant(1 / 3, tf.float16), tf.constant(1 / 3)]
    results = hvd.grouped_allreduce(others, op=hvd.Max, compression=compression)
    assert [r.dtype for r in results] == [tf.int32, tf.float16, tf.float32]
    assert int(results[0]) == 2**24 + 1
    assert float(results[1]) == np.float16(1 / 3)
    assert float(results[2]) == rounded(np.float32(1 / 3), narrow)


@COMPRESSIONS
def test_gradient_of_min_finds_the_rank_that_has_it(
    compression: Any, narrow: tf.DType, rank: int, size: int
) -> None:
    x = tf.constant([rank + 1 / 3])  # is another number in 16 bits
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Min, compression=compression)
    # The gradient of the sum of all ranks' losses.
    assert tape.gradient(y, x).numpy().tolist() == [size if rank == 0 else 0]


def ops_of(function: Any, *args: Any) -> set[str]:
    graph = function.get_concrete_function(*args).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return {node.op for node in nodes}


@COMPRESSIONS
def test_the_graph_has_no_cast(compression: Any, narrow: tf.DType) -> None:
    w = tf.Variable([1.0, 2.0])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            loss = w * x
        return tape.gradient(loss, w)

    ops = ops_of(step, tf.constant(3.0))
    assert "TfringAllreduce" in ops
    assert "Cast" not in ops


def test_a_compressor_of_ones_own_is_called(rank: int, size: int) -> None:
    class Halved(hvd.Compression.fp16):  # type: ignore[name-defined, misc]
        @staticmethod
        def decompress(tensor: Any, context: Any) -> Any:
            return tf.cast(tensor, context) / 2

    result = hvd.allreduce(rank + 1.0, op=hvd.Sum, compression=Halved)
    assert float(result) == size * (size + 1) / 4
