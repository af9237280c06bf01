"""What a run of the benchmark measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

DTYPES = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8")
LEVELS = ("engine", "op")
DEFAULT_SIZES = "4,64K,1M,16M,100M"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_ITEM_BYTES = {"float16": 2, "float32": 4, "int32": 4, "int8": 1, "uint8": 1}


@dataclasses.dataclass(frozen=True)
class Options:
    """One run.

    Attributes:
        np: numbers of ranks, measured one after the other.
        sizes: bytes of the tensor, ascending.
        dtype: NumPy name of its type.
        levels: `engine`, `op` or both.
        peers: whether other libraries take part.
        rounds: turns of each contender for each size.
        round_seconds: roughly how long a turn lasts.
    """

    np: tuple[int, ...] = (2,)
    sizes: tuple[int, ...] = (4, 2**16, 2**20, 2**24, 100 * 2**20)
    dtype: str = "float32"
    levels: tuple[str, ...] = LEVELS
    peers: bool = False
    rounds: int = 5
    round_seconds: float = 0.2


def item_bytes(dtype: str) -> int:
    """Returns the bytes of one element."""
    return _ITEM_BYTES.get(dtype, 8)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Reads sizes in bytes such as `4,64K,1M`; K, M and G are powers of 1024.

    Raises:
        ValueError: a size is no positive number of bytes.
    """
    return tuple(sorted({_size(part) for part in text.split(",")}))


def parse_ranks(text: str) -> tuple[int, ...]:
    """Reads numbers of ranks such as `2,4`.

    Raises:
        ValueError: one is no positive integer.
    """
    ranks = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in ranks):
        raise ValueError(f"-np takes positive integers, such as 2 or 2,4. Received: -np {text}")
    return tuple(dict.fromkeys(int(part) for part in ranks))


def parse_levels(text: str) -> tuple[str, ...]:
    """Reads levels such as `engine,op`.

    Raises:
        ValueError: one is unknown.
    """
    levels = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(levels) <= set(LEVELS):
        raise ValueError(f"--level takes engine, op or both. Received: --level {text}")
    return levels


def require_whole_elements(sizes: Sequence[int], dtype: str) -> None:
    """Raises ValueError for a size that is no whole number of elements."""
    for size in sizes:
        if size % item_bytes(dtype):
            raise ValueError(
                f"--sizes must be multiples of {item_bytes(dtype)}, the bytes of one {dtype}. "
                f"Received: --sizes {size}"
            )


def size_text(size: int) -> str:
    """Returns bytes for readers: 4 B, 64 KiB, 100 MiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def _size(text: str) -> int:
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    digits = number.removesuffix(unit).strip()
    if not digits.isdecimal() or int(digits) == 0:
        raise ValueError(f"--sizes takes bytes, such as 4,64K,1M. Received: {text!r}")
    return int(digits) * _UNITS[unit]
