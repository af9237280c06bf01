"""One rank: trains as the benchmark says over a local socket; between its turns it sleeps.

One process runs the plain model and the one with the distributed optimizer in turn, so that both
have the same threads, memory and data. Keras' `fit` does the steps.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfring
import tfring.keras as hvd
from tfring import _records, world
from tfring.bench.train import parts
from tfring.bench.train.models import recipe
from tfring.bench.train.rounds import UNCOUNTED_STEPS
from tfring.version import __version__

_CAPACITY = 100_000


class _Clock(keras.callbacks.Callback):
    """Notes when each step begins, and the processor time until then, in nanoseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: list[int] = []
        self.processor: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begins.append(time.monotonic_ns())
        self.processor.append(time.process_time_ns())


class Trainee:
    """One model, plain and distributed."""

    def __init__(self, name: str, batch: int | None, xla: bool) -> None:
        """Builds both and runs their first steps.

        Args:
            name: of the model.
            batch: examples per rank, None for the model's own number.
            xla: whether XLA compiles the steps.
        """
        made = recipe(name)
        self.batch = batch or made.batch
        random = np.random.default_rng(world.rank())
        data = made.data(self.batch, random)
        self._data = tf.data.Dataset.from_tensors(data).repeat()
        self._models = {}
        for way in ("plain", "distributed"):
            keras.utils.set_random_seed(1)
            model = made.build()
            optimizer = keras.optimizers.Adam(1e-4)
            if way == "distributed":
                optimizer = hvd.DistributedOptimizer(optimizer)
            model.compile(
                optimizer,
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                jit_compile=xla,
            )
            self._models[way] = model
            self._train(way, 3)
        self.parameters = self._models["plain"].count_params()

    def turn(self, way: str, steps: int) -> dict[str, Any]:
        """Runs steps; the first and the last are not counted.

        Returns:
            Seconds of each step, the mean processor time of a step, of all threads, and, if
            distributed, its mean parts.
        """
        distributed = way == "distributed"
        recording = _records.Recording(_CAPACITY) if distributed else None
        clock = self._train("distributed" if distributed else "plain", steps + UNCOUNTED_STEPS)
        pairs = list(itertools.pairwise(clock.begins[1:]))
        answer: dict[str, Any] = {
            "seconds": [(end - begin) / 1e9 for begin, end in pairs],
            "processor": (clock.processor[-1] - clock.processor[1]) / 1e9 / len(pairs),
        }
        if recording is not None:
            records = recording.stop()
            split = [parts.split(begin, end, records, world.rank()) for begin, end in pairs]
            answer["parts"] = vars(parts.mean(split))
        return answer

    def exchange(self, calls: int) -> dict[str, Any]:
        """Averages tensors as large as the gradients, with nothing else to do.

        Returns:
            Seconds of each call but the first.
        """
        variables = self._models["plain"].trainable_variables
        tensors = [tf.zeros(variable.shape) for variable in variables]
        stamps = []
        for _ in range(calls + 2):
            stamps.append(time.monotonic_ns())
            tfring.grouped_allreduce(tensors, name="exchange")
        return {"seconds": [(b - a) / 1e9 for a, b in itertools.pairwise(stamps[1:])]}

    def _train(self, way: str, steps: int) -> _Clock:
        clock = _Clock()
        self._models[way].fit(
            self._data, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[clock]
        )
        return clock


def main(arguments: list[str]) -> int:
    """Runs `worker KIND SOCKET` until the benchmark says end, or is gone."""
    _, address = arguments
    hvd.init()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        stream = connection.makefile("rw", encoding="utf-8", newline="\n")
        title = f"tfring {__version__}, TensorFlow {tf.__version__}, Keras {keras.__version__}"
        _send(stream, size=hvd.size(), title=title)
        _serve(stream)
    hvd.shutdown()
    return 0


def _serve(stream: Any) -> None:
    trainee = None
    for line in stream:
        message = json.loads(line)
        if message["do"] == "end":
            return
        if message["do"] == "prepare":
            trainee = None
            keras.backend.clear_session(free_memory=True)
            trainee = Trainee(message["model"], message["batch"], message["xla"])
            _send(stream, parameters=trainee.parameters, batch=trainee.batch)
        elif message.get("way") == "alone" and hvd.rank() > 0:
            _send(stream)  # sleeps while rank 0 has the machine
        elif message["do"] == "exchange":
            assert trainee is not None
            _send(stream, **trainee.exchange(message["calls"]))
        else:
            assert trainee is not None
            _send(stream, **trainee.turn(message["way"], message["steps"]))


def _send(stream: Any, **message: Any) -> None:
    stream.write(json.dumps({"rank": hvd.rank(), **message}) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
