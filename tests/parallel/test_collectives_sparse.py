"""Sparse sums between real ranks: gathered or dense, the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _sparse
from tfring._options import Options
from tfring._sparse import SparseSum, Table

hvd.init()
pytestmark = [pytest.mark.many_ranks, pytest.mark.timeout(120)]
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
SHAPE = (50, 3)


def random_slices(dtype: str) -> tf.IndexedSlices:
    generator = np.random.default_rng(hvd.rank())
    rows = generator.integers(0, SHAPE[0], 20 * (hvd.rank() + 1) % 50)
    values = generator.normal(size=(len(rows), 3)) * 10.0 ** generator.integers(
        -4, 4, (len(rows), 1)
    )
    return tf.IndexedSlices(tf.constant(values, dtype), tf.constant(rows), tf.constant(SHAPE))


def table_of(total: tf.IndexedSlices) -> tuple[np.ndarray, list[int]]:
    order = np.argsort(total.indices.numpy())
    return total.values.numpy()[order], total.indices.numpy()[order].tolist()


@MODES
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({}, (1.0, 1.0)),
        ({"op": hvd.Sum}, (1.0, 1.0)),
        ({"gradient_predivide_factor": 3.0}, (1.0 / 3.0, 3.0)),
        ({"compression": hvd.Compression.fp16}, (1.0, 1.0)),
        ({"compression": hvd.Compression.bf16, "op": hvd.Sum}, (1.0, 1.0)),
    ],
    ids=["Average", "Sum", "predivide", "fp16", "bf16"],
)
def test_both_ways_give_the_same_bits(
    graph: bool, dtype: str, options: Any, factors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sparse, "GATHER_BELOW", 0.0)  # dense from the second on
    total = SparseSum("both", [Table(SHAPE, tf.as_dtype(dtype))], Options(**options), factors)
    slices = random_slices(dtype)
    call = lambda: total([slices])[0]  # noqa: E731
    call = tf.function(call) if graph else call
    values, rows = table_of(call())
    assert values.dtype == tf.as_dtype(dtype).as_numpy_dtype
    for _ in range(2):
        again, same_rows = table_of(call())
        assert same_rows == rows
        assert (again + 0).tobytes() == (values + 0).tobytes()  # + 0: zeros have no sign
    assert hvd.allgather_object(values.tobytes()) == [values.tobytes()] * hvd.size()


@MODES
def test_no_message_for_the_choice(graph: bool) -> None:
    """After the first sums, one collective each, whichever way it goes."""
    shapes = [(4, 2), (4000, 2)]
    total = SparseSum("choice", [Table(s, tf.float32) for s in shapes], Options(), (1.0, 1.0))
    small, large = (
        tf.IndexedSlices(tf.ones((3, 2)), tf.constant([0, 1, 3]), tf.constant(shape))
        for shape in shapes
    )
    only_large = SparseSum("large", [Table(shapes[1], tf.float32)], Options(), (1.0, 1.0))
    calls = [lambda: total([small, large]), lambda: only_large([large])]
    calls = [tf.function(call) for call in calls] if graph else calls
    counts = []
    for call, steps in zip(calls, (3, 2), strict=True):
        for _ in range(steps):
            before = hvd.stats().collectives
            call()
            counts.append(hvd.stats().collectives - before)
    # gathered; then the small one dense beside the large one; and a large one alone
    assert counts == [1, 2, 2, 1, 1]


def test_mixed_groups() -> None:
    """A dense tensor before a sparse one, and the other way round."""
    rank = hvd.rank()
    mean = np.mean(range(hvd.size()))
    slices = tf.IndexedSlices(
        tf.fill((2, 1), float(rank)), tf.constant([0, 0]), tf.constant([5, 1])
    )
    for order in ([0, 1, 0], [1, 0, 1]):
        inputs = [slices if is_sparse else tf.fill((3,), float(rank)) for is_sparse in order]
        for is_sparse, result in zip(order, hvd.grouped_allreduce(inputs), strict=True):
            if is_sparse:
                assert result.dense_shape.numpy().tolist() == [5, 1]
                assert float(tf.convert_to_tensor(result)[0, 0]) == pytest.approx(2 * mean)
            else:
                assert result.numpy() == pytest.approx(np.full(3, mean))


def test_join_lets_all_ranks_choose_alike_again() -> None:
    """A rank that joins early misses a sum after which the others go another way."""
    total = SparseSum("join", [Table((4, 1), tf.float32)], Options(op=hvd.Sum), (1.0, 1.0))

    def rows(count: int) -> tf.IndexedSlices:
        return tf.IndexedSlices(tf.ones((count, 1)), tf.range(count), tf.constant([4, 1]))

    for _ in range(2):
        total([rows(4)])  # the second is dense
    if hvd.rank() > 0:
        total([rows(0)])  # whoever was there would gather next
    hvd.join()
    for _ in range(3):
        assert float(total([rows(4)])[0].values[0, 0]) == hvd.size()
