"""Whose turn it is: in each round alone, independent and distributed, another one first.

The ranks are the same processes throughout, and only one way runs at a time.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tfring.bench import report
from tfring.bench.catalog import Contender
from tfring.bench.group import Group
from tfring.bench.train.result import DISTRIBUTED, WAYS, Result

_WORKER = "tfring.bench.train.worker"
_LEAST_STEPS = 3
_TRIAL_STEPS = 2
_EXCHANGES = 10  # in a round
UNCOUNTED_STEPS = 2  # of each turn: its first and its last


@dataclasses.dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        np: numbers of ranks, one after the other.
        models: names.
        batch: examples per rank, None for each model's own number.
        rounds: turns of each way.
        seconds: roughly how long a turn lasts.
        xla: whether XLA compiles the steps.
    """

    np: tuple[int, ...]
    models: tuple[str, ...]
    batch: int | None
    rounds: int
    seconds: float
    xla: bool = False


def measure(options: Options, np: int, say: Callable[[str], None]) -> list[Result]:
    """Measures all models at one number of ranks.

    Args:
        options: what to measure.
        np: the number of ranks.
        say: is told in one line what happens.

    Raises:
        GroupError: a rank failed; the text ends with what it printed.
    """
    say(f"np {np}: starting")
    with _started(np) as group:
        return [_measure_model(group, name, np, options, say) for name in options.models]


def _measure_model(
    group: Group, name: str, np: int, options: Options, say: Callable[[str], None]
) -> Result:
    say(f"np {np}: {name}: building it")
    facts = _ask(group, do="prepare", model=name, batch=options.batch, xla=options.xla)[0]
    result = Result(name, np, group.title, facts["parameters"], facts["batch"], options.xla)
    trial = _ask(group, do="turn", way=DISTRIBUTED, steps=_TRIAL_STEPS)
    slowest = max(seconds for answer in trial for seconds in answer["seconds"])
    steps = max(_LEAST_STEPS, round(options.seconds / slowest))
    length = options.rounds * len(WAYS) * (steps + UNCOUNTED_STEPS) * slowest
    say(f"np {np}: {name}: {options.rounds} x {len(WAYS)} turns of {steps} steps, {length:.0f} s")
    for number in range(options.rounds):
        if number > 0:
            say(f"np {np}: {name}: {report.count(number, 'round')} of {options.rounds} done")
        for i in range(len(WAYS)):
            way = WAYS[(i + number) % len(WAYS)]
            result.add(way, _ask(group, do="turn", way=way, steps=steps))
        result.add_exchange(_ask(group, do="exchange", calls=_EXCHANGES))
    return result


def _ask(group: Group, **message: Any) -> list[dict[str, Any]]:
    """The answers in the order of ranks."""
    return sorted(group.ask(**message), key=lambda answer: answer["rank"])


@contextmanager
def _started(np: int) -> Iterator[Group]:
    starter = (sys.executable, "-m", "tfring.launch", "-np", str(np))
    contender = Contender("train", "train", "own", (), (), starter)
    with tempfile.TemporaryDirectory(prefix="tfring-") as folder:
        group = Group(contender, np, Path(folder), [], module=_WORKER)
        try:
            group.connect()
            yield group
            group.close()
        finally:
            group.kill()
