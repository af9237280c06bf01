"""What ranks see of their place: identity on pretended hosts, thread budget, idle cost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Launcher
from .reports import PRELUDE, reports

pytestmark = pytest.mark.timeout(120)


def told(launcher: Launcher, ranks: int, program: str, *options: str) -> list[dict[str, Any]]:
    """Runs a job whose ranks report once; returns the reports in rank order."""
    command = [sys.executable, launcher.script(PRELUDE + program)]
    job = launcher.run("-np", str(ranks), *options, *command, timeout=100)
    assert job.returncode == 0, job.stderr
    return [reports(job.stdout, rank)[0] for rank in range(ranks)]


FOUR = """
import keras
import numpy as np
hvd.init()
keras.utils.set_random_seed(1)

class Rates(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seen = []
    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(round(float(self.model.optimizer.learning_rate.numpy()), 6))

def rates(first, last):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.4)), "mse")
    warmup, rates, x = hvd.callbacks.LearningRateWarmupCallback(0.4, 2), Rates(), np.ones((5, 1))
    model.fit(x, x, batch_size=1, initial_epoch=first, epochs=last, verbose=0,
              callbacks=[warmup, rates])
    return rates.seen

def reproducible():
    w = keras.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), reproducible=True)
    optimizer.apply([tf.constant([1e8, 1.0, -1e8, 2.0**-20][hvd.rank()])], [w])
    return float(w.numpy())

tell(
    local=[hvd.local_rank(), hvd.local_size()],
    cross=[hvd.cross_rank(), hvd.cross_size()],
    total=float(hvd.allreduce(float(hvd.rank()), op=hvd.Sum)),
    rows=hvd.allgather(tf.fill([hvd.rank(), 1], hvd.rank())).numpy().ravel().tolist(),
    warm=rates(0, 3),
    resumed=rates(3, 4),
    reproducible=reproducible(),
)
"""


def test_four_ranks_on_two_pretended_hosts(launcher: Launcher) -> None:
    ranks = told(launcher, 4, FOUR, "--pretend-hosts", "-H", "a,b,a,b")
    assert [rank["local"] for rank in ranks] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert [rank["cross"] for rank in ranks] == [[0, 2], [1, 2], [0, 2], [1, 2]]
    for rank in ranks:
        assert rank["total"] == 6.0
        assert rank["rows"] == [1, 2, 2, 3, 3, 3]
        assert [rank["warm"][i] for i in (0, 5, 10, 11)] == [0.1, 0.25, 0.4, 0.4]
        assert rank["resumed"] == [0.4] * 5
        # No sum over ranks or hosts in float32 comes out so.
        assert rank["reproducible"] == -(1 + 2.0**-20) / 4


@pytest.fixture
def two_cores() -> Iterator[None]:
    """What is started may use two processor cores, or the only one."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own)[:2])
    yield
    os.sched_setaffinity(0, own)


IDLE = """
import resource
hvd.init()

def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

def idle(seconds):
    before = used()
    time.sleep(seconds)
    return used() - before

hvd.allreduce(1.0)
cost = idle(5.0)
tf.linalg.matmul(tf.ones([500, 500]), tf.ones([500, 500]))
tell(idle=cost, threads=tf.config.threading.get_intra_op_parallelism_threads())
"""


@pytest.mark.alone
@pytest.mark.parametrize(("own", "threads"), [(None, 1), ("3", 3)], ids=["not set", "set to 3"])
def test_threads_and_idle_cost(
    launcher: Launcher, two_cores: None, own: str | None, threads: int
) -> None:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        launcher.env.pop(name, None)
    if own is not None:
        launcher.env["TF_NUM_INTRAOP_THREADS"] = own
    ranks = told(launcher, 2, IDLE)
    assert [rank["threads"] for rank in ranks] == [threads] * 2
    assert max(rank["idle"] for rank in ranks) < 0.1
