"""The console command `tfring`: a name for each thing that it can do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tfring import _suggest
from tfring.version import __version__

# Each has a `main(argv, prog)` that returns the exit code; imported when called.
_COMMANDS = {
    "bench": ("tfring.bench.cli", "measure collectives or training, beside other libraries"),
    "build-gpu": ("tfring.gpu_build", "build the kernels for GPUs against the TensorFlow here"),
}
_HELP = """usage: tfring COMMAND [options]

commands:
{commands}

examples:
  tfring bench                  allreduce on this machine
  tfring bench train --check    what collectives cost in training
  tfring build-gpu              once, on a machine with GPUs
  tfringrun -np 2 python train.py
                                a script on two processes: another program

`tfring COMMAND --help` tells its options, `tfring --version` the version."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfring COMMAND ...`.

    Args:
        argv: arguments behind the program's name; those of this process by default.

    Returns:
        The exit code: that of the command, 2 where there is no such command, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    name = given[0] if given else "--help"
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name in ("-V", "--version"):
        print(f"tfring {__version__}")
        return 0
    if name not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        meant = _suggest.closest(name, _COMMANDS)
        print(f"tfring: no command {name!r}; there is {known}.{meant} Try --help.", file=sys.stderr)
        return 2
    try:
        command = importlib.import_module(_COMMANDS[name][0])
        return int(command.main(given[1:], prog=f"tfring {name}"))
    except KeyboardInterrupt:
        print(f"tfring {name}: interrupted", file=sys.stderr)
        return 130


def help_text() -> str:
    """Returns what `tfring --help` prints."""
    lines = [f"  {name:<11}{text}" for name, (_, text) in _COMMANDS.items()]
    return _HELP.format(commands="\n".join(lines))
