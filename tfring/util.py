"""Small helpers that Horovod's scripts import; none of them needs `init`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import TypeVar

from tfring.constants import Average, Sum

__all__ = [
    "check_num_rank_power_of_2",
    "handle_average_backwards_compatibility",
    "is_version_greater_equal_than",
    "num_rank_is_power_2",
    "split_list",
]

_Item = TypeVar("_Item")


def split_list(l: Sequence[_Item], n: int) -> list[Sequence[_Item]]:  # noqa: E741
    """Cuts a list into n parts, in order, whose lengths differ by one at most.

    Args:
        l: list, or another sequence that can be sliced.
        n: number of parts, positive; the last ones are empty where it exceeds the length.

    Returns:
        List of n slices; the longer ones come first.

    Example:
        >>> split_list([1, 2, 3, 4, 5], 2)
        [[1, 2, 3], [4, 5]]
    """
    if n < 1:
        raise ValueError(f"`n` must be a positive number of parts. Received: n={n!r}")
    length, longer = divmod(len(l), n)
    parts: list[Sequence[_Item]] = []
    start = 0
    for i in range(n):
        end = start + length + (i < longer)
        parts.append(l[start:end])
        start = end
    return parts


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether a number of ranks is 1, 2, 4, ..., as Adasum needs it.

    Example:
        >>> [n for n in range(9) if num_rank_is_power_2(n)]
        [1, 2, 4, 8]
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_num_rank_power_of_2(num_rank: int) -> None:
    """Raises ValueError unless a number of ranks is 1, 2, 4, ..., as Adasum needs it."""
    if not num_rank_is_power_2(num_rank):
        raise ValueError(
            f"`num_rank` must be a power of two for Adasum. Received: num_rank={num_rank!r}"
        )


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Returns the operation that `op` and its older spelling `average` name together.

    Args:
        op: a reduce operation, or None.
        average: True is Average, False is Sum; warns as deprecated.

    Returns:
        The operation; Average where both are None.

    Raises:
        ValueError: both are given.

    Example:
        >>> import tfring as hvd
        >>> handle_average_backwards_compatibility(hvd.Sum, None) == hvd.Sum
        True
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError(
            "`average` is the older spelling of `op`; give only one of them. "
            f"Received: average={average!r}, op={op!r}"
        )
    warnings.warn("`average` is deprecated; use `op`", DeprecationWarning, stacklevel=2)
    return Average if average else Sum


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Returns whether a version is a target version, or later.

    Args:
        ver: version; what follows its numbers, such as `rc1`, does not count.
        target: `major.minor.patch`.

    Raises:
        ValueError: the target is not of that form, or `ver` begins with no number.

    Example:
        >>> is_version_greater_equal_than("2.21.0", "2.16.0")
        True
    """
    if re.fullmatch(r"\d+\.\d+\.\d+", target) is None:
        raise ValueError(f"`target` must be major.minor.patch. Received: target={target!r}")
    found = re.match(r"\d+(\.\d+)*", ver)
    if found is None:
        raise ValueError(f"`ver` must begin with a number. Received: ver={ver!r}")
    numbers = [int(part) for part in found[0].split(".")][:3]
    numbers += [0] * (3 - len(numbers))
    return numbers >= [int(part) for part in target.split(".")]
