"""Whose turn it is: for each size, every contender once per round, so that drift hits all alike."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tfring.bench import catalog
from tfring.bench.contenders import memory_limit
from tfring.bench.group import Group, GroupError, shared_memory
from tfring.bench.options import COMPRESSED, NARROWED, Case, Options, cases, largest
from tfring.bench.result import Entry, Run, slowest

_LEAST_CALLS = 3
_HAND_OVERS = 20  # in a turn


def measure(options: Options, np: int, say: Callable[[str], None]) -> list[Run]:
    """Measures everything at one number of ranks.

    Args:
        options: what to measure.
        np: the number of ranks.
        say: is told in one line what happens.

    Returns:
        A run for each collective and type; what did not start, failed, or cannot do it is named in
        `absent`.

    Raises:
        GroupError: tfring itself, or the measurement of the limit, failed.
    """
    chosen, absent = catalog.choose(options, np)
    say(f"np {np}: starting {', '.join(contender.name for contender in chosen)}")
    runs = []
    with _started(chosen, np, options) as groups:
        turns = [_Turns(group) for group in groups if _connected(group, absent)]
        for line in absent:
            say(f"np {np}: without {line}")
        for collective in options.collectives:
            for dtype in options.dtypes:
                narrows = collective in COMPRESSED and dtype in NARROWED
                wire = options.wire if narrows else ""
                run = Run(np, collective, dtype, absent=list(absent), wire=wire)
                _measure(turns, options, run, say)
                absent += [f"{turn.group.title}: lost before" for turn in turns if turn.lost]
                turns = [turn for turn in turns if not turn.lost]
                runs.append(run)
    return runs


class _Turns:
    """One contender: its group, its columns, and whether it still takes part."""

    def __init__(self, group: Group) -> None:
        self.group, self.lost = group, False
        self.entries: dict[str, Entry] = {}
        self._calls: dict[str, int] = {}

    def prepare(self, case: Case, options: Options, run: Run) -> None:
        """Makes tensors and finds out how many calls fill a turn."""
        self._calls = {}
        self.group.ask(do="forget")
        if self._hands_over(run):
            asked = {"collective": "allreduce", "dtype": "float32", "counts": (1,)}
            self.group.ask(do="prepare", way="hand over", **asked)
        if case.size < self.group.contender.from_bytes:
            return
        for way, entry in self.entries.items():
            answers = self.group.ask(
                do="prepare",
                way=way,
                counts=case.counts,
                collective=run.collective,
                dtype=run.dtype,
                wire=run.wire,
                lenient=entry.role == "peer",
            )
            refusals = [answer["unsupported"] for answer in answers if "unsupported" in answer]
            if refusals:
                name = entry.label if way == "xla" else entry.label.partition(",")[0]
                _note(run.absent, f"{name}: {refusals[0]}")
                continue
            calls = self._calls_in_a_turn(options, way, 1)
            if calls > _LEAST_CALLS:
                calls = self._calls_in_a_turn(options, way, max(1, calls // 10))
            self._calls[way] = max(_LEAST_CALLS, calls)

    def take(self, size: int, run: Run) -> None:
        """Has its turn."""
        for way, calls in self._calls.items():
            key = self.entries[way].key, size
            run.samples.setdefault(key, []).extend(self._ask(way, calls)[0])
        if self._hands_over(run):
            run.hand_overs.append(statistics.median(self._ask("hand over", _HAND_OVERS)[0]))

    @property
    def refused(self) -> bool:
        """Whether it can do nothing of what it was made ready for."""
        return not self._calls

    def lose(self) -> None:
        """Takes part no longer."""
        self.lost, self._calls = True, {}
        self.group.kill()

    def _hands_over(self, run: Run) -> bool:
        return self.group.contender.role == "limit" and run.np > 1

    def _calls_in_a_turn(self, options: Options, way: str, trial: int) -> int:
        """Tries some calls and returns how many fill a turn."""
        each = self._ask(way, trial)[1] / trial
        return min(int(options.round_seconds / each), self.group.contender.most_calls)

    def _ask(self, way: str, calls: int) -> tuple[list[float], float]:
        """Returns the seconds of each call and of all together, with what is not counted."""
        began = time.monotonic()
        answers = self.group.ask(do="measure", way=way, calls=calls)
        return slowest([answer["ns"] for answer in answers]), time.monotonic() - began


def _measure(turns: list[_Turns], options: Options, run: Run, say: Callable[[str], None]) -> None:
    for turn in turns:
        turn.entries = turn.group.contender.entries(turn.group.title, run.collective)
    columns = [entry for turn in turns for entry in turn.entries.values()]
    for case in cases(options, run.collective, run.dtype, run.np):
        say(f"np {run.np}: {run.collective} {run.dtype} {case.label}")
        run.labels[case.size] = case.label
        _measure_case([turn for turn in turns if not turn.lost], case, options, run)
    used = {key for key, _ in run.samples}
    run.entries = [entry for entry in columns if entry.key in used]


def _measure_case(turns: list[_Turns], case: Case, options: Options, run: Run) -> None:
    for turn in turns:
        with _tolerant(turn, run):
            turn.prepare(case, options, run)
    own = [turn for turn in turns if turn.group.contender.role == "own"]
    if own and all(turn.refused for turn in own):
        raise GroupError(f"nothing to measure: {'; '.join(run.absent)}")
    for number in range(options.rounds):
        # Another one first each time: what runs before leaves its traces in the caches.
        for i in range(len(turns)):
            turn = turns[(i + number) % len(turns)]
            if not turn.lost:
                with _tolerant(turn, run):
                    turn.take(case.size, run)


@contextlib.contextmanager
def _tolerant(turn: _Turns, run: Run) -> Iterator[None]:
    """Lets the run go on without a peer that fails."""
    try:
        yield
    except GroupError as error:
        _forgive(turn.group, error)
        turn.lose()
        _note(run.absent, str(error))


def _forgive(group: Group, error: GroupError) -> None:
    if group.contender.role != "peer":
        raise error


def _note(lines: list[str], line: str) -> None:
    if line not in lines:
        lines.append(line)


def _connected(group: Group, absent: list[str]) -> bool:
    try:
        group.connect()
    except GroupError as error:
        _forgive(group, error)
        group.kill()
        absent.append(str(error))
        return False
    return True


def _shared_bytes(tensors: int) -> int:
    # Whole words, behind the tensors.
    return -(-tensors // 64) * 64 + memory_limit.HAND_OVER_MEMORY


@contextlib.contextmanager
def _started(chosen: list[catalog.Contender], np: int, options: Options) -> Iterator[list[Group]]:
    """Starts all groups side by side and ends them whatever happens."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfring-")))
        shared = stack.enter_context(shared_memory(_shared_bytes(np * largest(options, np))))
        groups: list[Group] = []
        try:
            for contender in chosen:
                own = folder / contender.name
                own.mkdir()
                files = {"shared": [shared], "meeting": [str(own / "meeting")]}
                groups.append(Group(contender, np, own, files.get(contender.needs, [])))
            yield groups
            for group in groups:
                group.close()
        finally:
            for group in groups:
                group.kill()
