"""Makes the tables and the plot of docs/growth.md from what `simulate growth` prints, once as the
engine is and once where only the network costs anything:

python tests/simulator/growth.py engine.csv network.csv --plot docs/growth.png
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


def times(after: float, during: float) -> str:
    """Two times in milliseconds, in three digits."""

    def text(ms: float) -> str:
        return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"

    return f"{text(after)}, {text(during)}"


def columns(rows: list[Row], title: str) -> dict[str, list[str]]:
    """Returns the cells of each column: what is not hidden after and during the backward pass, and
    the efficiency of the latter. One column if all links cost the same."""
    cells = {(row.ranks, row.link, row.overlap): row for row in rows}
    found: dict[str, list[str]] = {}
    for link in sorted({row.link for row in rows}):
        column = []
        for ranks in sorted({row.ranks for row in rows}):
            after, during = cells[ranks, link, False], cells[ranks, link, True]
            text = times(after.not_hidden_ms, during.not_hidden_ms)
            column.append(f"{text} ({100 * during.efficiency:.0f}%)")
        found[f"{title}, {link:g} Gbit/s"] = column
    first, *others = found.values()
    shares = [[cell.rpartition("(")[2] for cell in column] for column in (first, *others)]
    if others and all(one == shares[0] for one in shares):
        return {f"{title}, any link": first}
    return found


def table(engine: list[Row], network: list[Row]) -> str:
    """Returns the Markdown table of one model."""
    cells = columns(engine, "engine") | columns(network, "network")
    lines = ["| Ranks | " + " | ".join(cells) + " |", "|---|" + "---|" * len(cells)]
    ranks = sorted({row.ranks for row in engine})
    for count, *line in zip(ranks, *cells.values(), strict=True):
        lines.append(f"| {count:,} | " + " | ".join(line) + " |")
    return "\n".join(lines)


def by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Returns the rows of each model."""
    models: dict[str, list[Row]] = {}
    for row in rows:
        models.setdefault(row.model, []).append(row)
    return models


def plot(engine: dict[str, list[Row]], network: dict[str, list[Row]], path: Path) -> None:
    """Draws the efficiency with overlap over the ranks, a panel for each model."""
    from matplotlib import pyplot

    wanted = [name for name, rows in network.items() if len({row.link for row in rows}) > 1]
    figure, panels = pyplot.subplots(1, len(wanted), figsize=(10, 3), sharey=True)
    for panel, name in zip(panels, wanted, strict=True):
        for number, link in enumerate(sorted({row.link for row in network[name]})):
            for title, models, style in (("network", network, "-"), ("engine", engine, "--")):
                line = [row for row in models[name] if row.link == link and row.overlap]
                ranks, efficiency = [r.ranks for r in line], [100 * r.efficiency for r in line]
                label = f"{title}, {link:g} Gbit/s"
                panel.plot(ranks, efficiency, style, color=f"C{number}", label=label)
        panel.set(title=name, xscale="log", xlabel="ranks, 8 per host", ylim=(0, 102))
        panel.set_xticks([8, 64, 512, 4096], ["8", "64", "512", "4096"])
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("predicted efficiency, %")
    panels[0].legend(loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", type=Path)
    parser.add_argument("network", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    engine, network = by_model(read(args.engine)), by_model(read(args.network))
    for name in engine:
        print(f"{name}\n\n{table(engine[name], network[name])}\n")
    if args.plot:
        plot(engine, network, args.plot)


if __name__ == "__main__":
    main()
