"""What a contender's ranks offer to the worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tfring.bench.problem import Problem


class UnsupportedError(Exception):
    """This contender cannot do what is asked, such as an element type."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A collective made ready, so that a call does nothing else.

    Attributes:
        call: does it once and returns when this rank's result is ready.
        results: returns the results of one more call; None where nothing is to be checked.
        paced: the ranks wait for each other in each call. If not, only the mean over many calls
            means something.
        base: where given, a sample is the time of `call` minus that of `base`, over `parts`.
        parts: see `base`.
        keeps: what must stay in memory for `call`.
        verify: raises where one of the calls before has failed, if they do not themselves.
    """

    call: Callable[[], Any]
    results: Callable[[], Sequence[np.ndarray] | None]
    paced: bool = True
    base: Callable[[], Any] | None = None
    parts: int = 1
    keeps: Any = None
    verify: Callable[[], None] | None = None


class Contender(Protocol):
    """One rank of a contender, connected with its peers."""

    rank: int
    size: int
    title: str

    def prepare(self, way: str, problem: Problem, inputs: list[np.ndarray]) -> Prepared:
        """Makes a collective ready; contenders that work in place write into the inputs.

        Raises:
            UnsupportedError: this contender cannot do it.
        """

    def close(self) -> None:
        """Leaves the peers; all ranks do so at about the same time."""


def into(
    outputs: list[np.ndarray],
    call: Callable[[], Any],
    keeps: Any = None,
    verify: Callable[[], None] | None = None,
) -> Prepared:
    """Returns a call whose results are found in `outputs`."""

    def results() -> list[np.ndarray]:
        call()
        if verify is not None:
            verify()
        return outputs

    return Prepared(call, results, keeps=keeps, verify=verify)


def one_by_one(calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """Returns a call that makes all calls in turn."""

    def call() -> None:
        for one in calls:
            one()

    return call


def packed(
    arrays: list[np.ndarray], reducer: Callable[[np.ndarray], Callable[[], Any]]
) -> Callable[[], None]:
    """Returns a call that copies arrays into one, reduces that, and copies back.

    Args:
        arrays: are changed in place.
        reducer: makes the reduction of a flat array ready.
    """
    flat = np.zeros(sum(array.size for array in arrays), arrays[0].dtype)
    parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    reduce = reducer(flat)

    def call() -> None:
        for array, part in zip(arrays, parts, strict=True):
            part[:] = array
        reduce()
        for array, part in zip(arrays, parts, strict=True):
            array[:] = part

    return call
