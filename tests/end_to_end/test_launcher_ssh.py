"""Other hosts. A small `ssh` put first in PATH runs the remote command here, apart from the
launcher's session and environment, as sshd does."""

from __future__ import annotations

import os
import signal
import sys

import pytest

pytestmark = pytest.mark.timeout(150)

FAKE_SSH = """#!{python}
import json, os, subprocess, sys
words = sys.argv[1:]
host = words[words.index("--") + 1]
command = words[words.index("--") + 2]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
if host == "down":
    print("ssh: connect to host down port 22: Connection refused", file=sys.stderr)
    sys.exit(255)
env = {{"PATH": os.environ["PATH"], "HOME": "/home/of/" + host, "{mark}": os.environ["{mark}"]}}
shell = subprocess.Popen(["sh", "-c", command], env=env, cwd="/", start_new_session=True)
code = shell.wait()
sys.exit(code if code >= 0 else 255)
"""


@pytest.fixture
def ssh_log(launcher):
    """Puts the pretended ssh first in PATH; returns the file of its calls."""
    folder = launcher.folder / "bin"
    folder.mkdir()
    log = launcher.folder / "ssh.log"
    path = folder / "ssh"
    path.write_text(FAKE_SSH.format(python=sys.executable, log=str(log), mark="TFRING_TEST_MARK"))
    path.chmod(0o755)
    launcher.env["PATH"] = f"{folder}{os.pathsep}{launcher.env['PATH']}"
    return log


def test_ranks_of_other_hosts_get_identity_environment_and_folder(launcher, ssh_log):
    launcher.env["MY_SETTING"] = "it's 7"
    script = launcher.script(
        "import os\n"
        "e = os.environ\n"
        "print(e['TFRING_HOSTNAME'], e['TFRING_LOCAL_RANK'], e['TFRING_CROSS_RANK'],"
        " e['HOME'] == '/home/of/' + e['TFRING_HOSTNAME'], e['MY_SETTING'], os.getcwd())\n"
    )
    job = launcher.run("-np", "3", "-H", "node1:2,node2:1", sys.executable, script)
    assert job.returncode == 0, job.stderr
    where = launcher.folder
    assert sorted(job.stdout.splitlines()) == [
        f"[0] node1 0 0 True it's 7 {where}",
        f"[1] node1 1 0 True it's 7 {where}",
        f"[2] node2 0 1 True it's 7 {where}",
    ]


def test_options_reach_ssh_and_the_secret_does_not(launcher, ssh_log):
    script = launcher.script("import os; print(os.environ['TFRING_SECRET'])")
    options = ["-p", "2222", "-i", "my key", "--start-timeout", "9", "-H", "node1"]
    job = launcher.run(*options, sys.executable, script)
    secret = job.stdout.split()[1]
    call = ssh_log.read_text()
    assert '"-p", "2222", "-i", "my key"' in call
    assert "ConnectTimeout=9" in call
    assert len(secret) == 64
    assert secret not in call


STORE = """
import os
from tfring.launch.rendezvous import StoreClient
env = os.environ
with StoreClient(env["TFRING_RENDEZVOUS"], env["TFRING_SECRET"]) as store:
    store.set("hello/" + env["TFRING_RANK"], b"x")
    print("met")
"""


def test_local_and_other_hosts_meet_in_the_store(launcher, ssh_log):
    launcher.env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, launcher.script(STORE)]
    job = launcher.run("-np", "2", "-H", "localhost:1,node1:1", *command)
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["[0] met", "[1] met"]


def test_a_crash_on_another_host(launcher, ssh_log):
    script = launcher.script(
        "import os, time\n"
        "if os.environ['TFRING_RANK'] == '1': raise ValueError('boom7')\n"
        "time.sleep(60)\n"
    )
    job = launcher.run("-np", "2", "-H", "node1,node2", sys.executable, script)
    assert job.returncode == 1
    assert "tfringrun: rank 1 on host node2 failed with exit code 1:" in job.stderr
    assert job.stderr.splitlines()[-1] == "[1] ValueError: boom7"
    assert launcher.processes() == []


def test_a_killed_worker_on_another_host_is_named(launcher, ssh_log):
    script = launcher.script("import os; os.kill(os.getpid(), 9)")
    job = launcher.run("-np", "1", "-H", "node1", sys.executable, script)
    assert job.returncode == 137
    assert "rank 0 on host node1 was killed by SIGKILL" in job.stderr


def test_a_host_that_is_down(launcher, ssh_log):
    job = launcher.run("-np", "2", "-H", "node1,down", "sleep", "1000")
    assert job.returncode == 255
    lines = job.stderr.splitlines()
    assert "rank 1 on host down" in lines[-2]
    assert "Connection refused" in lines[-1]
    assert launcher.processes() == []


def test_command_not_found_on_another_host(launcher, ssh_log):
    job = launcher.run("-np", "1", "-H", "node1", "nosuchprogram")
    assert job.returncode == 127
    assert "command not found on host node1: nosuchprogram" in job.stderr


def test_no_ssh_program(launcher):
    launcher.env["PATH"] = str(launcher.folder)
    job = launcher.run("-np", "1", "-H", "node1", "true")
    assert job.returncode == 127
    assert "rank 0 on host node1 could not be started" in job.stderr
    assert "ssh" in job.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_launcher_reaches_other_hosts(launcher, ssh_log, signum):
    job = launcher.start("-np", "2", "-H", "node1,node2", "sh", "-c", "sleep 1000 & sleep 1000")
    launcher.wait_for("sleep\x001000", 4)
    job.send_signal(signum)
    launcher.wait_for_none(30)


def test_sigkill_of_ssh_ends_the_job(launcher, ssh_log):
    job = launcher.start("-np", "2", "-H", "node1,node2", "sh", "-c", "sleep 1000 & sleep 1000")
    launcher.wait_for("sleep\x001000", 4)
    os.kill(launcher.processes("BatchMode")[0], signal.SIGKILL)
    job.communicate(timeout=30)
    assert job.returncode == 137
    launcher.wait_for_none(30)
