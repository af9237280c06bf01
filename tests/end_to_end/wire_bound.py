"""How near an allreduce between hosts comes to the bound of the wire.

The least that each of H hosts must send is 2(H-1)/H of the bytes; on a link of a given rate that
takes at least so long. To measure on hosts joined by a slow network (root, no TensorFlow):

    python tests/end_to_end/wire_bound.py --hosts 2 3 4 --mbits 1000 --delay-ms 1 --mib 64

Without a limit, hosts are pretended on this one and nothing is needed. Numbers of leaders are
compared in turns; what one processor cannot show is how the work of the busiest rank shrinks:

    python tests/end_to_end/wire_bound.py --mbits 0 --hosts 2 --ranks-per-host 4 --leaders 1 2 4
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    from slow_network import PAYLOAD_SHARE, SlowNetwork
else:
    from .slow_network import PAYLOAD_SHARE, SlowNetwork

_PORT = 29400
_SECRET = "of the measurement"


@dataclasses.dataclass(frozen=True)
class Question:
    """What to measure: a sum of float32."""

    hosts: int
    ranks_per_host: int = 1
    mbits: float = 1000.0
    delay_ms: float = 1.0
    mib: float = 64.0
    rounds: int = 3
    warmups: int = 1
    leaders: int = 0  # of each host; 0: as many as the engine chooses

    @property
    def bound_s(self) -> float:
        """What the wire allows; 0: there is no limit."""
        if self.mbits == 0:
            return 0.0
        payload = 2 * (self.hosts - 1) / self.hosts * self.mib * 2**20
        return payload * 8 / (self.mbits * 1e6 * PAYLOAD_SHARE)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Seconds of the median round, the bound's share of them, bytes that each host sent, seconds
    of processor time that a round took of the rank that worked most."""

    seconds: float
    share: float
    sent: list[int]
    busiest: float


class Pretended(contextlib.nullcontext[None]):
    """Hosts by name only."""

    def name(self, host: int) -> str:
        """The name of a host."""
        return f"pretended{host}"

    def address(self, host: int) -> str:
        """The address of a host."""
        return "127.0.0.1"

    def inside(self, host: int, *argv: str) -> list[str]:
        """The command line that runs `argv` on a host."""
        return list(argv)


def measure(question: Question, timeout: float = 100) -> Answer:
    """Runs the job on hosts of its own; rank 0 also serves the store."""
    network: SlowNetwork | Pretended = Pretended()
    if question.mbits:
        network = SlowNetwork(question.hosts, question.mbits * 1e6, question.delay_ms / 1e3)
    with network:
        jobs = []
        for rank in range(question.hosts * question.ranks_per_host):
            host = rank // question.ranks_per_host + 1
            argv = network.inside(host, sys.executable, __file__, "--worker")
            env = {
                **os.environ,
                "TFRING_RANK": str(rank),
                "TFRING_SIZE": str(question.hosts * question.ranks_per_host),
                "TFRING_HOSTNAME": network.name(host),
                "TFRING_RENDEZVOUS": f"{network.address(1)}:{_PORT}",
                "TFRING_SECRET": _SECRET,
                "TFRING_JOB_ID": "wire",
                "TFRING_HOST_LEADERS": str(question.leaders),
                "WIRE_QUESTION": json.dumps(dataclasses.asdict(question)),
            }
            jobs.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True))
        try:
            texts = [job.communicate(timeout=timeout)[0] for job in jobs]
        finally:
            for job in jobs:
                job.kill()
    reports = [json.loads(text.splitlines()[-1]) for text in texts]
    rounds = zip(*(report["seconds"] for report in reports), strict=True)
    seconds = statistics.median(max(one) for one in rounds)
    each = question.ranks_per_host
    sent = [
        sum(report["sent"] for report in reports[first : first + each])
        for first in range(0, len(reports), each)
    ]
    busiest = max(report["processor"] for report in reports)
    return Answer(seconds, question.bound_s / seconds, sent, busiest)


def _worker() -> None:
    """One rank: reduces the vector so many times, tells how long it took."""
    from ctypes import byref, c_int32, c_void_p

    import numpy as np

    from tfring import _native
    from tfring.bench.contenders.engine import Engine
    from tfring.bench.problem import Problem

    question = Question(**json.loads(os.environ["WIRE_QUESTION"]))
    if os.environ["TFRING_RANK"] == "0":
        server, port = c_void_p(), c_int32()
        _native.call("tfr_store_serve", b"", _PORT, _SECRET.encode(), byref(server), byref(port))
    engine = Engine()
    vector = np.ones(int(question.mib * 2**18), np.float32)
    problem = Problem("allreduce", "float32", (vector.size,), engine.rank, engine.size)
    reduce = engine.prepare("flat", problem, [vector]).call

    def sent() -> int:
        stats = _native.Stats()
        engine._engine.tfr_world_stats(engine._world, byref(stats))
        return int(stats.wire_bytes_sent)

    for _ in range(question.warmups):
        reduce()
    before, busy, seconds = sent(), time.process_time(), []
    for _ in range(question.rounds):
        start = time.perf_counter()
        reduce()
        seconds.append(time.perf_counter() - start)
    busy = (time.process_time() - busy) / question.rounds
    right = float(engine.size) ** (question.warmups + question.rounds)
    assert (vector == right).all(), "wrong sum"
    mean = (sent() - before) // question.rounds
    report = {"seconds": seconds, "sent": mean, "processor": busy}
    print(json.dumps(report), flush=True)
    engine.close()


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--mbits", type=float, default=1000.0)
    parser.add_argument("--delay-ms", type=float, default=1.0)
    parser.add_argument("--mib", type=float, default=64.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--leaders", type=int, nargs="+", default=[0], help="0: as chosen")
    parser.add_argument("--turns", type=int, default=1, help="jobs of each kind")
    arguments = vars(parser.parse_args())
    turns = range(arguments.pop("turns"))
    for hosts in arguments.pop("hosts"):
        questions = [
            Question(**{**arguments, "hosts": hosts, "leaders": leaders})
            for leaders in arguments["leaders"]
        ]
        answers = [[measure(question) for question in questions] for _ in turns]
        for question, turn in zip(questions, zip(*answers, strict=True), strict=True):
            _show(question, turn)


def _show(question: Question, answers: tuple[Answer, ...]) -> None:
    seconds = statistics.median(answer.seconds for answer in answers)
    busiest = statistics.median(answer.busiest for answer in answers)
    bound = f", {question.bound_s / seconds:.1%} of the bound" if question.mbits else ""
    print(
        f"{question.hosts} hosts, {question.ranks_per_host} ranks each, "
        f"{question.leaders or 'default'} leaders, {question.mib:g} MiB: "
        f"{seconds * 1e3:.1f} ms{bound}; busiest rank {busiest * 1e3:.1f} ms; "
        f"sent by each host: {answers[0].sent}",
        flush=True,
    )


if __name__ == "__main__":
    _worker() if sys.argv[1:] == ["--worker"] else _main()
