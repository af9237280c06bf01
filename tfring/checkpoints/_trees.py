"""Python values as JSON with arrays beside it: no code is run to read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

Arrays = dict[str, np.ndarray]


def pack(value: Any, key: str, arrays: Arrays) -> Any:
    """Returns `value` as JSON; arrays within go to `arrays`, under names that begin with `key`.

    Raises:
        TypeError: something else than None, numbers, texts, arrays, lists, tuples, dictionaries.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        parts = [pack(each, f"{key}/{i}", arrays) for i, each in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if isinstance(value, dict):
        items = enumerate(value.items())
        return {
            "dict": [
                [pack(k, f"{key}/{i}k", arrays), pack(v, f"{key}/{i}", arrays)]
                for i, (k, v) in items
            ]
        }
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor)) or hasattr(value, "numpy"):
        array = np.array(value.numpy() if hasattr(value, "numpy") else value)
        if array.dtype.kind not in "OUSM":
            arrays[key] = array
            return {"number" if isinstance(value, np.generic) else "array": key}
    raise TypeError(
        "what a checkpoint holds must be None, numbers, texts, arrays of numbers, and lists, "
        f"tuples and dictionaries of such. Received: {value!r} of type {type(value).__name__}"
    )


def unpack(tree: Any, arrays: Arrays) -> Any:
    """Returns the value that `pack` was given, with NumPy arrays for arrays of any kind."""
    if isinstance(tree, list):
        return [unpack(each, arrays) for each in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tuple":
        return tuple(unpack(each, arrays) for each in content)
    if kind == "dict":
        return {unpack(k, arrays): unpack(v, arrays) for k, v in content}
    return arrays[content][()] if kind == "number" else arrays[content]
