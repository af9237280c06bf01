"""Crashes, kills and interrupts: the job ends fast, says who, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.timeout(150)

# Half of what the workers would take by themselves: a busy machine needs some seconds.
SOON_S = 30

FAIL = """
import os, sys, time
if os.environ["TFRING_RANK"] == "1":
    {action}
time.sleep(60)
"""


def failing(launcher, action):
    """Runs two ranks, of which rank 1 does `action` while rank 0 sleeps."""
    script = launcher.script(FAIL.format(action=action))
    start = time.monotonic()
    job = launcher.run("-np", "2", sys.executable, script)
    return job, time.monotonic() - start


def test_a_crash_ends_the_job_and_its_traceback_comes_last(launcher):
    job, seconds = failing(launcher, "raise ValueError('boom7')")
    assert job.returncode == 1
    lines = job.stderr.splitlines()
    assert lines[-1] == "[1] ValueError: boom7"
    assert "tfringrun: rank 1 on host localhost failed with exit code 1:" in lines
    assert seconds < SOON_S
    assert launcher.processes() == []


@pytest.mark.parametrize("code", [1, 3, 77, 127, 200])
def test_the_exit_code_of_the_first_failure_is_the_jobs(launcher, code):
    job, _ = failing(launcher, f"sys.exit({code})")
    assert job.returncode == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"])
def test_a_killed_rank_is_named_with_its_signal(launcher, name):
    signum = signal.Signals[name]
    job, _ = failing(launcher, f"os.kill(os.getpid(), {int(signum)})")
    assert job.returncode == 128 + signum
    assert f"rank 1 on host localhost was killed by {name}" in job.stderr.splitlines()[-1]
    assert launcher.processes() == []


def test_the_others_may_still_tell_their_own_error(launcher):
    launcher.limits["FAILURE_GRACE_S"] = 60
    script = launcher.script(
        "import os, sys, time\n"
        "if os.environ['TFRING_RANK'] == '1': sys.exit(5)\n"
        "time.sleep(0.3); print('lost rank 1', file=sys.stderr); sys.exit(6)\n"
    )
    job = launcher.run("-np", "2", sys.executable, script)
    assert job.returncode == 5
    assert "[0] lost rank 1" in job.stderr
    assert "rank 1 on host localhost failed with exit code 5" in job.stderr.splitlines()[-1]


CLAIM = """
import json, os, sys, time
from tfring.launch.rendezvous import StoreClient
env = os.environ
if env["TFRING_RANK"] == "1":
    with StoreClient(env["TFRING_RENDEZVOUS"], env["TFRING_SECRET"]) as store:
        claim = json.dumps({"rank": 1, "text": "boom8"})
        store.set("failure/" + env["TFRING_JOB_ID"], claim.encode())
        store.set("claimed", b"1")
    time.sleep({delay})
    raise ValueError("boom8")
with StoreClient(env["TFRING_RENDEZVOUS"], env["TFRING_SECRET"]) as store:
    while store.get("claimed") is None:
        time.sleep(0.01)
