"""The order of variables, by which ranks know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring._options import key


class Order:
    """Numbers variables in the order in which they are first seen."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # key(variable) -> its number
        self._seen: list[Any] = []  # keeps the keys alive

    @property
    def seen(self) -> list[Any]:
        """The variables, by number."""
        return list(self._seen)

    def places(self, variables: Sequence[Any]) -> list[int]:
        """Returns the number of each variable."""
        for variable in variables:
            if key(variable) not in self._places:
                self._places[key(variable)] = len(self._seen)
                self._seen.append(variable)
        return [self._places[key(variable)] for variable in variables]
