"""Hosts that are really apart: network namespaces joined by a bridge. A small `ssh` put first in
PATH enters the namespace that has the host's name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from .conftest import MARK, Launcher, wait_until
from .namespaces import Bridge

pytestmark = [
    pytest.mark.alone,  # the networks of two at a time could have the same addresses
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="network namespaces need root and iproute2",
    ),
]


@pytest.fixture
def network(launcher: Launcher) -> Iterator[Bridge]:
    network = Bridge(2)
    try:
        network.open()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
    folder = launcher.folder / "bin"
    folder.mkdir()
    launcher.env["PATH"] = network.put_ssh(folder, [MARK])
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


def test_two_ranks_on_each_of_two_hosts(launcher: Launcher, network: Bridge) -> None:
    hosts = ",".join(f"{host}:2" for host in network.names)
    script = launcher.script(REDUCE)
    job = launcher.run("-np", "4", "-H", hosts, sys.executable, script, timeout=100)
    assert job.returncode == 0, job.stderr
    # The ranks of a host take turns at talking to the other host.
    assert sorted(job.stdout.splitlines()) == [
        "[0] 0 0 0 {np.float32(10.0)} 6 True",
        "[1] 1 1 0 {np.float32(10.0)} 6 True",
        "[2] 2 0 1 {np.float32(10.0)} 6 True",
        "[3] 3 1 1 {np.float32(10.0)} 6 True",
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


def test_host_that_vanishes_is_noticed(launcher: Launcher, network: Bridge) -> None:
    script = launcher.script(ENDLESS)
    hosts = ",".join(f"{host}:1" for host in network.names)
    log = launcher.folder / "log"
    job = launcher.start(
        "-np", "2", "--output-filename", str(log), "-H", hosts, sys.executable, script
    )
    first = log / "rank.0" / "stdout"
    wait_until(lambda: first.exists() and "running" in first.read_text(), 60, "a running job")
    network.cut(2)
    wait_until(lambda: "LOST" in first.read_text(), 15, "the loss noticed on rank 0")
    assert "rank 1" in first.read_text()
    job.send_signal(signal.SIGKILL)
