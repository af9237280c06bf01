"""The command line of `tfring bench train`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence

from tfring.bench import plot as _plot
from tfring.bench.group import GroupError
from tfring.bench.options import parse_ranks
from tfring.bench.train import plot, report, rounds
from tfring.bench.train.models import NAMES
from tfring.bench.train.result import Result

_DESCRIPTION = """\
Trains small models on this machine: one process alone, as many independent processes as ranks at
the same time, and the ranks together. Prints how fast each was and where a step's time goes.
"""


def main(argv: Sequence[str] | None = None, prog: str = "tfring bench train") -> int:
    """Measures, prints the tables to standard output and writes the files asked for.

    Args:
        argv: arguments; those of this process by default.
        prog: how the program calls itself.

    Returns:
        0, 1 when a rank failed, 2 for wrong arguments, 130 after Ctrl-C.
    """
    parser = _parser(prog)
    arguments = parser.parse_args(argv)
    try:
        options = _checked(arguments)
    except ValueError as error:
        parser.error(str(error))
    try:
        measured = [rounds.measure(options, np, _say) for np in options.np]
    except GroupError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    given = sys.argv[1:] if argv is None else argv
    _write(measured, arguments, f"{prog} {shlex.join(given)}".strip())
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=_DESCRIPTION)
    add = parser.add_argument
    add("-np", default="2", metavar="N[,N]", help="numbers of ranks, one run each (2)")
    add("--model", default=",".join(NAMES), metavar="M,M", help=f"({','.join(NAMES)})")
    add("--batch", type=int, metavar="N", help="examples per rank (each model has its own number)")
    add("--repeat", type=int, default=5, metavar="N", help="rounds (5)")
    add("--seconds", type=float, default=3.0, metavar="S", help="length of a turn (3)")
    add("--json", metavar="FILE", help="write everything, the time of each step included")
    add("--plot", metavar="FILE", help="draw a picture (.png); needs matplotlib")
    return parser


def _checked(arguments: argparse.Namespace) -> rounds.Options:
    np = parse_ranks(arguments.np)
    if 1 in np:
        raise ValueError(f"-np must be at least 2; 1 is always measured. Received: -np {np}")
    models = tuple(dict.fromkeys(name.strip() for name in arguments.model.split(",")))
    if not set(models) <= set(NAMES):
        raise ValueError(f"--model takes {', '.join(NAMES)}. Received: --model {arguments.model}")
    for name in ("batch", "repeat"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be positive. Received: --{name} {value}")
    if not 0 < arguments.seconds <= 30:
        raise ValueError(
            f"--seconds must lie between 0 and 30. Received: --seconds {arguments.seconds}"
        )
    _plot.require_files(arguments.plot, arguments.json)
    return rounds.Options(np, models, arguments.batch, arguments.repeat, arguments.seconds)


def _write(
    measured: Sequence[Sequence[Result]], arguments: argparse.Namespace, command: str
) -> None:
    for results in measured:
        caption = report.CAPTION.format(rounds=arguments.repeat, np=results[0].np)
        for text in (caption, report.speeds(results), report.steps(results)):
            print(text, end="\n\n")
    every = [result for results in measured for result in results]
    print(report.footnotes(every))
    print(f"* measured by `{command}`", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report.as_json(every, command), file, indent=1)
    if arguments.plot:
        plot.save(every, arguments.plot)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
