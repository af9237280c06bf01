"""A rank that only lost a peer is never blamed while another one is at fault."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.timeout(150)

# An agent is gone from /proc once the launcher has seen its end, and so its rank's.
PRELUDE = """
import json, os, signal, sys, time
from tfring.launch.rendezvous import StoreClient
env = os.environ
rank, job = int(env["TFRING_RANK"]), env["TFRING_JOB_ID"]
store = StoreClient(env["TFRING_RENDEZVOUS"], env["TFRING_SECRET"])
store.set(f"agent/{rank}", str(os.getppid()).encode())
def wait_until_seen(other):
    while (agent := store.get(f"agent/{other}")) is None:
        time.sleep(0.01)
    while os.path.exists(f"/proc/{int(agent)}"):
        time.sleep(0.01)
def lose_peer(text="rank 1 (host localhost) has shut down"):
    while store.get("agent/1") is None:
        time.sleep(0.01)
    mark = json.dumps({"rank": rank, "text": text, "secondary": True})
    store.set(f"secondary/{job}/{rank}", mark.encode())
    raise RuntimeError("lost peer")
"""

# What a rank may take that is asked to end by nobody: more than a busy machine needs.
AMPLE_S = 60

FAILS_LATER = """
if rank != 1:
    lose_peer()
wait_until_seen(0)
{action}
"""


def report_of(job):
    """What the launcher says last."""
    return job.stderr[job.stderr.index("tfringrun:") :].splitlines()


def run(launcher, program, size=2):
    launcher.limits.setdefault("FAILURE_GRACE_S", AMPLE_S)
    script = launcher.script(PRELUDE + program)
    return launcher.run("-np", str(size), sys.executable, script)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("action", "code", "words"),
    [
        ("sys.exit(5)", 5, "failed with exit code 5"),
        ("sys.exit(1)", 1, "failed with exit code 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
    ],
    ids=["exit 5", "exit 1", "killed"],
)
def test_the_peer_that_ends_later_is_blamed(launcher, action, code, words, size):
    job = run(launcher, FAILS_LATER.replace("{action}", action), size)
    assert job.returncode == code
    assert report_of(job)[0].startswith(f"tfringrun: rank 1 on host localhost {words}")


LEAVES = """
if rank == 0:
    {before}
    lose_peer()
{after}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [("wait_until_seen(1)", ""), ("", "wait_until_seen(0)")],
    ids=["before", "after"],
)
def test_a_peer_that_left_with_zero_is_named(launcher, before, after):
    job = run(launcher, LEAVES.replace("{before}", before).replace("{after}", after))
    report = report_of(job)
    assert job.returncode == 1
    assert report[0] == (
        "tfringrun: rank 1 on host localhost left early with exit code 0 "
        "while rank 0 still needed it:"
    )
    assert report[-1] == "[0] RuntimeError: lost peer"


def test_a_leaver_that_takes_long_to_end_is_named(launcher):
    launcher.limits.update(FAILURE_GRACE_S=0.1, SECONDARY_GRACE_S=0.1)
    program = """
if rank == 0:
    lose_peer()
import atexit
atexit.register(time.sleep, 1000)
"""
    job = run(launcher, program)
    assert job.returncode == 1
    assert report_of(job)[0] == (
        "tfringrun: rank 1 on host localhost left early while rank 0 still needed it:"
    )


def test_a_rank_that_nobody_missed_is_not_named(launcher):
    program = """
if rank == 0:
    wait_until_seen(1)
    lose_peer("the store does not answer rank 0")
"""
    report = report_of(run(launcher, program))
    assert report[0] == "tfringrun: rank 0 on host localhost failed with exit code 1:"


def test_each_of_several_stalls_gets_a_line(launcher):
    program = """
waits = "allreduce 'g%d' (allreduce of float32 ()): after 8 s, the limit, it still "
waits += "waits for rank %d"
lose_peer("AbortedError: " + waits % (rank, 1 - rank))
"""
    report = report_of(run(launcher, program))
    blamed = int(report[0].split()[2])
    other = 1 - blamed
    assert report[0] == f"tfringrun: rank {blamed} on host localhost failed with exit code 1:"
    assert report[-1] == (
        f"tfringrun: rank {other} on host localhost: allreduce 'g{other}' (allreduce of float32 "
        f"()): after 8 s, the limit, it still waits for rank {blamed}"
    )


STAYS = """
if rank == 0:
    lose_peer("it still waits for rank 1")
def told(signum, frame):
    print(time.monotonic() - seen, flush=True)
    sys.exit(0)
seen = float("inf")
signal.signal(signal.SIGTERM, told)
wait_until_seen(0)
seen = time.monotonic()
time.sleep(60)
"""


def test_the_peer_at_fault_gets_more_time(launcher):
    launcher.limits.update(FAILURE_GRACE_S=0.1, SECONDARY_GRACE_S=4.0)
    job = run(launcher, STAYS)
    # Rank 1 may see the end of rank 0 later than the launcher does.
    assert 2 < float(job.stdout.removeprefix("[1] ")) < 30
    assert job.returncode == 1
    assert report_of(job)[0] == "tfringrun: rank 0 on host localhost failed with exit code 1:"
    assert launcher.processes() == []


# Registered before `init`, so run after the engine's own end: the peer loses this rank first.
REAL = """
import atexit, os, sys, time
agents = []
def outlive_rank_0():
    while os.environ["TFRING_RANK"] == "1" and os.path.exists(f"/proc/{agents[0]}"):
        time.sleep(0.01)
atexit.register(outlive_rank_0)
import tfring as hvd
hvd.init()
agents += hvd.allgather_object(os.getppid())
if hvd.rank() == 1:
    sys.exit({code})
hvd.allreduce(1.0)
"""


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [(5, 5, "failed with exit code 5"), (0, 1, "left early with exit code 0")],
)
def test_training_blames_the_rank_that_left(launcher, code, exit_code, words):
    script = launcher.script(REAL.replace("{code}", str(code)))
    launcher.limits["FAILURE_GRACE_S"] = AMPLE_S
    job = launcher.run("-np", "2", sys.executable, script)
    report = report_of(job)
    assert report[0].startswith(f"tfringrun: rank 1 on host localhost {words}"), job.stderr
    assert job.returncode == exit_code


# What a global variable holds is destroyed as Python ends: an iterator of tf.data, for example,
# that waits for a generator, which waits for Python.
STUCK = """
import atexit, time
import tfring as hvd
class Stuck:
    def __del__(self):
        time.sleep(1000)
stuck = Stuck()
hvd.init()
atexit.register(print, "a handler of the script")
raise ValueError("boom7")
"""


def test_ranks_that_failed_end_whatever_they_leave(launcher):
    job = launcher.run("-np", "2", sys.executable, launcher.script(STUCK), timeout=140)
    assert job.returncode == 1
    assert job.stderr.splitlines()[-1].endswith("ValueError: boom7")
    assert sorted(job.stdout.splitlines()) == [f"[{r}] a handler of the script" for r in (0, 1)]
