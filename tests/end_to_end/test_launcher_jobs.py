"""What a healthy job gets, prints and leaves behind; workers need no TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import wait_until

pytestmark = pytest.mark.timeout(150)

SHOW = """
import json, os, sys
names = sys.argv[1:]
print(json.dumps([os.environ.get(name) for name in names]))
"""


def shown(job):
    """The JSON that each rank printed, in rank order."""
    lines = sorted(line.split(" ", 1) for line in job.stdout.splitlines())
    return [json.loads(text) for _, text in lines]


def test_a_program_that_is_not_python(launcher):
    job = launcher.run("-np", "2", "hostname")
    name = socket.gethostname()
    assert (job.returncode, job.stderr) == (0, "")
    assert sorted(job.stdout.splitlines()) == [f"[0] {name}", f"[1] {name}"]


def test_arguments_reach_the_command_untouched(launcher):
    script = launcher.script("import sys; print(sys.argv[1:])")
    job = launcher.run("-np", "1", sys.executable, script, "a b", "$HOME", "*", "--np", "'\"", "")
    assert job.stdout == "[0] " + str(["a b", "$HOME", "*", "--np", "'\"", ""]) + "\n"


@pytest.mark.parametrize("family", ["TFRING", "HOROVOD"])
def test_identity(launcher, family):
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
    script = launcher.script(SHOW)
    command = [sys.executable, script, *(f"{family}_{name}" for name in names)]
    job = launcher.run("-np", "2", *command)
    assert shown(job) == [
        ["0", "2", "0", "2", "0", "1", "localhost"],
        ["1", "2", "1", "2", "0", "1", "localhost"],
    ]


def test_pretended_hosts(launcher):
    names = ["TFRING_LOCAL_RANK", "TFRING_LOCAL_SIZE", "TFRING_CROSS_RANK", "TFRING_HOSTNAME"]
    command = [sys.executable, launcher.script(SHOW), *names]
    job = launcher.run("-np", "4", "--pretend-hosts", "-H", "a,b,a,b", *command)
    assert shown(job) == [
        ["0", "2", "0", "a"],
        ["0", "2", "1", "b"],
        ["1", "2", "0", "a"],
        ["1", "2", "1", "b"],
    ]


def test_hostfile(launcher):
    (launcher.folder / "hosts").write_text("# here\nlocalhost slots=3\n")
    job = launcher.run("--hostfile", "hosts", sys.executable, launcher.script(SHOW), "TFRING_SIZE")
    assert shown(job) == [["3"]] * 3


def test_each_job_has_its_own_secret_and_no_command_line_shows_it(launcher):
    program = "import os, time; print(os.environ['TFRING_SECRET'], flush=True); time.sleep(60)"
    script = launcher.script(program)
    job = launcher.start("-np", "1", sys.executable, script)
    secret = job.stdout.readline().split()[1]
    pids = launcher.processes()
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]
    job.send_signal(signal.SIGTERM)
    assert len(bytes.fromhex(secret)) == 32
    assert len(pids) == 3
    assert not any(secret in command for command in commands)


THREADS = ["TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"]


def test_threads_are_shared_out(launcher):
    for name in THREADS:
        launcher.env.pop(name, None)
    job = launcher.run("-np", "2", sys.executable, launcher.script(SHOW), *THREADS)
    budget = max(1, len(os.sched_getaffinity(0)) // 2)
    assert shown(job) == [[str(budget), str(max(2, budget)), str(budget)]] * 2


def test_a_users_own_threads_are_kept(launcher):
    launcher.env.update(dict.fromkeys(THREADS, "5"))
    job = launcher.run("-np", "2", sys.executable, launcher.script(SHOW), *THREADS)
    assert shown(job) == [["5", "5", "5"]] * 2


def test_tuning_flags_win_over_the_environment(launcher):
    launcher.env["TFRING_FUSION_THRESHOLD"] = "1"
    names = ["TFRING_FUSION_THRESHOLD", "TFRING_START_TIMEOUT"]
    flags = ["--fusion-threshold-mb", "2", "--start-timeout", "7"]
    job = launcher.run("-np", "1", *flags, sys.executable, launcher.script(SHOW), *names)
    assert shown(job) == [["2097152", "7"]]


def test_a_flag_without_effect_says_so_in_one_line(launcher):
    job = launcher.run("-np", "1", "--cycle-time-ms", "5", "true")
    assert job.returncode == 0
    assert len(job.stderr.splitlines()) == 1
    assert "--cycle-time-ms has no effect" in job.stderr


def test_stdout_and_stderr_stay_apart(launcher):
    script = launcher.script("import sys; print('out'); print('err', file=sys.stderr)")
    job = launcher.run("-np", "1", sys.executable, script)
    assert (job.stdout, job.stderr) == ("[0] out\n", "[0] err\n")


def test_every_byte_survives(launcher):
    program = (
        "import os\n"
        "os.write(1, b'z' * 300000 + b'\\n')\n"
        "os.write(1, bytes(range(128, 256)) + b'\\0\\n')\n"
        "os.write(1, b'no newline')\n"
    )
    script = launcher.script(program)
    launcher.run("-np", "1", "--output-filename", "logs", sys.executable, script)
    expected = b"z" * 300000 + b"\n" + bytes(range(128, 256)) + b"\0\nno newline"
    assert (launcher.folder / "logs/rank.0/stdout").read_bytes() == expected
    command = [sys.executable, "-m", "tfring.launch", "-np", "1", sys.executable, script]
    seen = subprocess.run(command, env=launcher.env, capture_output=True, timeout=100).stdout
    assert seen == b"".join(b"[0] " + line + b"\n" for line in expected.split(b"\n"))


def test_lines_of_ranks_do_not_mix(launcher):
    script = launcher.script(
        "import os\nrank = os.environ['TFRING_RANK']\nfor i in range(2000): print(rank * 50, i)\n"
    )
    job = launcher.run("-np", "3", sys.executable, script)
    lines = job.stdout.splitlines()
    for rank in "012":
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] {rank * 50} {i}" for i in range(2000)]
    assert len(lines) == 6000


def test_output_files(launcher):
    script = launcher.script(
        "import os, sys\n"
        "print('out', os.environ['TFRING_RANK'])\n"
        "print('err', os.environ['TFRING_RANK'], file=sys.stderr)\n"
    )
    launcher.run("-np", "2", "--output-filename", "a/b", sys.executable, script)
    folder = launcher.folder / "a" / "b"
    texts = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("std*")}
    assert texts == {
        "rank.0/stdout": "out 0\n",
        "rank.0/stderr": "err 0\n",
        "rank.1/stdout": "out 1\n",
        "rank.1/stderr": "err 1\n",
    }


def test_timestamps(launcher):
    job = launcher.run("-np", "1", "--prefix-output-with-timestamp", "echo", "x")
    stamp, prefix, text = job.stdout.split()
    assert (stamp[4], stamp[10], prefix, text) == ("-", "T", "[0]", "x")


def test_standard_input_is_empty(launcher):
    script = launcher.script("import sys; print(repr(sys.stdin.read()))")
    job = launcher.run("-np", "2", sys.executable, script)
    assert sorted(job.stdout.splitlines()) == ["[0] ''", "[1] ''"]


def test_verbose_tells_each_rank(launcher):
    job = launcher.run("-np", "2", "--verbose", "true")
    for rank in (0, 1):
        assert f"started rank {rank} on host localhost" in job.stderr
        assert f"rank {rank} ended with exit code 0" in job.stderr


def test_a_child_left_behind_by_a_good_worker_is_ended(launcher):
    job = launcher.run("-np", "1", "sh", "-c", "setsid sleep 1000 & sleep 0.1; echo done")
    assert (job.returncode, job.stdout) == (0, "[0] done\n")
    launcher.wait_for_none(30)


def test_a_grandchild_in_a_session_of_its_own_is_ended(launcher):
    job = launcher.start("-np", "1", "sh", "-c", "(setsid sleep 1000 &) & sleep 1000")
    launcher.wait_for("sleep\x001000", 2)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=30)
    assert launcher.processes() == []


@pytest.mark.alone
def test_idle_costs_nothing(launcher):
    job = launcher.start("-np", "2", "sh", "-c", "exec sleep 1000")
    launcher.wait_for("sleep\x001000", 2)
    pids = [job.pid, *launcher.processes("agent.py")]
    assert len(pids) == 3

    def one_second() -> int:
        before = ticks(pids)
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(timeout=1)
        return ticks(pids) - before

    # On a busy machine they may still have something to do from their start.
    wait_until(lambda: one_second() <= 1, 60, "an idle second")


def ticks(pids):
    """Processor time of processes, in hundredths of a second."""
    stats = [Path(f"/proc/{pid}/stat").read_text().split() for pid in pids]
    return sum(int(stat[13]) + int(stat[14]) for stat in stats)


def test_check_build(launcher):
    job = launcher.run("--check-build", timeout=140)
    assert job.returncode == 0
    assert "tfring" in job.stdout
    assert "[X] libtfring.so" in job.stdout
    assert "] kernels for GPUs" in job.stdout
    assert "cannot be used" not in job.stdout
