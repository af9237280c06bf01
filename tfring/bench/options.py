"""What a run of the benchmark measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfring.bench import resnet50

COLLECTIVES = ("allreduce", "grouped", "allgather", "broadcast", "reducescatter", "alltoall")
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int32",
    "int64",
    "int8",
    "uint8",
)
LEVELS = ("engine", "op", "xla")
DEFAULT_SIZES = "4,1K,16K,64K,256K,1M,4M,16M,100M"
RESNET50 = "resnet50"
# Of which tfring can send floats as a narrower type.
COMPRESSED = ("allreduce", "grouped")
WIRES = ("float16", "bfloat16")
NARROWED = ("float32", "float64")  # of which a wire type changes anything
# At least: the shared one of the limit, two of the copy, the engine's own.
_TENSORS_OF_A_RANK = 4
# All ranks are on one host; the engine takes no more there.
_MOST_RANKS = 256
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "int8": 1, "uint8": 1}
# Whose tensors are cut into as many equal parts as there are ranks.
_IN_PARTS = ("allgather", "reducescatter", "alltoall")


@dataclasses.dataclass(frozen=True)
class Options:
    """One run.

    Attributes:
        np: numbers of ranks, measured one after the other.
        collectives: some of `COLLECTIVES`.
        sizes: bytes of the tensors, ascending.
        dtypes: NumPy names of their types.
        levels: some of `LEVELS`.
        tensors: of grouped: `resnet50`, or how many equal ones.
        wire: type that tfring's floats travel as in an allreduce; "" for their own.
        peers: whether other libraries take part.
        rounds: turns of each contender for each size.
        round_seconds: roughly how long a turn lasts.
    """

    np: tuple[int, ...] = (2,)
    collectives: tuple[str, ...] = ("allreduce",)
    sizes: tuple[int, ...] = (4, 2**16, 2**20, 2**24, 100 * 2**20)
    dtypes: tuple[str, ...] = ("float32",)
    levels: tuple[str, ...] = ("engine", "op")
    tensors: str = RESNET50
    wire: str = ""
    peers: bool = False
    rounds: int = 5
    round_seconds: float = 0.2


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: tensors to run a collective on.

    Attributes:
        label: what readers see.
        counts: elements of each tensor, where that is longer the result's.
        size: bytes of all of them.
    """

    label: str
    counts: tuple[int, ...]
    size: int


def cases(options: Options, collective: str, dtype: str, np: int) -> list[Case]:
    """Returns the rows of one table, ascending."""
    item = item_bytes(dtype)
    if collective == "grouped" and options.tensors == RESNET50:
        counts = resnet50.counts()
        size = sum(counts) * item
        return [Case(f"ResNet-50: {len(counts)} tensors, {size_text(size)}", counts, size)]
    pieces = int(options.tensors) if collective == "grouped" else 1
    pieces = np if collective in _IN_PARTS else pieces
    found = {}
    for wanted in options.sizes:
        each = max(1, -(-wanted // (item * pieces)))
        size = each * pieces * item
        counts = (each,) * pieces if collective == "grouped" else (each * pieces,)
        label = f"{pieces} x {size_text(each * item)}" if len(counts) > 1 else size_text(size)
        found[size] = Case(label, counts, size)
    return list(found.values())


def largest(options: Options, np: int) -> int:
    """Returns the bytes of the largest row of all tables."""
    return max(
        case.size
        for collective in options.collectives
        for dtype in options.dtypes
        for case in cases(options, collective, dtype, np)
    )


def require_memory(options: Options, installed: int) -> None:
    """Refuses what does not fit into the machine, before anything starts.

    Args:
        options: the run.
        installed: bytes of memory of this machine.

    Raises:
        ValueError: a row needs more.
    """
    for np in options.np:
        size = largest(options, np)
        needed = _TENSORS_OF_A_RANK * np * size
        if needed > installed:
            raise ValueError(
                f"--sizes must fit into memory: {size_text(size)} on {np} ranks take at least "
                f"{size_text(needed)}, and this machine has {size_text(installed)}. "
                f"Received: a size of {size_text(size)}"
            )


def item_bytes(dtype: str) -> int:
    """Returns the bytes of one element."""
    return _ITEM_BYTES.get(dtype, 8)


def parse_names(text: str, option: str, known: Sequence[str]) -> tuple[str, ...]:
    """Reads a list of names such as `engine,op`.

    Raises:
        ValueError: one is unknown.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{option} takes some of {', '.join(known)}. Received: {unknown[0]!r}")
    return names


def parse_dtypes(text: str, option: str, known: Sequence[str]) -> tuple[str, ...]:
    """Reads a list of element types; short names such as `bf16` do as well.

    Raises:
        ValueError: one is unknown.
    """
    parts = [part.strip() for part in text.split(",")]
    return parse_names(",".join(_SHORT.get(part, part) for part in parts), option, known)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Reads sizes in bytes such as `4,64K,1M`; K, M and G are powers of 1024.

    Raises:
        ValueError: a size is no positive number of bytes.
    """
    return tuple(sorted({_size(part) for part in text.split(",")}))


def parse_ranks(text: str) -> tuple[int, ...]:
    """Reads numbers of ranks such as `2,4`.

    Raises:
        ValueError: one is no positive integer, or more than one host may have.
    """
    ranks = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= _MOST_RANKS for part in ranks):
        raise ValueError(
            f"-np takes positive integers up to {_MOST_RANKS}, such as 2 or 2,4. "
            f"Received: -np {text}"
        )
    return tuple(dict.fromkeys(int(part) for part in ranks))


def parse_tensors(text: str) -> str:
    """Reads which list is reduced: a preset or a number of tensors.

    Raises:
        ValueError: it is neither.
    """
    if text == RESNET50 or (text.isdecimal() and 0 < int(text) <= 10**5):
        return text
    raise ValueError(
        f"--tensors takes {RESNET50} or a number of tensors up to 100000. "
        f"Received: --tensors {text}"
    )


def size_text(size: int) -> str:
    """Returns bytes for readers: 4 B, 64 KiB, 97.5 MiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}" if size % unit == 0 else f"{size / unit:.1f} {name}"
    return f"{size} B"


def _size(text: str) -> int:
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    digits = number.removesuffix(unit).strip()
    if not digits.isdecimal() or int(digits) == 0:
        raise ValueError(f"--sizes takes bytes, such as 4,64K,1M. Received: {text!r}")
    return int(digits) * _UNITS[unit]
