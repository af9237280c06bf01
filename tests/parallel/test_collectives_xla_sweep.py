"""A little of `python -m tests.xla_sweep`: ten independent calls in one compiled function."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ..xla_sweep.cases import function, wrong


@pytest.mark.parametrize(
    ("dtype", "size_in_bytes", "repeats"),
    [
        ("float32", 4, 100),
        ("float32", 1 << 16, 20),
        ("float32", 1 << 20, 5),
        ("float16", 1 << 10, 20),
        ("bfloat16", 1 << 10, 20),
    ],
)
def test_ten_kinds(dtype: str, size_in_bytes: int, repeats: int) -> None:
    assert wrong(function("mixed", tf.as_dtype(dtype), size_in_bytes), repeats) == ""
