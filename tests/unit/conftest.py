"""One process, one rank: no launcher, no peers."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import tensorflow as tf

import tfring as hvd

# Simulated ranks wait for each other inside of ops, several at a time.
INTER_OP_THREADS = 16


def pytest_configure(config: pytest.Config) -> None:
    tf.config.threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)


def pytest_collection_finish() -> None:
    # TensorFlow and Keras are a million objects; looking at them takes most of each collection.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes away what a launcher or a user's shell may have set."""
    for name in list(os.environ):
        if name.startswith(("TFRING_", "HOROVOD_")):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_world() -> Iterator[None]:
    """Closes a world that a test or an example has left open: the next may expect none."""
    yield
    if hvd.is_initialized():
        hvd.shutdown()


@pytest.fixture
def world(no_launcher: None) -> Iterator[None]:
    """A world of one rank during the test."""
    hvd.init()
    yield
    hvd.shutdown()
