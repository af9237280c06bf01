"""`tfring.run`: a function on several processes, from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tfring.launch.function import run

pytestmark = pytest.mark.timeout(150)


def rank():
    return int(os.environ["TFRING_RANK"])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_come_in_rank_order(size):
    def func():
        time.sleep(0.05 * (size - rank()))
        return rank()

    assert run(func, np=size) == list(range(size))


def test_arguments_and_closures():
    factor = 3

    def func(a, b, *, c):
        return (a + b) * factor, c

    assert run(func, (1, 2), {"c": None}, 2) == [(9, None), (9, None)]


def test_a_lambda_on_all_slots_of_the_hosts():
    assert run(lambda: os.environ["TFRING_HOSTNAME"], hosts="a,b:2", pretend_hosts=True) == [
        "a",
        "b",
        "b",
    ]


def test_large_results():
    results = run(lambda: bytes([rank()]) * (20 << 20), np=2)
    assert [len(result) for result in results] == [20 << 20] * 2
    assert results[1] == b"\x01" * (20 << 20)


def test_environment():
    env = dict(os.environ, MY_SETTING="7")
    assert run(lambda: os.environ.get("MY_SETTING"), np=1, env=env) == ["7"]


def test_what_ranks_print_appears_with_their_number(capfd):
    run(lambda: print("hello", rank()), np=2)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] hello 0", "[1] hello 1"]


def test_output_files(tmp_path):
    run(lambda: print("hello", rank()), np=2, output_filename=str(tmp_path))
    assert (tmp_path / "rank.1" / "stdout").read_text() == "hello 1\n"


def test_a_failing_rank_raises_with_its_traceback():
    def fail_in_here():
        if rank() == 1:
            raise ValueError("boom7")
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        run(fail_in_here, np=2)
    text = str(raised.value)
    assert text.startswith("rank 1 on host localhost failed with exit code 1:\nTraceback")
    assert "fail_in_here" in text
    assert text.rstrip().endswith("ValueError: boom7")
    assert time.monotonic() - start < 30


def test_an_exit_code_is_named():
    with pytest.raises(RuntimeError, match="rank 0 on host localhost failed with exit code 5"):
        run(lambda: sys.exit(5), np=1)


def test_an_early_exit_without_a_result_is_an_error():
    with pytest.raises(RuntimeError, match=r"rank 0 ended with exit code 0.*did not return"):
        run(lambda: os._exit(0), np=1)


def test_a_result_that_cannot_be_pickled_is_an_error():
    with pytest.raises(RuntimeError, match=r"(?s)rank 0.*pickle"):
        run(lambda: (i for i in range(3)), np=1)


def test_a_killed_rank_is_named():
    with pytest.raises(RuntimeError, match="rank 0 on host localhost was killed by SIGKILL"):
        run(lambda: os.kill(os.getpid(), signal.SIGKILL), np=1)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"np": 0}, "np must be a positive integer. Received: np=0"),
        ({"num_proc": -2}, "num_proc must be a positive integer. Received: num_proc=-2"),
        ({"np": True}, "np=True"),
        ({"np": 2.0}, "np=2.0"),
        ({"np": 2, "num_proc": 3}, "num_proc=3, np=2"),
        ({"np": 3, "hosts": "a:2"}, "3 processes"),
        ({"np": 1, "hosts": "a:2", "hostfile": "f"}, "together"),
        ({"start_timeout": 0}, "start_timeout=0"),
    ],
)
def test_wrong_arguments_are_named(kwargs, words):
    with pytest.raises(ValueError, match=words):
        run(rank, **kwargs)


def test_something_that_cannot_be_called():
    with pytest.raises(ValueError, match="func=3"):
        run(3)


def test_no_descriptor_is_left():
    run(rank, np=1)
    before = os.listdir("/proc/self/fd")
    run(rank, np=2)
    assert os.listdir("/proc/self/fd") == before


def test_ctrl_c_ends_the_ranks(launcher):
    script = launcher.script(
        "import time, sys\n"
        "from tfring.launch.function import run\n"
        "run(lambda: (print('ready'), time.sleep(60)), np=2)\n"
    )
    job = subprocess.Popen(
        [sys.executable, script], env=launcher.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert {job.stdout.readline() for _ in range(2)} == {b"[0] ready\n", b"[1] ready\n"}
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=30)
    assert err.rstrip().endswith(b"KeyboardInterrupt")
    assert launcher.processes() == []


def test_it_works_beside_the_main_thread(launcher):
    script = launcher.script(
        "import threading\n"
        "from tfring.launch.function import run\n"
        "thread = threading.Thread(target=lambda: print(run(lambda: 4, np=2)))\n"
        "thread.start(); thread.join()\n"
    )
    job = subprocess.run(
        [sys.executable, script], env=launcher.env, capture_output=True, text=True, timeout=100
    )
    assert job.stdout == "[4, 4]\n"
