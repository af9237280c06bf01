"""The command line of `tfring bench train`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from tfring.bench import command
from tfring.bench.options import parse_names, parse_ranks
from tfring.bench.train import checks, plot, report, rounds
from tfring.bench.train.models import NAMES
from tfring.bench.train.result import Result

_DESCRIPTION = """\
Trains small models on this machine: one process alone, n independent processes
at the same time, and n ranks with tfring, all taking turns. Prints Markdown:
how fast each was, and where a step's time goes."""
_EXAMPLES = """\
  {prog}                            all models, 2 ranks
  {prog} -np 2,4 --model mlp --batch 64
  {prog} --model cnn,mlp --check    also what tfring promises
  {prog} --plot out.png --json out.json
"""


def main(argv: Sequence[str] | None = None, prog: str = "tfring bench train") -> int:
    """Measures, prints the tables to standard output and writes the files asked for.

    Args:
        argv: arguments; those of this process by default.
        prog: how the program calls itself.

    Returns:
        0, 1 when a rank failed, 2 for wrong arguments, 130 after Ctrl-C.
    """
    given = command.given(argv)
    parser = _parser(prog)
    arguments = parser.parse_args(given)
    try:
        options = _checked(arguments)
    except ValueError as error:
        parser.error(str(error))
    return command.run(
        prog,
        lambda: [rounds.measure(options, np, command.say) for np in options.np],
        lambda measured: _write(measured, arguments, f"{prog} {shlex.join(given)}".strip()),
    )


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = command.parser(prog, _DESCRIPTION, _EXAMPLES)
    what = parser.add_argument_group("what is measured")
    what.add_argument("-np", default="2", metavar="N,N", help="numbers of ranks, one run each (2)")
    names = ", ".join(NAMES)
    what.add_argument("--model", default=",".join(NAMES), metavar="M,M", help=f"{names} (all)")
    batch = "examples per rank and step (cnn 32, mlp 256, transformer 16)"
    what.add_argument("--batch", type=int, metavar="N", help=batch)
    xla = "XLA compiles all steps; also beside step plus exchange alone"
    what.add_argument("--xla", action="store_true", help=xla)
    how = parser.add_argument_group("how, and what is shown")
    command.add_turns(how, "rounds per model", 3.0)
    command.add_results(how)
    return parser


def _checked(arguments: argparse.Namespace) -> rounds.Options:
    np = parse_ranks(arguments.np)
    if 1 in np:
        raise ValueError(
            f"-np must be at least 2; one process alone is always measured. Received: "
            f"-np {arguments.np}"
        )
    models = parse_names(arguments.model, "--model", NAMES)
    if arguments.batch is not None:
        command.positive(arguments.batch, "--batch")
    command.require(arguments, 30)
    turns = (arguments.repeat, arguments.seconds)
    return rounds.Options(np, models, arguments.batch, *turns, arguments.xla)


def _write(measured: Sequence[Sequence[Result]], arguments: argparse.Namespace, words: str) -> None:
    for results in measured:
        parts = (report.caption(results), report.speeds(results), report.steps(results))
        print("\n\n".join(parts), end="\n\n")
    every = [result for results in measured for result in results]
    if arguments.plot:
        print(f"![The same as a picture]({arguments.plot})\n")
    print(report.footnotes(every))
    print(f"* measured by `{words}`", flush=True)
    if arguments.check:
        print(f"\n{checks.markdown(every)}", flush=True)
    command.write_json(arguments.json, report.as_json(every, words))
    if arguments.plot:
        plot.save(every, arguments.plot)
