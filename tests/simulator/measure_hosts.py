"""Measures allreduces between network namespaces whose links are limited, for the simulator to be
compared with: `python measure_hosts.py 200mbit 1gbit`. Needs root, iproute2 and tfring."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

SSH = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
host, command = words[words.index("--") + 1], words[words.index("--") + 2]
env = {{"PATH": os.environ["PATH"], "HOME": "/",
       "SSH_CONNECTION": "{network}.254 1 {network}." + host[-1] + " 22"}}
sys.exit(subprocess.call(["ip", "netns", "exec", host, "sh", "-c", command], env=env))
"""


def ip(command: str, program: str = "ip") -> None:
    """Runs one command of iproute2."""
    subprocess.run([program, *command.split()], check=True, capture_output=True)


@contextmanager
def network(count: int, rate: str) -> Iterator[tuple[list[str], str]]:
    """Hosts on a bridge, each behind a link of `rate` in both directions."""
    tag = uuid.uuid4().hex[:5]
    hosts = [f"{tag}h{number}" for number in range(1, count + 1)]
    address = f"10.204.{int(tag[:2], 16)}"
    # A queue that is long enough to lose nothing.
    limit = f"tbf rate {rate} burst 256kb limit 64mb"
    try:
        ip(f"link add b{tag} type bridge")
        ip(f"addr add {address}.254/24 dev b{tag}")
        ip(f"link set b{tag} up")
        for number, host in enumerate(hosts, start=1):
            ip(f"netns add {host}")
            ip(f"link add v{host} type veth peer name eth0 netns {host}")
            ip(f"link set v{host} master b{tag} up")
            ip(f"-n {host} addr add {address}.{number}/24 dev eth0")
            ip(f"-n {host} link set eth0 up")
            ip(f"-n {host} link set lo up")
            ip(f"qdisc add dev v{host} root {limit}", "tc")
            ip(f"-n {host} qdisc add dev eth0 root {limit}", "tc")
        yield hosts, address
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
        subprocess.run(["ip", "link", "del", f"b{tag}"], capture_output=True)


def measure(hosts: int, per_host: int, rate: str, sizes: list[int], rounds: int) -> str:
    """Returns the first rank's lines: bytes and median milliseconds."""
    with network(hosts, rate) as (names, address), tempfile.TemporaryDirectory() as folder:
        ssh = Path(folder, "ssh")
        ssh.write_text(SSH.format(python=sys.executable, network=address))
        ssh.chmod(0o755)
        places = ",".join(f"{name}:{per_host}" for name in names)
        work = [sys.executable, __file__, "--rank", "--rounds", str(rounds), *map(str, sizes)]
        command = [sys.executable, "-m", "tfring.launch", "-np", str(hosts * per_host)]
        env = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        job = subprocess.run(
            [*command, "-H", places, *work], env=env, capture_output=True, text=True, timeout=140
        )
    if job.returncode:
        raise RuntimeError(job.stderr)
    return job.stdout


def be_a_rank(sizes: list[int], rounds: int) -> None:
    """Reduces float32 vectors of these sizes, in bytes; the first rank prints the times."""
    from tfring.bench.contenders.engine import Engine
    from tfring.bench.problem import Problem

    engine = Engine()
    for size in sizes:
        problem = Problem("allreduce", "float32", (size // 4,), engine.rank, engine.size)
        prepared = engine.prepare("", problem, [np.ones(size // 4, np.float32)])
        call = prepared.call
        times = []
        for _ in range(rounds + 1):
            start = time.monotonic()
            call()
            times.append(time.monotonic() - start)
        if engine.rank == 0:
            print(size, round(1e3 * statistics.median(times[1:]), 2), flush=True)
    engine.close()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", action="store_true", help="be a rank of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**20, 2**22, 2**24, 2**26])
    parser.add_argument("words", nargs="*", metavar="RATE", help="as tc takes it: 1gbit")
    args = parser.parse_args()
    if args.rank:
        be_a_rank([int(word) for word in args.words], args.rounds)
        return
    for rate in args.words:
        for hosts in args.hosts:
            for line in measure(
                hosts, args.ranks_per_host, rate, args.sizes, args.rounds
            ).splitlines():
                print(rate, hosts, args.ranks_per_host, line.removeprefix("[0] "), flush=True)


if __name__ == "__main__":
    main()
