"""Makes the tables and the plot of docs/growth.md from what `simulate growth` prints:

python tests/simulator/growth.py growth.csv --plot docs/growth.png
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """One prediction."""

    model: str
    link: float
    ranks: int
    overlap: bool
    step_ms: float
    not_hidden_ms: float
    efficiency: float
    rank0_ms: float


def read(path: Path) -> list[Row]:
    """Returns the predictions in the order of the file."""
    with path.open() as file:
        return [
            Row(
                one["model"],
                float(one["link_gbit"]),
                int(one["ranks"]),
                one["overlap"] == "1",
                float(one["step_ms"]),
                float(one["not_hidden_ms"]),
                float(one["efficiency"]),
                float(one["rank0_ms"]),
            )
            for one in csv.DictReader(file)
        ]


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def table(rows: list[Row]) -> str:
    """Returns the Markdown table of one model: what is not hidden after and during the backward
    pass, and the efficiency with overlap."""
    links = sorted({row.link for row in rows})
    cells = {(row.ranks, row.link, row.overlap): row for row in rows}
    head = [f"{link:g} Gbit/s: after, overlapped (efficiency)" for link in links]
    lines = ["| Ranks | " + " | ".join(head) + " |", "|---|" + "---|" * len(links)]
    for ranks in sorted({row.ranks for row in rows}):
        parts = []
        for link in links:
            after, during = cells[ranks, link, False], cells[ranks, link, True]
            parts.append(
                f"{number(after.not_hidden_ms)} ms, {number(during.not_hidden_ms)} ms "
                f"({100 * during.efficiency:.0f}%)"
            )
        lines.append(f"| {ranks:,} | " + " | ".join(parts) + " |")
    return "\n".join(lines)


def by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Returns the rows of each model."""
    models: dict[str, list[Row]] = {}
    for row in rows:
        models.setdefault(row.model, []).append(row)
    return models


def plot(models: dict[str, list[Row]], path: Path) -> None:
    """Draws the efficiency with overlap over the ranks, a panel for each model."""
    from matplotlib import pyplot

    wanted = {name: rows for name, rows in models.items() if len({r.link for r in rows}) > 1}
    figure, panels = pyplot.subplots(1, len(wanted), figsize=(10, 3), sharey=True)
    for panel, (name, rows) in zip(panels, wanted.items(), strict=True):
        for link in sorted({row.link for row in rows}):
            line = [row for row in rows if row.link == link and row.overlap]
            ranks, efficiency = [r.ranks for r in line], [100 * r.efficiency for r in line]
            panel.plot(ranks, efficiency, marker=".", label=f"{link:g} Gbit/s")
        panel.set(title=name, xscale="log", xlabel="ranks, 8 per host", ylim=(0, 102))
        panel.set_xticks([8, 64, 512, 4096], ["8", "64", "512", "4096"])
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("predicted efficiency, %")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    models = by_model(read(args.csv))
    for name, rows in models.items():
        print(f"{name}\n\n{table(rows)}\n")
    if args.plot:
        plot(models, args.plot)


if __name__ == "__main__":
    main()
