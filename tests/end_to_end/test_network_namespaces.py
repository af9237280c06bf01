"""Hosts that are really apart: network namespaces joined by a bridge. A small `ssh` put first in
PATH enters the namespace that has the host's name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from .conftest import MARK, Launcher, wait_until

pytestmark = [
    pytest.mark.alone,  # the networks of two at a time could have the same addresses
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="network namespaces need root and iproute2",
    ),
]

SSH = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
host, command = words[words.index("--") + 1], words[words.index("--") + 2]
number = host[-1]
env = {{"PATH": os.environ["PATH"], "HOME": "/", "{mark}": os.environ["{mark}"],
       "SSH_CONNECTION": "{network}.254 1 {network}." + number + " 22"}}
sys.exit(subprocess.call(["ip", "netns", "exec", host, "sh", "-c", command], env=env))
"""


class Network:
    """Two hosts on a network of their own."""

    def __init__(self) -> None:
        self.tag = uuid.uuid4().hex[:5]
        self.hosts = [f"{self.tag}h1", f"{self.tag}h2"]
        self.network = f"10.203.{int(self.tag[:2], 16)}"
        self.bridge = f"b{self.tag}"

    def ip(self, command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True, capture_output=True)

    def open(self) -> None:
        self.ip(f"link add {self.bridge} type bridge")
        self.ip(f"addr add {self.network}.254/24 dev {self.bridge}")
        self.ip(f"link set {self.bridge} up")
        for number, host in enumerate(self.hosts, start=1):
            self.ip(f"netns add {host}")
            self.ip(f"link add v{host} type veth peer name eth0 netns {host}")
            self.ip(f"link set v{host} master {self.bridge} up")
            self.ip(f"-n {host} addr add {self.network}.{number}/24 dev eth0")
            self.ip(f"-n {host} link set eth0 up")
            self.ip(f"-n {host} link set lo up")

    def cut(self, host: str) -> None:
        """Takes the host off the network without a word to anybody."""
        self.ip(f"link set v{host} down")

    def close(self) -> None:
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)


@pytest.fixture
def network(launcher: Launcher) -> Iterator[Network]:
    network = Network()
    try:
        network.open()
    except subprocess.CalledProcessError as error:
        network.close()
        pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
    folder = launcher.folder / "bin"
    folder.mkdir()
    path = folder / "ssh"
    path.write_text(SSH.format(python=sys.executable, mark=MARK, network=network.network))
    path.chmod(0o755)
    launcher.env["PATH"] = f"{folder}{os.pathsep}{launcher.env['PATH']}"
    yield network
    launcher.close()
    network.close()


REDUCE = """
import sys
import tensorflow as tf
import tfring as hvd
hvd.init()
value = hvd.allreduce(tf.fill([300_000], float(hvd.rank() + 1)), op=hvd.Sum)
rows = hvd.allgather(tf.fill([hvd.rank(), 2], hvd.rank()))
sent = hvd.world.stats().wire_bytes_sent > 0
print(hvd.rank(), hvd.local_rank(), hvd.cross_rank(), set(value.numpy()), len(rows), sent)
"""


def test_two_ranks_on_each_of_two_hosts(launcher: Launcher, network: Network) -> None:
    hosts = ",".join(f"{host}:2" for host in network.hosts)
    script = launcher.script(REDUCE)
    job = launcher.run("-np", "4", "-H", hosts, sys.executable, script, timeout=100)
    assert job.returncode == 0, job.stderr
    # Only the first rank of each host talks to the other host.
    assert sorted(job.stdout.splitlines()) == [
        "[0] 0 0 0 {np.float32(10.0)} 6 True",
        "[1] 1 1 0 {np.float32(10.0)} 6 False",
        "[2] 2 0 1 {np.float32(10.0)} 6 True",
        "[3] 3 1 1 {np.float32(10.0)} 6 False",
    ]


ENDLESS = """
import tensorflow as tf
import tfring as hvd
hvd.init()
for step in range(1_000_000):
    try:
        hvd.allreduce(tf.ones([1000]))
    except tf.errors.AbortedError as error:
        print("LOST", error.message, flush=True)
        raise
    if step == 10:
        print("running", flush=True)
"""


def test_host_that_vanishes_is_noticed(launcher: Launcher, network: Network) -> None:
    script = launcher.script(ENDLESS)
    hosts = ",".join(f"{host}:1" for host in network.hosts)
    log = launcher.folder / "log"
    job = launcher.start(
        "-np", "2", "--output-filename", str(log), "-H", hosts, sys.executable, script
    )
    first = log / "rank.0" / "stdout"
    wait_until(lambda: first.exists() and "running" in first.read_text(), 60, "a running job")
    network.cut(network.hosts[1])
    wait_until(lambda: "LOST" in first.read_text(), 15, "the loss noticed on rank 0")
    assert "rank 1" in first.read_text()
    job.send_signal(signal.SIGKILL)
