"""A job is killed while it saves, is started again, and ends as if nothing had happened."""

from __future__ import annotations

import sys

import pytest

from .conftest import Launcher

pytestmark = pytest.mark.timeout(150)

WORKER = """
import os, pathlib, signal, sys
import keras, numpy as np
import tfring.keras as hvd
from tfring.checkpoints import _files

hvd.init()
folder = pathlib.Path(sys.argv[1])
x = np.random.default_rng(hvd.rank()).normal(size=(6, 4)).astype("float32")


def train(callbacks):
    keras.utils.set_random_seed(1 + hvd.rank())
    layers = [keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    adam = keras.optimizers.Adam(0.05)
    model.compile(hvd.DistributedOptimizer(adam, backward_passes_per_step=2), "mse")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callbacks = [first, hvd.callbacks.MetricAverageCallback(), *callbacks]
    history = model.fit(
        x, x[:, :1], batch_size=2, epochs=3, shuffle=False, callbacks=callbacks, verbose=0
    )
    values = [v.numpy().tobytes() for v in [*model.variables, *adam.variables]]
    return values, history.history


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if hvd.rank() == 0 and self.model.optimizer.iterations.numpy() == 2:
            def die(array):
                sys.stdout.write("KILLED\\n"), sys.stdout.flush()
                os.kill(os.getpid(), signal.SIGKILL)

            _files.np.lib.format.write_array = lambda *args, **kwargs: die(args)


saved = hvd.callbacks.TrainingCheckpoint(folder, every=1)
if sys.argv[2] == "first":
    train([saved, Kill()])
else:
    resumed = train([saved])
    print("FROM", saved.first_epoch, saved.first_step, flush=True)
    print("SAME", resumed == train([]), flush=True)
"""


def test_killed_while_saving_and_started_again(launcher: Launcher) -> None:
    script, folder = launcher.script(WORKER), launcher.folder / "saved"
    logs = launcher.folder / "log"

    def run(which: str) -> tuple[int, str]:
        job = ["-np", "2", "--output-filename", str(logs), sys.executable, script, str(folder)]
        done = launcher.run(*job, which, timeout=70)
        return done.returncode, (logs / "rank.1" / "stdout").read_text() + done.stderr

    code, _ = run("first")
    assert code != 0
    assert "KILLED" in (logs / "rank.0" / "stdout").read_text()
    torn = [path.name for path in folder.glob(".tmp-*")]
    assert len(torn) == 1, "killed in the middle of writing"
    code, said = run("second")
    assert code == 0, said
    # The second update is that of the first epoch's fourth batch, so of the second epoch's first.
    assert said.splitlines()[:2] == ["FROM 1 0", "SAME True"]
    assert list(folder.glob(".tmp-*")) == []
