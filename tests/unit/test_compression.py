from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import tfring as hvd
from tfring.compression import Compression

CASTS = [(Compression.fp16, tf.float16), (Compression.bf16, tf.bfloat16)]


@pytest.mark.parametrize(("compression", "wire"), CASTS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_wide_floats_are_halved_and_come_back(compression, wire, dtype) -> None:
    sent, context = compression.compress(tf.constant([0.5, -2.0], dtype))
    assert sent.dtype == wire
    back = compression.decompress(sent, context)
    assert back.dtype == dtype
    assert back.numpy().tolist() == [0.5, -2.0]


@pytest.mark.parametrize("compression", [Compression.none, Compression.fp16, Compression.bf16])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.int32, tf.int64, tf.bool])
def test_others_pass(compression, dtype) -> None:
    tensor = tf.cast([1, 0], dtype)
    sent, context = compression.compress(tensor)
    assert sent is tensor
    assert compression.decompress(sent, context) is tensor


def test_none_passes_everything() -> None:
    tensor = tf.constant(1.0)
    assert Compression.none.compress(tensor)[0] is tensor


TAKERS = {
    "allreduce": lambda compression: hvd.allreduce(1.0, compression=compression),
    "grouped": lambda compression: hvd.grouped_allreduce([], compression=compression),
    "optimizer": lambda compression: hvd.DistributedOptimizer(
        keras.optimizers.SGD(), compression=compression
    ),
    "tape": lambda compression: hvd.DistributedGradientTape(
        tf.GradientTape(), compression=compression
    ),
}


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS.keys())
@pytest.mark.parametrize(
    ("wrong", "instead"),
    [("fp16", "fp16"), ("bf16", "bf16"), (None, "none"), (Compression, "none"), ([], "none")],
)
def test_what_is_no_compression(take, wrong: object, instead: str, world: None) -> None:
    with pytest.raises(TypeError, match="`compression` must be .*Received: compression=") as error:
        take(wrong)
    assert str(error.value).endswith(f"Write compression=tfring.Compression.{instead}.")