raise RuntimeError("secondary")
"""


@pytest.mark.parametrize("delay", [0.3, 60], ids=["fails second", "does not end by itself"])
def test_the_rank_that_failed_first_is_blamed_even_if_it_ends_later(launcher, delay):
    script = launcher.script(CLAIM.replace("{delay}", str(delay)))
    job = launcher.run("-np", "2", sys.executable, script)
    report = job.stderr[job.stderr.index("tfringrun:") :]
    assert job.returncode == 1
    assert report.startswith("tfringrun: rank 1 on host localhost failed")
    assert "boom8" in report
    assert "secondary" not in report


def test_a_worker_that_ignores_sigterm_is_killed(launcher):
    script = launcher.script(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['TFRING_RANK'] == '1': sys.exit(4)\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    job = launcher.run("-np", "2", sys.executable, script)
    assert job.returncode == 4
    assert time.monotonic() - start < SOON_S
    assert launcher.processes() == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(launcher, signum):
    job = launcher.start("-np", "2", "sh", "-c", "sleep 1000 & sleep 1000")
    launcher.wait_for("sleep\x001000", 4)
    job.send_signal(signum)
    _, err = job.communicate(timeout=SOON_S)
    assert job.returncode == 128 + signum
    assert signum.name in err
    assert launcher.processes() == []


def test_sigint_reaches_the_workers_as_sigint(launcher):
    launcher.limits["TERM_GRACE_S"] = 60
    script = launcher.script(
        "import time\n"
        "try:\n"
        "    print('ready'); time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('saved')\n"
    )
    job = launcher.start("-np", "1", sys.executable, script)
    assert job.stdout.readline() == "[0] ready\n"
    job.send_signal(signal.SIGINT)
    out, _ = job.communicate(timeout=SOON_S)
    assert (job.returncode, out) == (130, "[0] saved\n")


def test_sigint_works_where_a_shell_ignores_it_for_background_jobs(launcher):
    script = launcher.script("import time; print('ready'); time.sleep(60)")
    command = [sys.executable, "-m", "tfring.launch", "-np", "1", sys.executable, script]
    job = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
        env=launcher.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert job.stdout.readline() == b"[0] ready\n"
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=SOON_S)
    assert job.returncode == 130
    assert b"KeyboardInterrupt" in err
    assert launcher.processes() == []


STUBBORN = """
import signal, time
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
print("ready")
time.sleep(60)
"""


def test_sigint_kills_workers_that_ignore_it(launcher):
    job = launcher.start("-np", "2", sys.executable, launcher.script(STUBBORN))
    assert {job.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
    start = time.monotonic()
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=60)
    assert time.monotonic() - start < SOON_S
    assert job.returncode == 130
    assert launcher.processes() == []


def test_a_second_sigint_kills_at_once(launcher):
    launcher.limits["TERM_GRACE_S"] = 60  # the first one alone would take this long
    job = launcher.start("-np", "2", sys.executable, launcher.script(STUBBORN))
    assert {job.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
    start = time.monotonic()
    job.send_signal(signal.SIGINT)
    assert "ending all ranks" in job.stderr.readline()
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=60)
    assert time.monotonic() - start < SOON_S
    assert job.returncode == 130
    assert launcher.processes() == []


@pytest.mark.parametrize("stubborn", [False, True], ids=["sleeping", "ignoring signals"])
def test_sigkill_of_the_launcher_ends_everything(launcher, stubborn):
    script = launcher.script(STUBBORN + "\n# marker")
    child = f"{sys.executable} {script}" if stubborn else "sleep 1000"
    job = launcher.start("-np", "2", "sh", "-c", f"{child} & {child}")
    launcher.wait_for(child.replace(" ", "\0"), 4)
    if stubborn:
        for _ in range(4):
            job.stdout.readline()
    job.kill()
    launcher.wait_for_none(SOON_S)


def test_sigkill_of_an_agent_ends_the_job(launcher):
    job = launcher.start("-np", "2", "sh", "-c", "sleep 1000 & sleep 1000")
    launcher.wait_for("sleep\x001000", 4)
    os.kill(launcher.processes("agent.py")[0], signal.SIGKILL)
    _, err = job.communicate(timeout=SOON_S)
    assert job.returncode == 137
    assert "SIGKILL" in err
    assert launcher.processes() == []


def test_a_closed_reader_ends_the_job(launcher):
    command = [sys.executable, "-m", "tfring.launch", "-np", "2", "yes"]
    job = subprocess.Popen(
        command, env=launcher.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    job.stdout.readline()
    job.stdout.close()
    err = job.stderr.read()
    assert job.wait(timeout=SOON_S) == 141
    assert "Traceback" not in err
    job.stderr.close()
    assert launcher.processes() == []


def test_command_not_found(launcher):
    job = launcher.run("-np", "2", "nosuchprogram", "x")
    assert job.returncode == 127
    assert job.stderr == "tfringrun: command not found on host localhost: nosuchprogram\n"


def test_a_script_that_is_not_executable(launcher):
    launcher.script("print(1)", "train.py")
    job = launcher.run("-np", "2", "./train.py")
    assert job.returncode == 126
    assert "python ./train.py" in job.stderr


def test_unknown_host_fails_before_the_start_timeout(launcher):
    start = time.monotonic()
    job = launcher.run("-np", "2", "--start-timeout", "90", "-H", "nosuch:2", "true")
    assert job.returncode == 255
    assert "nosuch" in job.stderr.splitlines()[-2]
    assert time.monotonic() - start < 45


def test_output_folder_that_cannot_be_made(launcher):
    (launcher.folder / "file").write_text("")
    job = launcher.run("-np", "2", "--output-filename", "file", "true")
    assert job.returncode == 2
    assert "--output-filename file" in job.stderr
    assert launcher.processes() == []
