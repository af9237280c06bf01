"""Runs one worker on the worker's own host, and ends everything that it started.

The launcher starts one agent per rank, here or through ssh, and speaks to it over the
agent's standard input: first the size of a JSON text and that text (so no secret is ever
on a command line), later single lines, `signal N` or `kill`. The worker inherits the
agent's standard output and error, so its bytes reach the launcher unchanged.

When the input ends, the launcher or the connection to it is gone: the agent ends the
worker. The agent is the reaper of all orphans below it, so children that the worker left
behind, even in sessions of their own, are found and ended too. Should the agent itself be
killed, the kernel kills the worker.

An agent ends with the worker's exit code, or with 128 plus the signal that killed it.

This file is also sent as text to other hosts: it uses the standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

# How long a worker may take to end by itself after the connection to its launcher broke,
# and how long children of a worker that ended well may outlive it.
LOST_GRACE_S = 2.0
LEFTOVER_GRACE_S = 1.0
KILL_DEADLINE_S = 5.0

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class AgentError(Exception):
    """The worker cannot be started; the text is for the user."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def read_spec(fd: int) -> dict[str, Any]:
    """Reads `SIZE\\n` and as many bytes of JSON from `fd`, and not a byte more."""
    digits = b""
    while not digits.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise AgentError(EXIT_NOT_EXECUTABLE, "the launcher went away before the start")
        digits += byte
    size, parts = int(digits), []
    while size:
        part = os.read(fd, min(size, 1 << 16))
        if not part:
            raise AgentError(EXIT_NOT_EXECUTABLE, "the launcher went away before the start")
        parts.append(part)
        size -= len(part)
    spec: dict[str, Any] = json.loads(b"".join(parts))
    return spec


def usable_cores() -> float:
    """Cores that this process may use: its affinity, and its cgroup's quota if lower."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        return cores  # no such limit on this machine
    return cores


def thread_defaults(ranks_here: int) -> dict[str, str]:
    """Thread counts for one of `ranks_here` ranks that share this machine.

    TensorFlow's inter-op pool gets two threads at least, so that an input pipeline or a
    callback never waits behind the only one.
    """
    budget = max(1, int(usable_cores() // ranks_here))
    return {
        "TF_NUM_INTRAOP_THREADS": str(budget),
        "TF_NUM_INTEROP_THREADS": str(max(2, budget)),
        "OMP_NUM_THREADS": str(budget),
    }


def choose_rendezvous(spec: dict[str, Any]) -> str:
    """The first address of the launcher that answers from this host."""
    port: int = spec["store_port"]
    hosts: list[str] = list(spec["store_hosts"])
    if not spec["remote"]:
        return join_address(hosts[0], port)
    # sshd tells where the connection came from: that address surely leads back.
    came_from = os.environ.get("SSH_CONNECTION", "").split()
    if came_from and not spec["store_hosts_fixed"]:
        hosts.insert(0, came_from[0])
    for host in hosts:
        try:
            socket.create_connection((host, port), timeout=spec["start_timeout"]).close()
        except OSError:
            continue
        return join_address(host, port)
    tried = ", ".join(join_address(host, port) for host in hosts)
    raise AgentError(
        EXIT_NOT_EXECUTABLE,
        f"host {spec['host']} cannot reach the launcher (tried {tried}); "
        "name a network interface that leads there with --network-interfaces",
    )


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def worker_environment(spec: dict[str, Any]) -> dict[str, str]:
    """The worker's whole environment; what the user set is kept."""
    env: dict[str, str] = dict(os.environ) if spec["remote"] else {}
    env.update(spec["env"])
    for name, value in thread_defaults(spec["ranks_here"]).items():
        env.setdefault(name, value)
    env["TFRING_RENDEZVOUS"] = choose_rendezvous(spec)
    return env


def descendants() -> list[int]:
    """Living processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def signal_all(signum: int) -> bool:
    """Sends `signum` to every descendant; returns whether there was any."""
    pids = descendants()
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue
    return bool(pids)


def reap() -> dict[int, int]:
    """Exit codes (128 + n for signal n) of the children that ended."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if pid == 0:
            return codes
        code = os.waitstatus_to_exitcode(status)
        codes[pid] = code if code >= 0 else 128 - code


class Agent:
    """One worker, from its start until nothing of it is left."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._child: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._kill_at: float | None = None
        self._input_open = True
        self._unread = b""
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)

    def run(self) -> int:
        """Starts the worker and returns its exit code when all of it has ended."""
        self._start()
        while self._code is None:
            self._step()
        clear(LEFTOVER_GRACE_S if self._code == 0 else 0.0)
        return self._code

    def _start(self) -> None:
        spec = self._spec
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        agent = os.getpid()

        def before_exec() -> None:
            os.setpgid(0, 0)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != agent:  # it died before the line above took effect
                os._exit(1)

        argv, cwd = spec["argv"], spec["cwd"]
        if not os.path.isdir(cwd):
            raise AgentError(
                EXIT_NOT_EXECUTABLE, f"host {spec['host']} has no directory {cwd} to run in"
            )
        env = worker_environment(spec)
        try:
            # Kept: a Popen that is let go reaps its process, and the exit code is lost.
            self._child = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, preexec_fn=before_exec
            )
        except FileNotFoundError as error:
            text = f"command not found on host {spec['host']}: {argv[0]}"
            raise AgentError(EXIT_NOT_FOUND, text) from error
        except OSError as error:
            text = f"cannot run {argv[0]} on host {spec['host']}: {error.strerror}"
            raise AgentError(EXIT_NOT_EXECUTABLE, text) from error

    def _step(self) -> None:
        timeout = None
        if self._kill_at is not None:
            timeout = self._kill_at - time.monotonic()
            if timeout <= 0:
                signal_all(signal.SIGKILL)
                timeout = 0.1
        inputs = [self._wake, 0] if self._input_open else [self._wake]
        ready = select.select(inputs, [], [], timeout)[0]
        if self._wake in ready:
            for signum in os.read(self._wake, 4096):
                if signum != signal.SIGCHLD:
                    self._end(signum, LOST_GRACE_S)
        if 0 in ready:
            self._read_commands()
        if self._child is not None:
            self._code = reap().get(self._child.pid)

    def _read_commands(self) -> None:
        data = os.read(0, 4096)
        if not data:
            self._input_open = False
            self._end(signal.SIGTERM, LOST_GRACE_S)
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line == b"kill":
                self._kill_at = time.monotonic()
            elif line.startswith(b"signal "):
                signal_all(int(line.split()[1]))

    def _end(self, signum: int, grace: float) -> None:
        signal_all(signum)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace


def clear(grace: float) -> None:
    """Ends every process below this one: by SIGTERM if there is grace, then by SIGKILL."""
    now = time.monotonic()
    if grace > 0:
        signal_all(signal.SIGTERM)
    while time.monotonic() < now + grace + KILL_DEADLINE_S:
        reap()
        if time.monotonic() < now + grace:
            alive = bool(descendants())
        else:
            alive = signal_all(signal.SIGKILL)
        if not alive:
            return
        time.sleep(0.01)


def main() -> int:
    """Runs the worker that standard input describes."""
    try:
        return Agent(read_spec(0)).run()
    except AgentError as error:
        print(f"tfringrun: {error}", file=sys.stderr, flush=True)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
