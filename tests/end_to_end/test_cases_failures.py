"""Training that goes wrong on one rank: nobody hangs, the error says who, nothing is left."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

from .conftest import Launcher
from .reports import PRELUDE, reports

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    Attributes:
        code: Its exit code.
        error: Everything it printed to stderr.
        told: What each of the two ranks reported.
        at: When it ended, on the clock of the reports.
    """

    code: int
    error: str
    told: list[list[dict[str, Any]]]
    at: float


def two_ranks(launcher: Launcher, program: str, *arguments: str) -> Ended:
    command = [sys.executable, launcher.script(PRELUDE + program), *arguments]
    job = launcher.run("-np", "2", *command, timeout=100)
    told = [reports(job.stdout, rank) for rank in (0, 1)]
    return Ended(job.returncode, job.stderr, told, time.monotonic())


ONE_STAYS_AWAY = """
hvd.init(warn_after=1, fail_after=3)
def act():
    return hvd.allreduce(1.0, name="g")
tell(step="ready")
if hvd.rank() == 1:
    time.sleep(30)
else:
    start = time.monotonic()
    try:
        (tf.function(act) if sys.argv[1] == "graph" else act)()
    except tf.errors.AbortedError as error:
        tell(step="raised", seconds=time.monotonic() - start, text=str(error))
        raise
"""


@MODES
def test_rank_that_stays_away_is_named_in_time(launcher: Launcher, mode: str) -> None:
    job = two_ranks(launcher, ONE_STAYS_AWAY, mode)
    assert job.told[0], job.error
    raised = job.told[0][-1]
    assert raised["step"] == "raised", job.error
    assert 3 <= raised["seconds"] <= 6
    assert "'g'" in raised["text"]
    assert "rank 1" in raised["text"]
    assert job.code != 0
    assert job.at - raised["at"] < 10
    assert launcher.processes() == []


ONE_FAILS = """
import keras
import numpy as np
hvd.init()

class Fail(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            tell(step="two")
            if hvd.rank() == 1:
                raise ValueError("boom7")

def fit():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.ones((20, 1), "float32")
    model.fit(x, x, batch_size=1, verbose=0, callbacks=[Fail()])

def loop():
    for step in range(20):
        Fail().on_train_batch_begin(step)
        hvd.allreduce(1.0)

try:
    fit() if sys.argv[1] == "fit" else loop()
except tf.errors.AbortedError as error:
    tell(step="raised", text=str(error))
    raise
"""


@pytest.mark.parametrize("mode", ["fit", "loop"])
def test_exception_on_one_rank_reaches_the_other_and_is_told_last(
    launcher: Launcher, mode: str
) -> None:
    launcher.limits["FAILURE_GRACE_S"] = 60  # time for what both ranks say
    job = two_ranks(launcher, ONE_FAILS, mode)
    assert job.told[1], job.error
    failed, raised = job.told[1][-1], job.told[0][-1]
    assert (failed["step"], raised["step"]) == ("two", "raised"), job.error
    assert raised["at"] - failed["at"] < 5
    assert "rank 1 failed: ValueError: boom7" in raised["text"]
    assert job.code == 1
    last = job.error[job.error.rindex("tfringrun: ") :].splitlines()
    assert last[0] == "tfringrun: rank 1 on host localhost failed with exit code 1:"
    assert last[1] == "[1] Traceback (most recent call last):"
    assert last[-1] == "[1] ValueError: boom7"
    assert launcher.processes() == []


KILLED_INSIDE = """
hvd.init()
x = tf.ones([16 << 20])
def act():
    return hvd.allreduce(x, op=hvd.Sum)
act = tf.function(act) if sys.argv[1] == "graph" else act
for step in range(4):
    start = time.monotonic()
    try:
        act()
    except tf.errors.AbortedError as error:
        seconds = time.monotonic() - start
        start = time.monotonic()
        hvd.shutdown()
        tell(step=step, seconds=seconds, shutdown=time.monotonic() - start, text=str(error))
        raise
    tell(step=step)
"""


@pytest.mark.parametrize(
    ("mode", "shared_memory"), [("eager", "1"), ("graph", "1"), ("eager", "0")]
)
def test_kill_in_the_middle_of_64_mib(launcher: Launcher, mode: str, shared_memory: str) -> None:
    launcher.env["TFRING_FAULTS"] = "rank=1 collective=2 chunk=10 do=kill"
    launcher.env["TFRING_SHARED_MEMORY"] = shared_memory
    launcher.limits["FAILURE_GRACE_S"] = 60  # time for what rank 0 says
    job = two_ranks(launcher, KILLED_INSIDE, mode)
    assert [told["step"] for told in job.told[1]] == [0, 1], job.error
    assert [told["step"] for told in job.told[0]] == [0, 1, 2], job.error
    raised = job.told[0][-1]
    assert raised["seconds"] < 5
    assert raised["shutdown"] < 5
    assert "rank 1" in raised["text"]
    assert job.code == 128 + signal.SIGKILL
    assert "rank 1 on host localhost was killed by SIGKILL" in job.error
    assert launcher.processes() == []


WAITING = """
import subprocess
hvd.init()
hvd.allreduce(1.0)
subprocess.Popen(["sleep", "1000"])
if hvd.rank() == 0:
    hvd.allreduce(1.0)
time.sleep(1000)
"""


@pytest.mark.parametrize(("signum", "seconds"), [(signal.SIGINT, 5), (signal.SIGKILL, 10)])
def test_end_of_the_launcher_ends_training_and_its_children(
    launcher: Launcher, signum: int, seconds: float
) -> None:
    """Rank 0 waits in a collective, rank 1 sleeps, and each has a child."""
    command = [sys.executable, launcher.script(PRELUDE + WAITING)]
    launcher.limits["TERM_GRACE_S"] = 1  # the rest is for a busy machine
    job = launcher.start("-np", "2", *command)
    launcher.wait_for("sleep\x001000", 2, 60)
    job.send_signal(signum)
    launcher.wait_for_none(seconds)
