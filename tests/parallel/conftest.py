"""Runs under `tfringrun -np N pytest tests/parallel`: every rank runs every test.

A test that fails on one rank would leave the others waiting for it. So the failing rank ends the
job at once: its traceback is printed, and the other ranks' errors name it.
"""

from __future__ import annotations

import gc
import os

import pytest
import tensorflow as tf

import tfring as hvd
from tfring import errors, world

INTER_OP_THREADS = 4


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ranks(n): needs exactly n ranks, skipped with others")
    config.addinivalue_line("markers", "many_ranks: needs at least 2 ranks")
    tf.config.threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)
    # Also for tests that call init themselves.
    os.environ["TFRING_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init()


def pytest_unconfigure(config: pytest.Config) -> None:
    hvd.shutdown()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        exact = item.get_closest_marker("ranks")
        if exact is not None and exact.args[0] != hvd.size():
            item.add_marker(pytest.mark.skip(reason=f"needs {exact.args[0]} ranks"))
        if item.get_closest_marker("many_ranks") and hvd.size() == 1:
            item.add_marker(pytest.mark.skip(reason="needs at least 2 ranks"))


def pytest_collection_finish() -> None:
    # TensorFlow and Keras are a million objects; looking at them takes most of each collection.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.failed:
        # Ranks are in step only while all succeed.
        item.session.shouldfail = f"{item.nodeid} failed"
        error = call.excinfo.value if call.excinfo else None
        if not errors.is_communication_error(error):
            first_line = str(error).splitlines()[0] if str(error) else ""
            world.fail(f"{item.nodeid}: {type(error).__name__}: {first_line}")
    return report


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random numbers on all ranks, whatever ran before."""
    tf.random.set_seed(7)
