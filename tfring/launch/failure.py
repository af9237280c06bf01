"""Which failure came first, and the words that the user reads last."""

from __future__ import annotations

import re
import signal
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

# Without an entry in the store, a rank that a signal killed this soon after the first
# failure is taken for its cause: its peers often notice before the launcher does.
SIGNAL_WINDOW_S = 1.0
_PYTHON_ERROR = 1
_SSH_ERROR = 255
_MAX_LINES = 80
_MAX_OTHERS = 8
_RANKS = re.compile(r"\branks? (\d+(?:(?:, | and )\d+)*)")
_SHUT_DOWN = re.compile(r"\brank (\d+)(?: \([^)]*\))? has shut down")
# What the engine says of a collective, among what TensorFlow writes around it.
_COLLECTIVE = re.compile(r"\w+ '[^']*' (?:failed: |\().*?(?=\s*(?:\[Op:|\[\[\{\{|$))")
# What TensorFlow logs as it starts, with the lines that such a message goes on for.
_NOISE = re.compile(
    r"^(?:WARNING: All log messages before absl::|"
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: )?[IW]\d{4} |"
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |"
    r"To enable the following instructions: )"
)
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


@dataclass(frozen=True)
class Exit:
    """A rank that ended by itself, before the launcher asked any rank to end."""

    rank: int
    host: str
    code: int
    time: float  # of a monotonic clock
    tail: Sequence[str] = ()  # its last lines of standard error
    remote: bool = False


@dataclass(frozen=True)
class Failure:
    """The failure that ended the job."""

    rank: int
    host: str
    code: int
    text: str  # one line, or more where ssh itself failed
    details: Sequence[str] = ()
    others: Sequence[str] = ()  # one line each of other ranks, where they say more


def first_failure(
    exits: Sequence[Exit], claimed: int | None, secondary: Container[int] = ()
) -> Exit:
    """Picks the failure to blame.

    Args:
        exits: The ranks that failed, in the order in which the launcher saw it; not empty.
        claimed: The rank that wrote itself into the store as the first to fail.
        secondary: The ranks that ended only because a peer was lost.

    Returns:
        The claimed rank's exit if it is there; else, of the ranks that are not secondary if
        there are any, a death by signal that came within a second of plain Python errors,
        which it may well have caused; else the first.
    """
    for candidate in exits:
        if candidate.rank == claimed:
            return candidate
    candidates = [exit_ for exit_ in exits if exit_.rank not in secondary] or exits
    first = candidates[0]
    if first.code == _PYTHON_ERROR:
        for candidate in candidates:
            in_time = candidate.time - first.time <= SIGNAL_WINDOW_S
            if in_time and signal_name(candidate.code) is not None:
                return candidate
    return first


def early_leaver(left: Sequence[Exit], reason: str) -> Exit | None:
    """Picks the rank that ended well although another one still needed it.

    Args:
        left: The ranks that ended with exit code 0, in the order in which they ended.
        reason: The communication error of the rank that needed it.

    Returns:
        The first of those that `reason` names; where it names no rank, the first of all.
    """
    named = {int(rank) for found in _RANKS.findall(reason) for rank in re.findall(r"\d+", found)}
    for candidate in left:
        if not named or candidate.rank in named:
            return candidate
    return None


def late_leaver(ended: Sequence[Exit], reasons: Sequence[str]) -> Exit | None:
    """Picks the rank that had left, but whose process was still on its way out.

    Python with TensorFlow takes seconds to end; the launcher may end it before.

    Args:
        ended: The ranks that ended after the launcher had asked all to.
        reasons: The communication errors of the ranks that failed, the one to explain first.

    Returns:
        The first of those of which a reason says that it has shut down.
    """
    by_rank = {exit_.rank: exit_ for exit_ in ended}
    gone = (int(rank) for reason in reasons for rank in _SHUT_DOWN.findall(reason))
    return next((by_rank[rank] for rank in gone if rank in by_rank), None)


def describe_leaver(leaver: Exit, needed_by: Exit) -> Failure:
    """Puts an early end into words; the job's code is that of who needed it.

    The leaver's own code is told unless it is that of a signal, then the launcher's own.
    """
    code = "" if signal_name(leaver.code) else f" with exit code {leaver.code}"
    text = (
        f"rank {leaver.rank} on host {leaver.host} left early{code} "
        f"while rank {needed_by.rank} still needed it"
    )
    return replace(describe(needed_by), text=text)


def describe(exit_: Exit) -> Failure:
    """Puts a rank's exit into words."""
    who = f"rank {exit_.rank} on host {exit_.host}"
    name = signal_name(exit_.code)
    if name is not None:
        text = f"{who} was killed by {name} (exit code {exit_.code})"
        if name == "SIGKILL":
            text += "; where nobody did that, the machine may have run out of memory"
    else:
        text = f"{who} failed with exit code {exit_.code}"
        if exit_.remote and exit_.code == _SSH_ERROR:
            text += (
                "; ssh ends with 255 when it cannot connect. Check `ssh -o BatchMode=yes "
                f"{exit_.host} true`: it must work without a question"
            )
    return Failure(exit_.rank, exit_.host, exit_.code, text, error_lines(exit_.tail))


def other_stalls(exits: Sequence[Exit], blamed: int, secondary: Mapping[int, str]) -> list[str]:
    """What other ranks waited for, a line each: where several wait in vain, one tells too little.

    Args:
        exits: The ranks that failed.
        blamed: The rank whose error is shown in full.
        secondary: Ranks that ended only because of a communication error, and its words.

    Returns:
        At most nine lines; none where `blamed` failed by itself, so that the others' errors
        only follow from it.
    """
    if blamed not in secondary:
        return []
    others = [e for e in sorted(exits, key=lambda e: e.rank) if e.rank != blamed]
    found = [(e, _COLLECTIVE.search(secondary.get(e.rank, ""))) for e in others]
    lines = [f"rank {e.rank} on host {e.host}: {match[0]}" for e, match in found if match]
    if len(lines) > _MAX_OTHERS:
        lines = [*lines[:_MAX_OTHERS], f"... and {len(lines) - _MAX_OTHERS} ranks more"]
    return lines


def signal_name(code: int) -> str | None:
    """The signal that an exit code of 128 + n stands for, or None."""
    try:
        return signal.Signals(code - 128).name if code > 128 else None
    except ValueError:
        return None


def error_lines(tail: Sequence[str]) -> list[str]:
    """The last traceback in `tail`, with those that it is chained to, or the last lines.

    Without a traceback, what TensorFlow logs as it starts is left out.
    """
    start = len(tail)
    for index in range(len(tail) - 1, -1, -1):
        if not tail[index].startswith("Traceback (most recent call last):"):
            continue
        start = index
        before = [line for line in tail[max(0, index - 2) : index] if line.strip()]
        if not (before and before[-1].strip() in _CHAINED):
            break
    if start < len(tail):
        lines = list(tail[start:])
    else:
        lines = [line for line in tail if not _NOISE.match(line)][-20:]
    if len(lines) > _MAX_LINES:
        lines = [*lines[:20], "...", *lines[-(_MAX_LINES - 21) :]]
    return lines
