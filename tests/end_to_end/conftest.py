"""Starts `tfringrun` and finds every process that belongs to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MARK = "TFRING_TEST_MARK"


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Polls until `condition` holds; returns how long that took; fails after `seconds`."""
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - start


class Launcher:
    """Runs `tfringrun` with an environment that marks all processes below it.

    Attributes:
        env: The environment of the jobs; tests may change it.
        limits: Other values for constants of `tfring.launch.job`: where a test must not depend
            on how soon a busy machine lets a rank run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.env = {**os.environ, MARK: self.mark}
        for name in list(self.env):
            if name.startswith(("TFRING_", "HOROVOD_")) and name != MARK:
                del self.env[name]
        self.limits: dict[str, float] = {}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Starts a job; its output is text in pipes."""
        process = subprocess.Popen(
            [sys.executable, *self._program(), *argv],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._started.append(process)
        return process

    def _program(self) -> list[str]:
        if not self.limits:
            return ["-m", "tfring.launch"]
        changed = f"vars(job).update({self.limits!r})"
        main = "sys.exit(cli.main())"
        return ["-c", f"import sys; from tfring.launch import cli, job; {changed}; {main}"]

    def run(self, *argv: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """Runs a job to its end."""
        process = self.start(*argv)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def script(self, text: str, name: str = "worker.py") -> str:
        """Writes a worker's program and returns its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def processes(self, word: str = "") -> list[int]:
        """Living processes of this launcher whose command line holds `word`."""
        mark = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
                if marked and word in (entry / "cmdline").read_bytes().decode(errors="replace"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def wait_for(self, word: str, count: int, seconds: float = 60) -> list[int]:
        """Waits until `count` processes hold `word` in their command line."""
        what = f"{count} processes with {word!r}"
        wait_until(lambda: len(self.processes(word)) == count, seconds, what)
        return self.processes(word)

    def wait_for_none(self, seconds: float) -> float:
        """Waits until no process of any job is left; returns how long it took."""
        return wait_until(lambda: not self.processes(), seconds, "all processes gone")

    def close(self) -> None:
        """Kills what is left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it was ending already
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.communicate()


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> Iterator[None]:
    """Jobs react to signals also where the tests run under `nohup` or behind a shell's `&`."""
    ignored = [s for s in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_IGN]
    for signum in ignored:
        signal.signal(signum, signal.SIG_DFL)
    yield
    for signum in ignored:
        signal.signal(signum, signal.SIG_IGN)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """A `Launcher` in a folder of its own; at the end nothing of it is left."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()
