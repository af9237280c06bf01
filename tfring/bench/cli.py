"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from tfring.bench import checks, plot, report, rounds
from tfring.bench import options as _options
from tfring.bench.group import GroupError
from tfring.bench.result import Run

_BEGAN = time.monotonic()
_EXAMPLES = """examples:
  {prog}                                   allreduce, 2 ranks, 4 B to 100 MiB
  {prog} -np 2,4 --peers --check           beside MPI and gloo
  {prog} --collective allgather,alltoall --sizes 64K,16M --dtype bfloat16
  {prog} --collective grouped --peers      ResNet-50's gradients in one call
  {prog} --plot out.png --json out.json    a picture, and every sample
  {prog} train --help                      steps of training
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nSee {self.prog} --help.\n")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=84)


def main(argv: Sequence[str] | None = None, prog: str = "python -m tfring.bench") -> int:
    """Measures, prints the tables to standard output and writes the files asked for.

    Args:
        argv: arguments; those of this process by default. With `train` first, the benchmark of
            training gets the others.
        prog: how the program calls itself.

    Returns:
        0, 1 when tfring could not be measured, 2 for wrong arguments, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["train"]:
        train = importlib.import_module("tfring.bench.train.cli")
        return int(train.main(given[1:], f"{prog} train"))
    parser = _parser(prog)
    arguments = parser.parse_args(given)
    try:
        options = _checked(arguments)
    except ValueError as error:
        parser.error(str(error))
    return _run(options, arguments, prog, f"{prog} {shlex.join(given)}".strip())


def _run(options: _options.Options, arguments: Any, prog: str, command: str) -> int:
    ended = signal.signal(signal.SIGTERM, _stop)
    try:
        runs = [run for np in options.np for run in rounds.measure(options, np, _say)]
    except GroupError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; all processes are ended", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, ended)
    _write(runs, arguments, command)
    return 0


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [options]",
        description="Measures collectives on this machine: tfring's engine and TensorFlow ops\n"
        "and, with --peers, other libraries, all taking turns. Prints Markdown.",
        epilog=_EXAMPLES.format(prog=prog),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    _add_what(parser.add_argument_group("what is measured"))
    _add_how(parser.add_argument_group("how, and what is shown"))
    return parser


def _add_what(group: Any) -> None:
    add = group.add_argument
    add("-np", default="2", metavar="N,N", help="numbers of ranks, one run each (2)")
    add(
        "--collective",
        default="allreduce",
        metavar="C,C",
        help="allreduce, grouped, allgather, broadcast, reducescatter, alltoall",
    )
    sizes = _options.DEFAULT_SIZES
    add("--sizes", default=sizes, metavar="S,S", help=f"bytes ({sizes})")
    add(
        "--dtype",
        default="float32",
        metavar="T,T",
        help="float32 (default), float64, float16, bfloat16, int8, uint8, int32, int64",
    )
    add(
        "--tensors",
        default=_options.RESNET50,
        metavar="N",
        help="of grouped: resnet50 (default), or N equal ones of --sizes bytes together",
    )
    add("--wire", metavar="T", help="float16, bfloat16: what tfring's floats travel as")
    add("--level", default="engine,op", metavar="L,L", help="engine, op (TensorFlow), xla")
    add("--peers", action="store_true", help="also the MPIs (mpi4py), gloo (torch), oneCCL")


def _add_how(group: Any) -> None:
    add = group.add_argument
    add("--repeat", type=int, default=5, metavar="N", help="rounds per size (5)")
    add("--seconds", type=float, default=0.2, metavar="S", help="length of a turn (0.2)")
    add("--details", action="store_true", help="also min, p99 and bandwidths of each")
    add("--check", action="store_true", help="also what tfring promises, and whether it holds")
    add("--json", metavar="FILE", help="write everything, samples included")
    add("--plot", metavar="FILE", help="draw a picture (.png, .svg); needs matplotlib")


def _checked(arguments: argparse.Namespace) -> _options.Options:
    if arguments.repeat < 1:
        raise ValueError(f"--repeat must be positive. Received: --repeat {arguments.repeat}")
    if not 0 < arguments.seconds <= 60:
        raise ValueError(
            f"--seconds must lie between 0 and 60. Received: --seconds {arguments.seconds}"
        )
    plot.require_files(arguments.plot, arguments.json)
    names = _options.parse_names
    return _options.Options(
        np=_options.parse_ranks(arguments.np),
        collectives=names(arguments.collective, "--collective", _options.COLLECTIVES),
        sizes=_options.parse_sizes(arguments.sizes),
        dtypes=names(arguments.dtype, "--dtype", _options.DTYPES),
        levels=names(arguments.level, "--level", _options.LEVELS),
        tensors=_options.parse_tensors(arguments.tensors),
        wire=_wire(arguments.wire),
        peers=arguments.peers,
        rounds=arguments.repeat,
        round_seconds=arguments.seconds,
    )


def _wire(text: str | None) -> str:
    return _options.parse_names(text, "--wire", _options.WIRES)[0] if text else ""


def _write(runs: Sequence[Run], arguments: argparse.Namespace, command: str) -> None:
    # The picture's panels of one collective stand beside each other.
    runs = sorted(runs, key=lambda run: _options.COLLECTIVES.index(run.collective))
    print(report.section(runs, arguments.repeat, command, arguments.plot), flush=True)
    if arguments.details:
        for run in runs:
            print(f"\n{report.caption(run, arguments.repeat)}\n\n{report.details(run)}")
    if arguments.check:
        print(f"\n{checks.markdown(runs)}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report.as_json(runs, command), file, indent=1)
    if arguments.plot:
        plot.save(runs, arguments.plot)


def _say(line: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:4.0f} s] {line}", file=sys.stderr, flush=True)
