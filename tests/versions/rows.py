"""What was found for each TensorFlow, kept over several calls, and the table of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Row:
    """One TensorFlow.

    Attributes:
        asked: the version that was asked for, which tells one row from another.
        label: what was found there: versions of TensorFlow, Keras, NumPy and Python.
        cells: how each column's tests ended.
        date: the day.
    """

    asked: str
    label: Sequence[str]
    cells: Sequence[str]
    date: str

    @property
    def good(self) -> bool:
        return all(cell == "ok" for cell in self.cells)


class Results:
    """Rows by version and Python, in a file if there is one."""

    def __init__(self, path: Path | None, wheel: str) -> None:
        """Reads the rows of earlier calls.

        Raises:
            ValueError: they are of another wheel; one table must be of one binary.
        """
        self._path = path
        self._wheel = wheel
        self._rows: list[Row] = []
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
            if kept["wheel"] != wheel:
                raise ValueError(f"{path} has rows of another wheel; name another file.")
            self._rows = [Row(**row) for row in kept["rows"]]

    def __iter__(self) -> Iterator[Row]:
        return iter(
            sorted(self._rows, key=lambda row: (_number(row.asked), _number(row.label[-1])))
        )

    def add(self, row: Row) -> None:
        """Adds a row, in place of one of the same version and Python."""
        others = [r for r in self._rows if (r.asked, r.label[-1]) != (row.asked, row.label[-1])]
        self._rows = [*others, row]
        if self._path is not None:
            kept = {"wheel": self._wheel, "rows": [dataclasses.asdict(row) for row in self._rows]}
            self._path.write_text(json.dumps(kept, indent=1))


def _number(version: str) -> tuple[int, ...]:
    parts = version.split("-")[0].split(".")
    return tuple(int(part) if part.isdigit() else 1 << 30 for part in parts)


def table(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Returns a table in Markdown."""
    head = ["TensorFlow", "Keras", "NumPy", "Python", *columns, "date"]
    lines = [head, ["---"] * len(head), *([*row.label, *row.cells, row.date] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
