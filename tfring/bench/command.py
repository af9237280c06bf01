"""What the command lines of the two benchmarks have alike."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from tfring import _suggest
from tfring.bench import plot
from tfring.bench.group import GroupError

_BEGAN = time.monotonic()
_T = TypeVar("_T")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = _suggest.for_flags(self, message)
        self.exit(2, f"{self.prog}: error: {message}\nSee {self.prog} --help.\n")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=80)


def parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Returns a parser without options; `add_results` adds `--help`.

    Args:
        prog: how the program calls itself.
        description: what it does.
        examples: lines of commands; `{prog}` stands for the program.
    """
    return _Parser(
        prog=prog,
        usage=f"{prog} [options]",
        description=description,
        epilog=f"examples:\n{examples.format(prog=prog)}",
        formatter_class=_Help,
        allow_abbrev=False,
        add_help=False,
    )


def add_turns(group: Any, rounds: str, seconds: float) -> None:
    """Adds the options that say how long it takes.

    Args:
        group: of a parser.
        rounds: what `--repeat` counts.
        seconds: the default of `--seconds`.
    """
    add = group.add_argument
    add("--repeat", type=int, default=5, metavar="N", help=f"{rounds} (5)")
    add(
        "--seconds",
        type=float,
        default=seconds,
        metavar="S",
        help=f"length of a turn ({seconds:g})",
    )


def add_results(group: Any) -> None:
    """Adds the options that say what is shown."""
    add = group.add_argument
    add("--check", action="store_true", help="also what tfring promises, and whether it holds")
    add("--json", metavar="FILE", help="write everything, samples included")
    add("--plot", metavar="FILE", help="draw a picture (.png, .svg, .pdf); needs matplotlib")
    add("-h", "--help", action="help", help="show this text")


def require(arguments: argparse.Namespace, most_seconds: float) -> None:
    """Refuses numbers and files that make no sense, before anything is measured.

    Args:
        arguments: of `add_turns` and `add_results`.
        most_seconds: a turn may take.

    Raises:
        ValueError: one is wrong.
    """
    positive(arguments.repeat, "--repeat")
    if not 0 < arguments.seconds <= most_seconds:
        raise ValueError(
            f"--seconds must lie between 0 and {most_seconds:g}. "
            f"Received: --seconds {arguments.seconds}"
        )
    plot.require_files(arguments.plot, arguments.json)


def positive(value: int, option: str) -> None:
    """Raises ValueError unless `value`, given to `option`, is positive."""
    if value < 1:
        raise ValueError(f"{option} must be positive. Received: {option} {value}")


def run(prog: str, measure: Callable[[], _T], write: Callable[[_T], None]) -> int:
    """Measures, then writes.

    Returns:
        0, 1 when tfring could not be measured, 130 after Ctrl-C or SIGTERM: then all processes are
        ended and nothing is written.
    """
    _tell_of_load()
    ended = signal.signal(signal.SIGTERM, _stop)
    try:
        measured = measure()
    except GroupError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; all processes are ended", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, ended)
    write(measured)
    return 0


def given(argv: Sequence[str] | None) -> list[str]:
    """Returns the arguments, those of this process by default."""
    return list(sys.argv[1:] if argv is None else argv)


def write_json(path: str | None, content: dict[str, Any]) -> None:
    """Writes a file, if one is wanted."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)


def say(line: str) -> None:
    """Tells on standard error what happens, with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:4.0f} s] {line}", file=sys.stderr, flush=True)


def _tell_of_load() -> None:
    """Tells when other programs keep all cores busy: then ranks wait for theirs."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        say(
            f"the load of this machine was {load:.1f} in the last minute, on {cores} cores: where "
            "others run, small sizes may take many times as long"
        )


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt
