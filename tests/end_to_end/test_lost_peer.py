"""A rank is lost: the others hear of it as one kind of error, wherever they wait.

The clock is that of the machine, which all ranks share, and runs from the moment of the kill."""

from __future__ import annotations

import signal
import sys

import pytest

from .conftest import Launcher

pytestmark = pytest.mark.timeout(150)

WORKER = """
import os, pathlib, signal, sys, threading, time
import keras, numpy as np, tensorflow as tf
import tfring as hvd
hvd.init()
keras.utils.set_random_seed(1)
mode, stamp = sys.argv[1], pathlib.Path(sys.argv[2])
x = tf.ones([1 << 22])
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
model.compile(optimizer, "mse", jit_compile=mode == "compiled fit")
data = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")
steps = {
    "eager": lambda: hvd.allreduce(x),
    "graph": tf.function(lambda: hvd.allreduce(x)),
    "compiled": tf.function(lambda: hvd.allreduce(2.0 * x), jit_compile=True),
    "object": lambda: hvd.broadcast_object(1),
    "fit": lambda: model.fit(*data, verbose=0),
    "compiled fit": lambda: model.fit(*data, verbose=0),
}
step = steps[mode]
step()
def die():
    stamp.write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
if hvd.rank() == 1:
    threading.Timer(0.3, die).start()
try:
    while True:
        step()
except tf.errors.AbortedError as error:
    seconds = time.monotonic() - float(stamp.read_text())
    print("LOST", "rank 1" in error.message, seconds < 5 or seconds, flush=True)
begin = time.monotonic()
hvd.shutdown()
print("DOWN", time.monotonic() - begin < 5, flush=True)
"""


@pytest.mark.parametrize("mode", ["eager", "graph", "compiled", "object", "fit", "compiled fit"])
def test_the_error_names_the_rank_and_comes_soon(launcher: Launcher, mode: str) -> None:
    log = launcher.folder / "log"
    arguments = [launcher.script(WORKER), mode, str(launcher.folder / "stamp")]
    launcher.limits["FAILURE_GRACE_S"] = 60  # time for what rank 0 says
    job = launcher.run("-np", "2", "--output-filename", str(log), sys.executable, *arguments)
    assert job.returncode == 128 + signal.SIGKILL
    said = (log / "rank.0" / "stdout").read_text().splitlines()
    assert said == ["LOST True True", "DOWN True"], job.stderr
