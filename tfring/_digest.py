"""A digest of variables: cheap to compute, tiny to send, different when one bit differs.

It is FarmHash's 64-bit fingerprint, which TensorFlow has as an operation: a function of the bytes
and their order only, alike on every machine and in every version. Two different contents have the
same one with a probability of about 2^-64; it is no protection against contents that were chosen
to collide.

One pass over the memory, without a copy. Measured for 100 MB of float32 on one core, milliseconds:
digest 27 to 40, copy 29 to 47, sum (a pass that only reads) 13 to 28, zlib.crc32 90 to 96.

For small variables, of which models have hundreds, TensorFlow's operations cost more than the pass:
measured for 4 KiB each, microseconds: 217 to 317, and 27 to 29 by the standard library's BLAKE2b.
That takes about 1 ns per byte, so it is for variables below `_SMALL`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._options import label, unwrapped

_SMALL = 1 << 16  # bytes

_WITHOUT_BITS = (tf.string, tf.resource, tf.variant)


def digest(variables: Sequence[Any]) -> np.ndarray:
    """Returns one number per variable, the same if and only if all bits are the same.

    The order of the elements counts; shape and dtype do not. NaNs, and zeros with a sign, are
    compared by their bits. Runs eagerly.

    Args:
        variables: Of Keras or TensorFlow, or tensors; numbers of any dtype, also bool.

    Returns:
        uint64 of shape `[len(variables)]`.

    Raises:
        TypeError: One holds text, or other things that have no bits to compare.

    Example:

    >>> import tensorflow as tf
    >>> from tfring._digest import digest
    >>> a, b = digest([tf.Variable([1.0, 2.0]), tf.Variable([2.0, 1.0])])
    >>> bool(a == b)
    False
    """
    return np.array([_fingerprint(variable) for variable in variables], np.uint64)


def _fingerprint(variable: Any) -> int:
    value = tf.convert_to_tensor(unwrapped(variable))
    if value.dtype in _WITHOUT_BITS:
        raise TypeError(
            "A digest is made of numbers. "
            f"Received: `{label(variable)}` of dtype {value.dtype.name}. Leave it out."
        )
    if value.dtype.size * value.shape.num_elements() < _SMALL:
        result = hashlib.blake2b(value.numpy().tobytes(), digest_size=8).digest()
    else:
        # One row: the operation makes one fingerprint for each.
        result = tf.fingerprint(tf.reshape(value, [1, -1])).numpy().tobytes()
    return int.from_bytes(result, "little")
