from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _ops
from tfring.errors import CommunicationError

QUESTIONS = [
    hvd.rank,
    hvd.size,
    hvd.local_rank,
    hvd.local_size,
    hvd.cross_rank,
    hvd.cross_size,
    hvd.is_homogeneous,
    hvd.stats,
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda f: f.__name__)
def test_question_before_init_is_told(question) -> None:
    with pytest.raises(hvd.NotInitializedError, match=r"call tfring.init\(\) first"):
        question()


@pytest.mark.parametrize(
    "collective",
    [
        lambda: hvd.allreduce(1.0),
        lambda: hvd.grouped_allreduce([]),
        lambda: hvd.allgather([1.0]),
        lambda: hvd.broadcast(1.0, 0),
        lambda: hvd.barrier(),
        lambda: hvd.broadcast_object(1),
        lambda: hvd.allgather_object(1),
        lambda: hvd.broadcast_variables([], 0),
    ],
)
def test_collective_before_init_is_told(collective) -> None:
    with pytest.raises(hvd.NotInitializedError, match=r"call tfring.init\(\) first"):
        collective()


def test_world_of_one(world: None) -> None:
    answers = [question() for question in QUESTIONS[:-1]]
    assert answers == [0, 1, 0, 1, 0, 1, True]


def test_init_twice_does_nothing(world: None) -> None:
    hvd.init(start_timeout=5)
    assert hvd.size() == 1


def test_shutdown_is_idempotent_and_init_may_follow() -> None:
    for _ in range(3):
        hvd.init()
        assert hvd.is_initialized()
        assert float(hvd.allreduce(2.0)) == 2.0
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()


def test_excepthook_is_given_back() -> None:
    before = sys.excepthook
    hvd.init()
    assert sys.excepthook is not before
    hvd.shutdown()
    assert sys.excepthook is before


def test_bad_argument_joins_nothing() -> None:
    with pytest.raises(ValueError, match="`start_timeout` must be"):
        hvd.init(start_timeout=-1)
    assert not hvd.is_initialized()


def test_nobody_to_meet_is_a_communication_error(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = {"RANK": "1", "SIZE": "2", "RENDEZVOUS": "127.0.0.1:1", "SECRET": "s"}
    for name, value in worker.items():
        monkeypatch.setenv(f"TFRING_{name}", value)
    with pytest.raises(CommunicationError, match=r"127\.0\.0\.1:1"):
        hvd.init(start_timeout=0.5)
    assert not hvd.is_initialized()


def test_stats_count_collectives(world: None) -> None:
    before = hvd.stats()
    hvd.grouped_allreduce([tf.ones([4]), tf.ones([2], tf.float64)])
    after = hvd.stats()
    assert after.collectives - before.collectives == 1
    assert after.tensors - before.tensors == 2
    assert after.payload_bytes - before.payload_bytes == 4 * 4 + 2 * 8


@pytest.mark.parametrize(
    ("compression", "bytes_"), [("none", 4 * 4 + 2 * 4), ("fp16", 4 * 2 + 2 * 4)]
)
def test_stats_count_what_travels(world: None, compression: str, bytes_: int) -> None:
    before = hvd.stats()
    mixed = [tf.ones([4]), tf.ones([2], tf.int32)]
    hvd.grouped_allreduce(mixed, op=hvd.Sum, compression=getattr(hvd.Compression, compression))
    after = hvd.stats()
    assert after.payload_bytes - before.payload_bytes == 4 * 4 + 2 * 4
    assert after.travel_bytes - before.travel_bytes == bytes_


@pytest.mark.parametrize("version", ["2.15.1", "1.15.0"])
def test_old_tensorflow_is_told(version: str) -> None:
    with pytest.raises(ImportError, match=f"2.16 or later. Received: TensorFlow {version}"):
        _ops.check_version(version)


@pytest.mark.parametrize("version", ["2.16.0", "2.21.0", "3.0.0-rc1", "2.22.0-dev20270101"])
def test_new_tensorflow_is_accepted(version: str) -> None:
    _ops.check_version(version)


def in_child(action) -> str:
    """Runs an action in a forked child and returns what it raised there."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
            text = "nothing raised"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize(
    "action", [lambda: hvd.allreduce(1.0), hvd.init, hvd.stats, lambda: hvd.barrier()]
)
def test_forked_child_is_told(world: None, action) -> None:
    assert in_child(action).startswith("RuntimeError: tfring cannot be used in a forked process")
    assert float(hvd.allreduce(3.0)) == 3.0


def test_forked_child_may_shut_down(world: None) -> None:
    assert in_child(hvd.shutdown) == "nothing raised"
    assert float(hvd.allreduce(3.0)) == 3.0


def test_fork_before_init_is_no_matter() -> None:
    def initialize() -> None:
        hvd.init()
        raise SystemExit(hvd.size())

    # TensorFlow is loaded, but its threads are not used by init.
    assert in_child(initialize) == "SystemExit: 1"


def test_fork_while_a_thread_holds_the_lock(world: None) -> None:
    from tfring.world import _process

    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with _process.lock:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        assert in_child(hvd.stats).startswith("RuntimeError: tfring cannot be used")
    finally:
        release.set()
        thread.join()


def test_exit_without_shutdown_is_clean() -> None:
    code = "import tfring as hvd; hvd.init(); hvd.allreduce(1.0); print('end')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
