"""Digests of variables: every bit and every place counts."""

from __future__ import annotations

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfring._digest import digest

NUMBERS = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
]


def _bits(dtype: str, size: int) -> np.ndarray:
    """Values of a dtype, from random bits."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    raw = np.random.default_rng(0).integers(0, 256, size * kind.itemsize, np.uint8)
    return raw % 2 == 0 if dtype == "bool" else raw.view(kind)


def _of(array: np.ndarray) -> int:
    return int(digest([tf.Variable(array)])[0])


@pytest.mark.parametrize("dtype", NUMBERS)
def test_same_bits_same_digest(dtype: str) -> None:
    values = _bits(dtype, 33)
    assert _of(values) == _of(values.copy())


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("size", [1, 33, 1 << 16])
def test_one_bit_is_seen(dtype: str, size: int) -> None:
    values = _bits(dtype, size)
    seen = {_of(values)}
    bytes_of = values.view(np.uint8)
    for place in range(0, bytes_of.size, max(1, bytes_of.size // 16)):
        changed = values.copy()
        changed.view(np.uint8)[place] ^= 1
        seen.add(_of(changed))
    assert len(seen) == 1 + len(range(0, bytes_of.size, max(1, bytes_of.size // 16)))


def test_every_bit_of_a_float_is_seen() -> None:
    values = np.linspace(-1, 1, 7, dtype="float32")
    digests = {_of(values)}
    for bit in range(values.size * 32):
        changed = values.copy()
        changed.view(np.uint32)[bit // 32] ^= np.uint32(1 << bit % 32)
        digests.add(_of(changed))
    assert len(digests) == 1 + values.size * 32


@pytest.mark.parametrize("size", [100, 1 << 16], ids=["small", "large"])
@pytest.mark.parametrize("pair", [(0, 1), (0, 16), (3, 99), (8, 72)])
def test_swapped_elements_are_seen(pair: tuple[int, int], size: int) -> None:
    values = np.ones(size, "float32")
    values[pair[0]] = -1.0
    swapped = np.ones(size, "float32")
    swapped[pair[1]] = -1.0
    assert _of(values) != _of(swapped)


def test_the_sign_of_zero_is_seen() -> None:
    assert _of(np.array([0.0])) != _of(np.array([-0.0]))


def test_kinds_of_nan_are_seen() -> None:
    one, other = np.array([0x7FC00000, 0x7FC00001], "uint32").view("float32")
    assert _of(np.array([one])) != _of(np.array([other]))


def test_one_number_per_variable_of_any_kind() -> None:
    values = np.arange(6, dtype="float32").reshape(2, 3)
    found = digest([keras.Variable(values), tf.Variable(values), tf.constant(values)])
    assert found.dtype == np.uint64
    assert found.shape == (3,)
    assert len(set(found.tolist())) == 1


def test_scalars_and_nothing() -> None:
    scalar, one, empty = digest([tf.Variable(2.0), tf.Variable([2.0]), tf.zeros([0, 4])])
    assert scalar == one != empty


def test_no_variables() -> None:
    assert digest([]).shape == (0,)


def test_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"numbers.*`words.*string"):
        digest([tf.Variable(["a"], name="words")])
