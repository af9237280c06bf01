"""Whose turn it is: for each size, every contender once per round, so that drift hits all alike."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tfring.bench import catalog
from tfring.bench.group import Group, GroupError, shared_memory
from tfring.bench.options import Options, item_bytes, size_text
from tfring.bench.result import Entry, Run, slowest, summarize

_LEAST_CALLS = 3
# The first calls are slow: a few, then a tenth of a turn, then it is known how many fill one.
_TRIAL_SHARES = (0.1, 1.0)


def measure(options: Options, np: int, say: Callable[[str], None]) -> Run:
    """Measures all sizes at one number of ranks.

    Args:
        options: what to measure.
        np: the number of ranks.
        say: is told in one line what happens.

    Returns:
        The run; peers that did not start or failed are named in `absent`.

    Raises:
        GroupError: tfring itself, or the measurement of the limit, failed.
    """
    chosen, absent = catalog.choose(options, np)
    run = Run(np, options.dtype, absent=absent)
    say(f"np {np}: starting {', '.join(contender.kind for contender in chosen)}")
    with _started(chosen, np, options) as groups:
        turns = [_Turns(group) for group in groups if _connected(group, run)]
        run.entries = [entry for turn in turns for entry in turn.entries.values()]
        for size in options.sizes:
            say(f"np {np}: {size_text(size)}")
            _measure_size(turns, size, options, run)
    used = {key for key, _ in run.samples}
    run.entries = [entry for entry in run.entries if entry.key in used]
    for line in run.absent:
        say(f"np {np}: without {line}")
    return run


class _Turns:
    """One contender: its group, its columns, and whether it still takes part."""

    def __init__(self, group: Group) -> None:
        contender = group.contender
        self.group, self.lost = group, False
        self.entries: dict[str, Entry] = dict(
            zip(contender.ways, contender.entries(group.title), strict=True)
        )
        self._calls: dict[str, int] = {}

    def prepare(self, size: int, options: Options) -> None:
        """Makes tensors and finds out how many calls fill a turn."""
        self._calls = {}
        self.group.ask(do="forget")
        if size < self.group.contender.from_bytes:
            return
        count = size // item_bytes(options.dtype)
        for way in self.entries:
            answers = self.group.ask(do="prepare", way=way, count=count, dtype=options.dtype)
            if any("unsupported" in answer for answer in answers):
                continue
            calls = _LEAST_CALLS
            for share in _TRIAL_SHARES:
                seconds = summarize(self._measure(way, calls)).median
                wanted = int(share * options.round_seconds / max(seconds, 1e-9))
                calls = max(_LEAST_CALLS, min(wanted, self.group.contender.most_calls))
            self._calls[way] = calls

    def take(self, size: int, run: Run) -> None:
        """Has its turn."""
        for way, calls in self._calls.items():
            key = self.entries[way].key, size
            run.samples.setdefault(key, []).extend(self._measure(way, calls))

    def lose(self) -> None:
        """Takes part no longer."""
        self.lost, self._calls = True, {}

    def _measure(self, way: str, calls: int) -> list[float]:
        answers = self.group.ask(do="measure", way=way, calls=calls)
        return slowest([answer["ns"] for answer in answers])


def _measure_size(turns: list[_Turns], size: int, options: Options, run: Run) -> None:
    for turn in turns:
        with _tolerant(turn, run):
            turn.prepare(size, options)
    for number in range(options.rounds):
        # Another one first each time: what runs before leaves its traces in the caches.
        for i in range(len(turns)):
            turn = turns[(i + number) % len(turns)]
            with _tolerant(turn, run):
                turn.take(size, run)
    turns[:] = [turn for turn in turns if not turn.lost]


@contextlib.contextmanager
def _tolerant(turn: _Turns, run: Run) -> Iterator[None]:
    """Lets the run go on without a peer that fails."""
    try:
        yield
    except GroupError as error:
        turn.lose()
        _note(turn.group, error, run)


def _note(group: Group, error: GroupError, run: Run) -> None:
    if group.contender.role != "peer":
        raise error
    run.absent.append(str(error))


def _connected(group: Group, run: Run) -> bool:
    try:
        group.connect()
    except GroupError as error:
        _note(group, error, run)
        return False
    return True


@contextlib.contextmanager
def _started(chosen: list[catalog.Contender], np: int, options: Options) -> Iterator[list[Group]]:
    """Starts all groups side by side and ends them whatever happens."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfring-")))
        shared = stack.enter_context(shared_memory(np * max(options.sizes)))
        groups = []
        for contender in chosen:
            own = folder / contender.kind
            own.mkdir()
            files = {"shared": [shared], "meeting": [str(own / "meeting")]}
            group = Group(contender, np, own, files.get(contender.needs, []))
            stack.callback(group.close)
            groups.append(group)
        yield groups
