"""The processes of one contender, seen from the benchmark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfring.bench.catalog import Contender

# tfring itself may take longer on a busy machine, and then there is nothing without it.
_START_S, _PEER_START_S = 120.0, 60.0
_ANSWER_S = 60.0
_END_S = 10.0
_LOG_LINES = 12
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


class GroupError(RuntimeError):
    """A contender's processes did not start, failed, or do not answer."""


class Group:
    """Ranks that wait for the benchmark's word, each over its own socket."""

    def __init__(
        self,
        contender: Contender,
        np: int,
        folder: Path,
        files: list[str],
        module: str = "tfring.bench.worker",
    ) -> None:
        """Starts the processes; `connect` waits for them.

        Args:
            contender: what they run.
            np: how many.
            folder: an existing, private folder of this group.
            files: what the contender needs, see `Contender.needs`.
            module: that each rank runs.
        """
        self.contender, self.title = contender, contender.name
        self._np, self._log = np, folder / "log"
        self._streams: list[Any] = []
        self._started = time.monotonic()
        self._listener = socket.socket(socket.AF_UNIX)
        address = str(folder / "socket")
        self._listener.bind(address)
        self._listener.listen(np)
        run = [sys.executable, "-m", module, contender.kind, address, *files]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*contender.starter, *run],
                # Python would look for modules in the current folder first.
                cwd=folder,
                env={**_environment(), **contender.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def connect(self) -> None:
        """Waits until all ranks are connected with each other and with this process.

        Raises:
            GroupError: they are not, in time.
        """
        for _ in range(self._np):
            connection = self._accept()
            connection.settimeout(_ANSWER_S)
            self._streams.append(connection.makefile("rw", encoding="utf-8", newline="\n"))
            connection.close()
        hellos = [self._read(stream) for stream in self._streams]
        if sorted(hello["rank"] for hello in hellos) != list(range(self._np)):
            # mpiexec of another MPI: every process is a world of its own.
            raise GroupError(
                f"{self.contender.name}: the processes are not {self._np} ranks of one job but "
                f"{[(hello['rank'], hello['size']) for hello in hellos]} (rank, size)"
            )
        first = min(range(self._np), key=lambda i: hellos[i]["rank"])
        self.title = hellos[first]["title"]

    def ask(self, **message: Any) -> list[dict[str, Any]]:
        """Sends a message to every rank and returns all answers.

        Raises:
            GroupError: a rank failed or did not answer; the text ends with what it printed.
        """
        text = json.dumps(message) + "\n"
        try:
            for stream in self._streams:
                stream.write(text)
                stream.flush()
        except OSError as error:
            raise self._failure(f"cannot be reached ({error})") from error
        return [self._read(stream) for stream in self._streams]

    def close(self) -> None:
        """Tells the processes to end; `kill` is for those that do not."""
        self._listener.close()
        for stream in self._streams:
            with contextlib.suppress(OSError):  # a rank that is gone need not be told
                stream.write('{"do": "end"}\n')
                stream.close()
        if self._streams:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def kill(self) -> None:
        """Ends what still runs, by force."""
        self._listener.close()
        if self._process.poll() is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
                return

    def _accept(self) -> socket.socket:
        self._listener.settimeout(0.2)
        limit = _PEER_START_S if self.contender.role == "peer" else _START_S
        while time.monotonic() < self._started + limit:
            with contextlib.suppress(TimeoutError):
                return self._listener.accept()[0]
            if self._process.poll() is not None:
                raise self._failure(f"ended with exit code {self._process.returncode} at the start")
        raise self._failure(f"did not start within {limit:.0f} s")

    def _read(self, stream: Any) -> dict[str, Any]:
        try:
            line = stream.readline()
        except OSError as error:
            raise self._failure(f"gave no answer ({error})") from error
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)  # its last words, and its exit code
            raise self._failure(f"ended early (exit code {self._process.poll()})")
        return json.loads(line)

    def _failure(self, what: str) -> GroupError:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return GroupError("\n  | ".join([f"{self.contender.name} {what}", *lines]))


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        **dict.fromkeys(_ONE_THREAD, "1"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }


@contextlib.contextmanager
def shared_memory(size: int) -> Iterator[str]:
    """A file in memory that other processes of this user can open by the path given."""
    descriptor = os.memfd_create("tfring-bench")
    try:
        os.ftruncate(descriptor, size)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)
