"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Sequence
from typing import Any

from tfring.bench import checks, command, plot, report, rounds
from tfring.bench import options as _options
from tfring.bench.result import Run

_DESCRIPTION = """\
Measures collectives on this machine: tfring's engine and TensorFlow ops and,
with --peers, other libraries, all taking turns. Prints Markdown."""
_EXAMPLES = """\
  {prog}                              allreduce, 2 ranks, 4 B to 100 MiB
  {prog} -np 2,4 --peers --check      beside MPI, gloo and oneCCL
  {prog} --collective allgather,alltoall --sizes 64K,16M --dtype bf16
  {prog} --collective grouped         ResNet-50's gradients in one call
  {prog} train --help                 steps of training
"""


def main(argv: Sequence[str] | None = None, prog: str = "python -m tfring.bench") -> int:
    """Measures, prints the tables to standard output and writes the files asked for.

    Args:
        argv: arguments; those of this process by default. With `train` first, the benchmark of
            training gets the others.
        prog: how the program calls itself.

    Returns:
        0, 1 when tfring could not be measured, 2 for wrong arguments, 130 after Ctrl-C.
    """
    given = command.given(argv)
    if given[:1] == ["train"]:
        train = importlib.import_module("tfring.bench.train.cli")
        return int(train.main(given[1:], f"{prog} train"))
    parser = _parser(prog)
    if "--xla" in given:
        parser.error(f"--xla: give --level xla, or measure training by `{prog} train --xla`")
    arguments = parser.parse_args(given)
    try:
        options = _checked(arguments)
    except ValueError as error:
        parser.error(str(error))
    for line in _without_effect(arguments, options):
        command.say(line)
    return command.run(
        prog,
        lambda: [run for np in options.np for run in rounds.measure(options, np, command.say)],
        lambda runs: _write(runs, options, arguments, f"{prog} {shlex.join(given)}".strip()),
    )


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = command.parser(prog, _DESCRIPTION, _EXAMPLES)
    _add_what(parser.add_argument_group("what is measured"))
    how = parser.add_argument_group("how, and what is shown")
    command.add_turns(how, "rounds per size", 0.2)
    how.add_argument("--details", action="store_true", help="also min, p99 and bandwidths of each")
    command.add_results(how)
    return parser


def _add_what(group: Any) -> None:
    add = group.add_argument
    add("-np", default="2", metavar="N,N", help="numbers of ranks, one run each (2)")
    add(
        "--collective",
        default="allreduce",
        metavar="C,C",
        help=", ".join(_options.COLLECTIVES),
    )
    add("--sizes", metavar="S,S", help=f"bytes ({_options.DEFAULT_SIZES})")
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
        help="of grouped: resnet50 (default), or N of --sizes together",
    )
    add("--wire", metavar="T", help="bf16, fp16: what tfring's floats travel as")
    add("--level", default="engine,op", metavar="L,L", help="engine, op (TensorFlow), xla")
    add("--peers", action="store_true", help="also the MPIs (mpi4py), gloo (torch), oneCCL")


def _checked(arguments: argparse.Namespace) -> _options.Options:
    command.require(arguments, 60)
    names, sizes = _options.parse_names, arguments.sizes
    options = _options.Options(
        np=_options.parse_ranks(arguments.np),
        collectives=names(arguments.collective, "--collective", _options.COLLECTIVES),
        sizes=_options.parse_sizes(_options.DEFAULT_SIZES if sizes is None else sizes),
        dtypes=_options.parse_dtypes(arguments.dtype, "--dtype", _options.DTYPES),
        levels=names(arguments.level, "--level", _options.LEVELS),
        tensors=_options.parse_tensors(arguments.tensors),
        wire=_wire(arguments.wire),
        peers=arguments.peers,
        rounds=arguments.repeat,
        round_seconds=arguments.seconds,
    )
    _options.require_memory(options, report.memory())
    return options


def _wire(text: str | None) -> str:
    return _options.parse_dtypes(text, "--wire", _options.WIRES)[0] if text else ""


def _without_effect(arguments: argparse.Namespace, options: _options.Options) -> list[str]:
    """Returns a line for each option that was given and changes nothing, or not everything."""
    lines = []
    grouped = "grouped" in options.collectives
    if arguments.sizes and grouped and options.tensors == _options.RESNET50:
        lines.append(
            "--sizes are not those of grouped: ResNet-50's list has its own; see --tensors"
        )
    if options.tensors != _options.RESNET50 and not grouped:
        lines.append("--tensors has no effect: it is for --collective grouped")
    if options.wire and not set(options.collectives) & set(_options.COMPRESSED):
        lines.append(f"--wire has no effect: it is for {' and '.join(_options.COMPRESSED)}")
    kept = [dtype for dtype in options.dtypes if dtype not in _options.NARROWED]
    if options.wire and kept:
        lines.append(f"--wire has no effect on {', '.join(kept)}: it narrows wider floats")
    return lines


def _write(
    runs: Sequence[Run], options: _options.Options, arguments: argparse.Namespace, words: str
) -> None:
    # In the order asked for; all numbers of ranks of one collective stand beside each other.
    runs = sorted(runs, key=lambda run: options.collectives.index(run.collective))
    print(report.section(runs, arguments.repeat, words, arguments.plot), flush=True)
    if arguments.details:
        for run in runs:
            print(f"\n{report.caption(run, arguments.repeat)}\n\n{report.details(run)}")
    if arguments.check:
        print(f"\n{checks.markdown(runs)}", flush=True)
    command.write_json(arguments.json, report.as_json(runs, words))
    if arguments.plot:
        plot.save(runs, arguments.plot)
