"""v1 scripts as they are written: without eager execution, or without anything of TensorFlow 2."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
import tfring as hvd

getattr(tf, sys.argv[1])()
passes, name = int(sys.argv[2]), sys.argv[3]
hvd.init()
random = np.random.default_rng(0)
data = random.normal(size=(4, 8, 3)).astype("float32")


def train(optimizer, feeds):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(hvd.rank())
        x = tf.placeholder(tf.float32, [None, 3])
        w = tf.get_variable("w", initializer=np.ones((3, 1), "float32") * (1 + hvd.rank()))
        step = tf.train.get_or_create_global_step()
        update = optimizer.minimize(tf.reduce_mean((x @ w - 1.0) ** 2), global_step=step)
        alike = hvd.broadcast_global_variables(0)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(alike)
        for feed in feeds:
            session.run(update, {x: feed})
        return session.run([w, step])


make = {"sgd": lambda: tf.train.GradientDescentOptimizer(0.1), "adam": tf.train.AdamOptimizer}[name]
half = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
optimizer = hvd.DistributedOptimizer(
    make(), backward_passes_per_step=passes, average_aggregated_gradients=True
)
w, step = train(optimizer, data[:, half])
whole, _ = train(make(), data.reshape(4 // passes, 8 * passes, 3))
np.testing.assert_allclose(w, whole, rtol=1e-5)
assert step == 4, step
assert hvd.allgather_object(hvd.rank()) == [0, 1]
"""

LOST = """
import os
import signal
import tensorflow.compat.v1 as tf
import tfring as hvd

tf.disable_eager_execution()
hvd.init()
w = tf.get_variable("w", initializer=1.0)
step = tf.train.get_or_create_global_step()
update = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1)).minimize(
    w * w, global_step=step
)
hooks = [hvd.BroadcastGlobalVariablesHook(0)]
with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
    while True:
        done = session.run([update, step])[1]
        if done == 3 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("mode", "optimizer", "passes"),
    [("disable_eager_execution", "sgd", 1), ("disable_v2_behavior", "adam", 2)],
)
def test_same_as_one_process(launcher: Any, mode: str, optimizer: str, passes: int) -> None:
    command = [sys.executable, launcher.script(SCRIPT), mode, str(passes), optimizer]
    job = launcher.run("-np", "2", *command, timeout=100)
    assert job.returncode == 0, job.stderr + job.stdout


def test_monitored_session_ends_when_a_peer_is_lost(launcher: Any) -> None:
    """TensorFlow alone would start the session anew for ever."""
    job = launcher.run("-np", "2", sys.executable, launcher.script(LOST), timeout=100)
    assert job.returncode != 0
    assert "rank 1" in job.stderr
