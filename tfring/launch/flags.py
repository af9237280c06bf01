"""Flags that `horovodrun` users know: those that set something, and those without a meaning."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NEVER_SECONDS = "1e9"  # 30 years


def positive_int(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer. Received: {text}")
    return number


def positive_float(text: str) -> float:
    """An argparse type: a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number. Received: {text}")
    return number


def not_negative_float(text: str) -> float:
    """An argparse type: a finite number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0. Received: {text}")
    return number


@dataclass(frozen=True)
class Tuning:
    """A flag that sets environment variables of the workers."""

    names: tuple[str, ...]
    parse: Callable[[str], Any] | None  # None: a flag without a value
    variables: Callable[[Any], dict[str, str]]
    help: str
    metavar: str = "N"
    choices: tuple[str, ...] | None = None


def _one(name: str, factor: int = 1) -> Callable[[Any], dict[str, str]]:
    def variables(value: Any) -> dict[str, str]:
        if isinstance(value, int):
            value *= factor
        return {name: value if isinstance(value, str) else f"{value:.15g}"}

    return variables


TUNING = (
    Tuning(
        ("--fusion-threshold-mb",),
        positive_int,
        _one("TFRING_FUSION_THRESHOLD", 1 << 20),
        "MiB of gradients reduced in one collective",
    ),
    Tuning(
        ("--stall-check-warning-time-seconds",),
        positive_float,
        _one("TFRING_STALL_WARN_SECONDS"),
        "report a collective that misses ranks (60)",
        "S",
    ),
    Tuning(
        ("--stall-check-shutdown-time-seconds",),
        not_negative_float,
        _one("TFRING_STALL_FAIL_SECONDS"),
        "... and fail it; 0: never (300)",
        "S",
    ),
    Tuning(
        ("--no-stall-check",),
        None,
        lambda _: {"TFRING_STALL_WARN_SECONDS": NEVER_SECONDS, "TFRING_STALL_FAIL_SECONDS": "0"},
        "neither report nor fail such a collective",
    ),
    Tuning(
        ("--log-level",),
        str.upper,
        _one("TFRING_LOG_LEVEL"),
        "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
        "LEVEL",
        ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"),
    ),
)

_ALWAYS_SO = "it is always so here"
_NO_MPI = "tfring does not use MPI to start jobs"
_AGREED = "ranks agree without a polling cycle"
_CHOSEN = "the engine chooses the algorithm itself"
_NO_TUNER = "there is nothing to tune by trial"
_NO_TIMELINE = "no timeline is written by itself; see `tfring.trace`"
_NO_STAMP = "use --prefix-output-with-timestamp for times"

# Accepted, so that scripts written for horovodrun start: flags, number of values, the reason.
WITHOUT_EFFECT: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--cycle-time-ms",), 1, _AGREED),
    (("--cache-capacity",), 1, _AGREED),
    (("--disable-cache",), 0, "nothing is cached between jobs"),
    (("--hierarchical-allreduce", "--no-hierarchical-allreduce"), 0, _CHOSEN),
    (("--hierarchical-allgather", "--no-hierarchical-allgather"), 0, _CHOSEN),
    (("--torus-allreduce", "--no-torus-allreduce"), 0, _CHOSEN),
    (("--autotune", "--no-autotune"), 0, _NO_TUNER),
    (("--autotune-log-file", "--autotune-warmup-samples"), 1, _NO_TUNER),
    (("--autotune-steps-per-sample", "--autotune-bayes-opt-max-samples"), 1, _NO_TUNER),
    (("--autotune-gaussian-process-noise",), 1, _NO_TUNER),
    (("--timeline-filename",), 1, _NO_TIMELINE),
    (("--timeline-mark-cycles", "--no-timeline-mark-cycles"), 0, _NO_TIMELINE),
    (("--stall-check",), 0, _ALWAYS_SO),
    (("--mpi-threads-disable", "--no-mpi-threads-disable", "--mpi"), 0, _NO_MPI),
    (("--mpi-args", "--binding-args"), 1, _NO_MPI),
    (("--tcp",), 0, "the network between hosts is always TCP"),
    (("--gloo",), 0, _ALWAYS_SO),
    (("--gloo-timeout-seconds",), 1, "use --start-timeout and the --stall-check flags"),
    (("--num-nccl-streams",), 1, "each process set has one stream"),
    (("--thread-affinity",), 1, "the engine's thread is not bound to a core"),
    (("--log-with-timestamp", "--log-without-timestamp"), 0, _NO_STAMP),
    (("--log-hide-timestamp", "--no-log-hide-timestamp"), 0, _NO_STAMP),
)

_ELASTIC = "elastic jobs are not supported: give a fixed -np and a fixed list of hosts"

# Refused, because a job that ignored them would not be what the user asked for.
REFUSED: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--min-np", "--min-num-proc"), 1, _ELASTIC),
    (("--max-np", "--max-num-proc"), 1, _ELASTIC),
    (("--slots-per-host", "--elastic-timeout", "--reset-limit"), 1, _ELASTIC),
    (("--blacklist-cooldown-range",), 2, _ELASTIC),
    (("--host-discovery-script",), 1, _ELASTIC),
    (("--jsrun",), 0, "jobs are not started through jsrun: name the hosts with -H or --hostfile"),
    (("--config-file",), 1, "configuration files are not read: give the flags themselves"),
)


class _WithoutEffect(argparse.Action):
    def __init__(self, *args: Any, reason: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reason = reason

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.notes.append(f"{option} has no effect: {self._reason}")


class _Refused(_WithoutEffect):
    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        parser.error(f"{option}: {self._reason}")


class _Tune(argparse.Action):
    def __init__(self, *args: Any, tuning: Tuning, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tuning = tuning

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.tuning |= self._tuning.variables(values)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds all flags of this file; they fill `tuning` and `notes` of the namespace."""
    parser.set_defaults(tuning={}, notes=[])
    group = parser.add_argument_group("tuning (each sets the variable of the workers)")
    for tuning in TUNING:
        takes: dict[str, Any] = {"nargs": 0}
        if tuning.parse is not None:
            takes = {"type": tuning.parse, "metavar": tuning.metavar, "choices": tuning.choices}
        group.add_argument(
            *tuning.names,
            action=_Tune,
            tuning=tuning,
            dest=argparse.SUPPRESS,
            help=tuning.help,
            **takes,
        )
    for action, table in ((_WithoutEffect, WITHOUT_EFFECT), (_Refused, REFUSED)):
        for names, values, reason in table:
            for name in names:
                parser.add_argument(
                    name,
                    action=action,
                    nargs=values if values != 1 else None,
                    reason=reason,
                    dest=argparse.SUPPRESS,
                    help=argparse.SUPPRESS,
                )
