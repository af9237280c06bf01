"""The measured numbers in the documentation: full tables in docs/measured.md, short ones in README.

    tfring bench ... --plot docs/bench.png | python -m tests.measured numbers
    tfring bench train ... | python -m tests.measured training
    python -m tests.measured                     makes README's tables anew from docs/measured.md

The short tables hold nothing but what stands in the full ones; a unit test compares them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from .pages import ROOT

MEASURED, README = ROOT / "docs" / "measured.md", ROOT / "README.md"
_SIZES = ("4 B", "1 KiB", "16 KiB", "64 KiB", "1 MiB", "16 MiB", "100 MiB")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
# Columns of the engine, the machine and the ops; all others are other libraries'.
_OWN = re.compile(r"bytes|limit|copy|op,.*|engine.*")

# Rows of a table by the names of their columns.
Rows = list[dict[str, str]]


def part(text: str, name: str) -> str:
    """Returns what stands between a page's marks of that name."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def with_part(text: str, name: str, content: str) -> str:
    """Returns the page with something else between its marks of that name."""
    head, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- /{name} -->")
    if not begin or not end:
        raise ValueError(f"the page has no marks <!-- {name} --> and <!-- /{name} -->")
    return f"{head}{begin}{content.strip()}\n{end}{tail}"


def summary(page: str) -> str:
    """Returns README's part, made of the tables of docs/measured.md."""
    numbers, training = part(page, "numbers"), part(page, "training")
    promises = [*tables(numbers, "promise"), *tables(training, "promise")]
    said = [*_machine(numbers), *_machine(training)]
    return "\n\n".join(
        [
            _collectives(numbers),
            _training(training),
            _kept([row for rows in promises for row in rows]),
            "\n".join(dict.fromkeys(said)),
        ]
    )


def tables(text: str, first: str) -> list[Rows]:
    """Returns the tables whose first column has that name."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", f"{text}\n", re.MULTILINE):
        head, _, *rows = [_cells(line) for line in block.splitlines()]
        if head[0] == first:
            found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def _collectives(text: str) -> str:
    """A row for each size, the same columns for each number of ranks."""
    ranks = re.findall(r"^\*\*Allreduce .*?, (\d+ ranks)\*\*", text, re.MULTILINE)
    measured = [_by_size(rows) for rows in tables(text, "bytes")]
    lists = tables(text, "tensors")
    measured = [sizes | _list(rows) for sizes, rows in zip(measured, lists, strict=True)]
    head = ["allreduce, float32"]
    for number in ranks:
        head += [f"{number}: tfring", "best other", "ratio", "x limit"]
    rows = [[name, *(c for sizes in measured for c in sizes[name])] for name in measured[0]]
    return _table(head, rows)


def _by_size(rows: Rows) -> dict[str, list[str]]:
    """The engine's time, the fastest other library, their ratio, and that to the limit."""
    found = {}
    for row in rows:
        if row["bytes"] in _SIZES:
            others = {name: cell for name, cell in row.items() if not _OWN.fullmatch(name)}
            best = min(others, key=lambda name: _seconds(others[name]))
            ratios = [row["engine / best peer"], row["engine / limit"]]
            found[row["bytes"]] = [row["engine"], f"{others[best]}, {best}", *ratios]
    return found


def _list(rows: Rows) -> dict[str, list[str]]:
    """The same of a list of tensors; a flat buffer is another work."""
    name, engine = rows[0]["tensors"], next(row for row in rows if row[""] == "engine")
    others = {
        f"{row['']}, {way}": row[way]
        for row in rows
        for way in ("per tensor", "packed")
        if row[way] != "-"
    }
    best = min(others, key=lambda other: _seconds(others[other]))
    ratio = _seconds(engine["one call"]) / _seconds(others[best])
    return {name: [engine["one call"], f"{others[best]}, {best}", f"{ratio:.2f}", "-"]}


def _training(text: str) -> str:
    """Of each model, what tfring's ranks reach beside processes that exchange nothing."""
    rows = next(rows for rows in tables(text, "model") if "efficiency" in rows[0])
    names = [name for name in rows[0] if name in ("model", "parameters", "batch", "efficiency")]
    names[3:3] = [name for name in rows[0] if re.fullmatch(r"\d+ (independent|with tfring)", name)]
    head = ["training", *(re.sub(r"^(\d+) with", r"\1 ranks with", name) for name in names[1:])]
    head = [re.sub(r"^(\d+) ind", r"\1 processes, ind", name) for name in head]
    return _table(head, [[row[name] for name in names] for row in rows])


def _kept(promises: Rows) -> str:
    """Which promises do not hold, each with its number."""
    broken = [row for row in promises if row["kept"] != "yes"]
    text = f"{len(promises) - len(broken)} of {len(promises)} promises were kept in these runs."
    if not broken:
        return text
    lines = [f"* {row['promise']}: {row['measured']} in place of {_allowed(row)}" for row in broken]
    return "\n".join([f"**Not kept: {len(broken)} of {len(promises)} promises**", "", *lines])


def _allowed(row: dict[str, str]) -> str:
    if "allowed" in row:
        return row["allowed"]
    return next(f"{how} {row[how]}" for how in ("at most", "at least") if how in row)


def _machine(text: str) -> Iterator[str]:
    """The lines that say where, when and by which command."""
    lines = [line for line in text.splitlines() if line.startswith("* ")]
    yield from lines[-2:]


def _seconds(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number) * _UNITS[unit]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, "|---" + "|---:" * (len(head) - 1) + "|")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Puts standard input into docs/measured.md, where a part is named, then renews README."""
    page = MEASURED.read_text()
    if arguments:
        # The page lies beside its picture.
        page = with_part(page, arguments[0], sys.stdin.read().replace("](docs/", "]("))
        MEASURED.write_text(page)
    README.write_text(with_part(README.read_text(), "summary", summary(page)))


if __name__ == "__main__":
    main(sys.argv[1:])
