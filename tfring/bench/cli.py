"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence

from tfring.bench import options as _options
from tfring.bench import plot, report, rounds
from tfring.bench.group import GroupError
from tfring.bench.result import Run

_DESCRIPTION = """\
Measures allreduce on this machine: tfring's engine, its TensorFlow ops and, with --peers, the
other libraries that this Python has, all taking turns in one run. Prints a Markdown table.
"""


def program(argv: Sequence[str] | None = None) -> int:
    """Runs `tfring bench ...`.

    Args:
        argv: arguments behind the program's name; those of this process by default.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] != ["bench"]:
        print("usage: tfring bench [-h] ...", file=sys.stderr)
        return 0 if arguments in ([], ["-h"], ["--help"]) else 2
    return main(arguments[1:], prog="tfring bench")


def main(argv: Sequence[str] | None = None, prog: str = "python -m tfring.bench") -> int:
    """Measures, prints the tables to standard output and writes the files asked for.

    Args:
        argv: arguments; those of this process by default.
        prog: how the program calls itself.

    Returns:
        0, 1 when tfring could not be measured, 2 for wrong arguments, 130 after Ctrl-C.
    """
    parser = _parser(prog)
    arguments = parser.parse_args(argv)
    try:
        options = _checked(arguments)
    except ValueError as error:
        parser.error(str(error))
    try:
        runs = [rounds.measure(options, np, _say) for np in options.np]
    except GroupError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    given = sys.argv[1:] if argv is None else argv
    _write(runs, arguments, f"{prog} {shlex.join(given)}".strip())
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=_DESCRIPTION)
    add = parser.add_argument
    add("-np", default="2", metavar="N[,N]", help="numbers of ranks, one run each (2)")
    add(
        "--sizes",
        default=_options.DEFAULT_SIZES,
        metavar="S,S",
        help=f"bytes, K and M are powers of 1024 ({_options.DEFAULT_SIZES})",
    )
    add("--dtype", default="float32", choices=_options.DTYPES, help="element type (float32)")
    add("--level", default="engine,op", metavar="L,L", help="engine, op (TensorFlow), or both")
    add("--peers", action="store_true", help="also mpi4py and torch gloo, where installed")
    add("--repeat", type=int, default=5, metavar="N", help="rounds per size (5)")
    add("--seconds", type=float, default=0.2, metavar="S", help="length of a turn (0.2)")
    add("--details", action="store_true", help="also min, p99 and bandwidth of each")
    add("--json", metavar="FILE", help="write everything, samples included")
    add("--plot", metavar="FILE", help="draw a picture (.png); needs matplotlib")
    return parser


def _checked(arguments: argparse.Namespace) -> _options.Options:
    sizes = _options.parse_sizes(arguments.sizes)
    _options.require_whole_elements(sizes, arguments.dtype)
    if arguments.repeat < 1:
        raise ValueError(f"--repeat must be positive. Received: --repeat {arguments.repeat}")
    if not 0 < arguments.seconds <= 60:
        raise ValueError(
            f"--seconds must lie between 0 and 60. Received: --seconds {arguments.seconds}"
        )
    if arguments.plot and not plot.available():
        raise ValueError("--plot needs matplotlib: `pip install matplotlib`")
    for file in filter(None, (arguments.plot, arguments.json)):
        folder = os.path.dirname(os.path.abspath(file))
        if not os.access(folder, os.W_OK):
            raise ValueError(f"cannot write to the folder {folder}. Received: {file}")
    return _options.Options(
        np=_options.parse_ranks(arguments.np),
        sizes=sizes,
        dtype=arguments.dtype,
        levels=_options.parse_levels(arguments.level),
        peers=arguments.peers,
        rounds=arguments.repeat,
        round_seconds=arguments.seconds,
    )


def _write(runs: Sequence[Run], arguments: argparse.Namespace, command: str) -> None:
    for run in runs:
        print(report.caption(run, arguments.repeat), end="\n\n")
        print(report.markdown(run), end="\n\n")
        if arguments.details:
            print(report.details(run), end="\n\n")
    print(report.footnotes(runs[-1]))
    print(f"* measured by `{command}`", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report.as_json(runs, command), file, indent=1)
    if arguments.plot:
        plot.save(runs, arguments.plot)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
