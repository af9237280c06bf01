"""A rank is lost: the others hear of it as one kind of error, wherever they wait."""

from __future__ import annotations

import sys

import pytest

from .conftest import Launcher

pytestmark = pytest.mark.timeout(150)

WORKER = """
import os, sys, time
import keras, numpy as np, tensorflow as tf
import tfring as hvd
hvd.init()
keras.utils.set_random_seed(1)
mode = sys.argv[1]
x = tf.ones([1000])
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
model.compile(optimizer, "mse", jit_compile=mode == "compiled fit")
data = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")
steps = {
    "eager": lambda: hvd.allreduce(x),
    "graph": tf.function(lambda: hvd.allreduce(x)),
    "compiled": tf.function(lambda: hvd.allreduce(x), jit_compile=True),
    "object": lambda: hvd.broadcast_object(1),
    "fit": lambda: model.fit(*data, verbose=0),
    "compiled fit": lambda: model.fit(*data, verbose=0),
}
step = steps[mode]
step()
if hvd.rank() == 1:
    os._exit(7)
begin = time.monotonic()
try:
    for _ in range(100):
        step()
except tf.errors.AbortedError as error:
    print("LOST", "rank 1" in error.message, time.monotonic() - begin < 20, flush=True)
begin = time.monotonic()
hvd.shutdown()
print("DOWN", time.monotonic() - begin < 20, flush=True)
"""


@pytest.mark.parametrize("mode", ["eager", "graph", "compiled", "object", "fit", "compiled fit"])
def test_the_error_names_the_rank_and_comes_soon(launcher: Launcher, mode: str) -> None:
    log = launcher.folder / "log"
    script = launcher.script(WORKER)
    launcher.limits["FAILURE_GRACE_S"] = 60  # time for what rank 0 says
    job = launcher.run("-np", "2", "--output-filename", str(log), sys.executable, script, mode)
    assert job.returncode == 7
    said = (log / "rank.0" / "stdout").read_text().splitlines()
    assert said == ["LOST True True", "DOWN True"], job.stderr
