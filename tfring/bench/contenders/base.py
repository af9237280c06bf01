"""What a contender's ranks offer to the worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class UnsupportedError(Exception):
    """This contender cannot do what is asked, such as an element type."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """An allreduce (sum) made ready, so that a call does nothing else.

    Attributes:
        call: does one allreduce and returns when this rank's result is ready.
        check: does one, too, and returns the result, or None where nothing is to be checked.
        paced: the ranks wait for each other in each call. If not, only the mean over many calls
            means something.
    """

    call: Callable[[], Any]
    check: Callable[[], np.ndarray | None]
    paced: bool = True


class Contender(Protocol):
    """One rank of a contender, connected with its peers."""

    rank: int
    size: int
    title: str

    def prepare(self, way: str, array: np.ndarray) -> Prepared:
        """Makes an allreduce of `array` ready; contenders that work in place write into it.

        Raises:
            UnsupportedError: this contender cannot do it.
        """

    def close(self) -> None:
        """Leaves the peers; all ranks do so at about the same time."""
