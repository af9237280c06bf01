"""One worker as the launcher sees it: an agent, here or behind ssh, and its streams."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfring.launch import agent as agent_module
from tfring.launch import ssh
from tfring.launch.hosts import Place
from tfring.launch.output import Console, RankOutput

_AGENT_FILE = Path(agent_module.__file__)


@dataclass(frozen=True)
class WorkerSpec:
    """What one worker runs and where."""

    place: Place
    argv: Sequence[str]
    env: dict[str, str]
    cwd: str
    remote: bool
    ranks_here: int  # ranks that share the worker's machine
    store_hosts: Sequence[str]  # addresses of the launcher, the likely ones first
    store_hosts_fixed: bool  # the user chose the address
    store_port: int
    start_timeout: float
    python: str = sys.executable
    ssh_options: ssh.SshOptions = field(default_factory=ssh.SshOptions)

    def message(self) -> bytes:
        """What the agent reads from its standard input, secrets included."""
        spec: dict[str, Any] = {
            "host": self.place.host,
            "argv": list(self.argv),
            "env": self.env,
            "cwd": self.cwd,
            "remote": self.remote,
            "ranks_here": self.ranks_here,
            "store_hosts": list(self.store_hosts),
            "store_hosts_fixed": self.store_hosts_fixed,
            "store_port": self.store_port,
            "start_timeout": self.start_timeout,
        }
        message = _sized(json.dumps(spec).encode())
        return _sized(_AGENT_FILE.read_bytes()) + message if self.remote else message

    def command(self) -> list[str]:
        """The command line of the agent; it holds no secret."""
        if self.remote:
            return ssh.command(self.place.host, self.python, self.ssh_options)
        # Isolated and without site: it starts in milliseconds, whatever PYTHONPATH holds.
        return [sys.executable, "-I", "-S", str(_AGENT_FILE)]


def _sized(data: bytes) -> bytes:
    return b"%d\n" % len(data) + data


class Worker:
    """A started worker: feed it, read it, signal it, wait for it. Nothing here blocks.

    Raises:
        OSError: The agent could not be started (for example, there is no ssh program).
    """

    def __init__(self, spec: WorkerSpec, console: Console, folder: Path | None) -> None:
        self.spec = spec
        self.place = spec.place
        self.outputs = {
            fd: RankOutput(console, fd, spec.place.rank, folder if folder else None)
            for fd in (1, 2)
        }
        self._process = subprocess.Popen(
            spec.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C at a terminal reaches the launcher alone
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._control = self._process.stdin
        self.streams = {1: self._process.stdout, 2: self._process.stderr}
        for pipe in (self._control, *self.streams.values()):
            os.set_blocking(pipe.fileno(), False)
        self._unsent = spec.message()
        self.exit_fd = _open_pidfd(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 plus the signal where a signal killed it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def control_fd(self) -> int | None:
        """The descriptor to write to when `wants_to_write`; None when closed."""
        return None if self._control.closed else self._control.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether bytes wait for the agent to take them."""
        return bool(self._unsent) and not self._control.closed

    def write(self) -> None:
        """Hands the agent as many of the waiting bytes as it takes now."""
        try:
            self._unsent = self._unsent[os.write(self._control.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = b""  # it ended; its exit code tells more

    def send_signal(self, signum: int) -> None:
        """Asks the agent to signal the worker and all below it."""
        self._command(b"signal %d\n" % signum)

    def end_now(self) -> None:
        """Asks the agent to kill the worker and all below it."""
        self._command(b"kill\n")

    def _command(self, line: bytes) -> None:
        if self._control.closed or self._process.poll() is not None:
            return
        self._unsent += line
        self.write()

    def kill(self) -> None:
        """Kills the agent and, on this machine, every process of its session."""
        if self._process.poll() is None:
            self._process.kill()
        if not self.spec.remote:
            kill_session(self._process.pid)

    def close(self) -> None:
        """Closes every descriptor of a worker that has ended, and its files."""
        for pipe in (self._control, *self.streams.values()):
            with contextlib.suppress(OSError):
                pipe.close()
        if self.exit_fd is not None:
            os.close(self.exit_fd)
            self.exit_fd = None
        for output in self.outputs.values():
            output.close()


def _open_pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # a kernel before 5.3: the job polls instead


def kill_session(session: int) -> None:
    """Kills what an agent left in its session, for the case that it was killed itself."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_bytes()
            if int(stat.rpartition(b")")[2].split()[3]) == session:
                os.kill(int(entry), signal.SIGKILL)
        except (OSError, ValueError):
            continue  # it ended meanwhile
