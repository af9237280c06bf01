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
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from namespaces import Bridge


def measure(hosts: int, per_host: int, rate: str, sizes: list[int], rounds: int) -> str:
    """Returns the first rank's lines: bytes and median milliseconds."""
    with Bridge(hosts, rate) as bridge, tempfile.TemporaryDirectory() as folder:
        places = ",".join(f"{name}:{per_host}" for name in bridge.names)
        work = [sys.executable, __file__, "--rank", "--rounds", str(rounds), *map(str, sizes)]
        command = [sys.executable, "-m", "tfring.launch", "-np", str(hosts * per_host)]
        env = os.environ | {"PATH": bridge.put_ssh(Path(folder), [])}
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
