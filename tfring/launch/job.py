"""One job: starts a worker per rank, follows them, and ends them all when one fails.

The first rank that fails ends the job. The others get a second to fail by themselves, so
that their own errors can be read; then SIGTERM, three seconds later SIGKILL, each to the
worker and to every process below it. Ctrl-C, SIGTERM and SIGHUP are handed on at once.
A rank that only lost a peer says so in the store; then the peer gets two seconds more to end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tfring.launch import hosts as hosts_module
from tfring.launch import records, ssh
from tfring.launch.failure import (
    Exit,
    Failure,
    describe,
    describe_leaver,
    early_leaver,
    first_failure,
    late_leaver,
    other_stalls,
)
from tfring.launch.hosts import Place
from tfring.launch.output import ClosedOutputError, Console
from tfring.launch.process import Worker, WorkerSpec
from tfring.launch.rendezvous import StoreServer

FAILURE_GRACE_S = 1.0
SECONDARY_GRACE_S = 2.0  # on top, while the rank to blame has not ended
TERM_GRACE_S = 3.0
KILL_GRACE_S = 1.0
DRAIN_S = 1.0  # for output that is still on its way when a worker has ended
POLL_S = 0.1  # only where the kernel has no process descriptors
EXIT_NO_SSH = 127


@dataclass(frozen=True)
class JobOptions:
    """What to run and how.

    Attributes:
        argv: The command; it is run directly, by no shell.
        places: One place per rank, in rank order.
        env: The environment to start from.
        start_timeout: Seconds for connections to other hosts, and for the ranks to meet.
        output_filename: Folder for `rank.N/stdout` and `rank.N/stderr`, or None.
        pretend_hosts: Run every rank on this machine, whatever its host.
        network_interfaces: Comma list of interfaces to use between hosts, or None.
        python: The Python that runs the agents on other hosts.
        verbose: Say what happens to each rank.
    """

    argv: Sequence[str]
    places: Sequence[Place]
    env: Mapping[str, str]
    start_timeout: float = 30.0
    output_filename: str | None = None
    pretend_hosts: bool = False
    network_interfaces: str | None = None
    ssh_options: ssh.SshOptions = field(default_factory=ssh.SshOptions)
    python: str = sys.executable
    verbose: bool = False

    def is_remote(self, place: Place) -> bool:
        """Whether this rank is reached through ssh."""
        return not (self.pretend_hosts or hosts_module.is_local(place.host))


@dataclass(frozen=True)
class Outcome:
    """How a job ended: the launcher's exit code, and the failure if that was the reason."""

    code: int
    failure: Failure | None = None


def listen_address(options: JobOptions) -> str:
    """Where the store must listen so that every rank reaches it, and as few others as may be.

    Raises:
        ValueError: `network_interfaces` names no interface of this machine.
    """
    if not any(options.is_remote(place) for place in options.places):
        return "127.0.0.1"
    if options.network_interfaces:
        return ssh.interface_address(options.network_interfaces)
    return ""


class Job:
    """A job from its start to its end.

    Args:
        options: What to run.
        console: Where the ranks' output goes.
        store: The store where the ranks meet; it must outlive the job.
    """

    def __init__(self, options: JobOptions, console: Console, store: StoreServer) -> None:
        self._options = options
        self._console = console
        self._store = store
        self._id = secrets.token_hex(4)
        self._selector = selectors.DefaultSelector()
        self._wake, self._wake_end = os.pipe()
        os.set_blocking(self._wake_end, False)
        self._workers: list[Worker] = []
        self._streams: dict[int, set[int]] = {}  # rank: descriptors still open
        self._drain_until: dict[int, float] = {}  # rank that ended: when to stop reading
        self._failed: list[tuple[int, int, float]] = []  # rank, code, time: before any signal
        self._left: list[tuple[int, int, float]] = []  # the same of those that ended well
        self._late: list[tuple[int, int, float]] = []  # the same of those that got a signal
        self._signalled = False
        self._stages: list[tuple[float, Callable[[], None]]] = []  # (when, what), in order
        self._interrupt_code: int | None = None
        self._start_failure: Failure | None = None

    def run(self) -> Outcome:
        """Runs the job to its end; afterwards no process of it is left.

        Returns:
            The first failure's exit code, 0 if all ranks ended well, or 128 plus the signal
            handed to `interrupt`.
        """
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        try:
            self._start()
            while self._running():
                self._step()
        finally:
            self._clean_up()
        return self._outcome()

    def interrupt(self, signum: int) -> None:
        """Ends the job because of a signal; may be called from a signal handler.

        The first call hands the signal on; a second one kills at once.
        """
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_end, bytes([signum]))

    # --- start

    def _start(self) -> None:
        folder = self._options.output_filename
        for spec in self._specs():
            place = spec.place
            try:
                worker = Worker(spec, self._console, Path(folder) if folder else None)
            except OSError as error:
                text = f"rank {place.rank} on host {place.host} could not be started: {error}"
                self._start_failure = Failure(place.rank, place.host, EXIT_NO_SSH, text)
                self._end(signal.SIGTERM, delay=0.0)
                return
            self._workers.append(worker)
            self._streams[place.rank] = set(worker.streams)
            for fd, pipe in worker.streams.items():
                reader = partial(self._read, worker, fd)
                self._selector.register(pipe, selectors.EVENT_READ, reader)
            if worker.exit_fd is not None:
                ended = partial(self._check_exit, worker)
                self._selector.register(worker.exit_fd, selectors.EVENT_READ, ended)
            self._offer(worker)
            if self._options.verbose:
                way = "through ssh" if spec.remote else "here"
                self._console.say(
                    f"started rank {place.rank} on host {place.host} {way}: local rank "
                    f"{place.local_rank} of {place.local_size}, host {place.cross_rank} of "
                    f"{place.cross_size}"
                )

    def _specs(self) -> list[WorkerSpec]:
        options = self._options
        remote_hosts = [place.host for place in options.places if options.is_remote(place)]
        fixed = bool(remote_hosts and options.network_interfaces)
        if fixed:
            store_hosts = [ssh.interface_address(options.network_interfaces or "")]
        else:
            store_hosts = ssh.own_addresses(remote_hosts) if remote_hosts else ["127.0.0.1"]
        specs = []
        for place in options.places:
            remote = options.is_remote(place)
            env = ssh.exportable(options.env) if remote else dict(options.env)
            env.setdefault("PYTHONUNBUFFERED", "1")  # lines arrive when they are printed
            env |= place.environment()
            env |= {
                "TFRING_SECRET": self._store.secret,
                "TFRING_JOB_ID": self._id,
                "TFRING_START_TIMEOUT": f"{options.start_timeout:g}",
            }
            here = len(options.places) if options.pretend_hosts else place.local_size
            specs.append(
                WorkerSpec(
                    place=place,
                    argv=options.argv,
                    env=env,
                    cwd=_current_folder(),
                    remote=remote,
                    ranks_here=here,
                    store_hosts=store_hosts,
                    store_hosts_fixed=fixed,
                    store_port=self._store.port,
                    start_timeout=options.start_timeout,
                    python=options.python,
                    ssh_options=options.ssh_options,
                )
            )
        return specs

    # --- what can happen

    def _running(self) -> bool:
        return any(
            worker.place.rank not in self._drain_until or self._streams[worker.place.rank]
            for worker in self._workers
        )

    def _step(self) -> None:
        for key, _ in self._selector.select(self._timeout()):
            key.data()
        now = time.monotonic()
        if self._stages and self._stages[0][0] <= now:
            self._stages.pop(0)[1]()
        for worker in self._workers:
            rank = worker.place.rank
            if rank not in self._drain_until:
                if worker.exit_fd is None:
                    self._check_exit(worker)
            elif self._drain_until[rank] <= now:
                for fd in list(self._streams[rank]):
                    self._close_stream(worker, fd)

    def _timeout(self) -> float | None:
        times = [when for when, _ in self._stages[:1]]
        times += [when for rank, when in self._drain_until.items() if self._streams[rank]]
        if any(
            worker.exit_fd is None and worker.place.rank not in self._drain_until
            for worker in self._workers
        ):
            times.append(time.monotonic() + POLL_S)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _woken(self) -> None:
        for signum in os.read(self._wake, 64):
            if self._interrupt_code is None:
                self._interrupt_code = 128 + signum
                self._console.say(f"{signal.Signals(signum).name}: ending all ranks")
                self._end(signum, delay=0.0)
            else:
                self._kill()

    def _read(self, worker: Worker, fd: int) -> None:
        try:
            data = os.read(worker.streams[fd].fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._close_stream(worker, fd)
            return
        try:
            worker.outputs[fd].feed(data)
        except ClosedOutputError:
            self._output_closed()

    def _close_stream(self, worker: Worker, fd: int) -> None:
        self._selector.unregister(worker.streams[fd])
        self._streams[worker.place.rank].discard(fd)
        try:
            worker.outputs[fd].close()
        except ClosedOutputError:
            self._output_closed()

    def _output_closed(self) -> None:
        # As a program does that writes to a closed pipe, and as `... | head` expects.
        if self._interrupt_code is None:
            self._interrupt_code = 128 + signal.SIGPIPE
            self._end(signal.SIGTERM, delay=0.0)

    def _check_exit(self, worker: Worker) -> None:
        code = worker.exit_code
        if code is None:
            return
        if worker.exit_fd is not None:
            self._selector.unregister(worker.exit_fd)
        self._forget_control(worker)
        rank = worker.place.rank
        self._drain_until[rank] = time.monotonic() + DRAIN_S
        if self._options.verbose:
            self._console.say(f"rank {rank} ended with exit code {code}")
        if code != 0:
            worker.kill()  # finds what is left if the agent itself was killed
        ended = self._late if self._signalled else self._failed if code != 0 else self._left
        ended.append((rank, code, time.monotonic()))
        if not self._signalled and code != 0 and not self._stages:
            self._stages = [(time.monotonic() + FAILURE_GRACE_S, self._grace_over)]

    # --- talking to the workers

    def _offer(self, worker: Worker) -> None:
        worker.write()
        fd = worker.control_fd
        if worker.wants_to_write and fd is not None:
            with contextlib.suppress(KeyError):  # it is waiting already
                self._selector.register(fd, selectors.EVENT_WRITE, partial(self._resume, worker))

    def _resume(self, worker: Worker) -> None:
        worker.write()
        if not worker.wants_to_write:
            self._forget_control(worker)

    def _forget_control(self, worker: Worker) -> None:
        fd = worker.control_fd
        if fd is not None:
            with contextlib.suppress(KeyError):  # nothing is waiting
                self._selector.unregister(fd)

    # --- the end

    def _grace_over(self) -> None:
        found = self._records()
        secondary = all(rank in found.secondary for rank, _, _ in self._failed)
        wait = found.claimed is None and secondary
        self._end(signal.SIGTERM, delay=SECONDARY_GRACE_S if wait else 0.0)

    def _end(self, signum: int, delay: float) -> None:
        start = time.monotonic() + delay
        self._stages = [
            (start, partial(self._signal, signum)),
            (start + TERM_GRACE_S, self._end_now),
            (start + TERM_GRACE_S + KILL_GRACE_S, self._kill),
        ]

    def _alive(self) -> list[Worker]:
        return [w for w in self._workers if w.place.rank not in self._drain_until]

    def _signal(self, signum: int) -> None:
        self._signalled = True
        for worker in self._alive():
            worker.send_signal(signum)
            self._offer(worker)

    def _end_now(self) -> None:
        for worker in self._alive():
            worker.end_now()
            self._offer(worker)

    def _kill(self) -> None:
        self._signalled = True
        for worker in self._alive():
            worker.kill()

    def _clean_up(self) -> None:
        try:
            if self._alive():  # an exception, such as KeyboardInterrupt, is on its way
                self._end(signal.SIGTERM, delay=0.0)
                while self._running():
                    self._step()
        finally:
            self._kill()
            for worker in self._workers:
                worker.close()
            self._selector.close()
            os.close(self._wake)
            os.close(self._wake_end)

    def _outcome(self) -> Outcome:
        if self._interrupt_code is not None:
            return Outcome(self._interrupt_code)
        if self._start_failure is not None:
            return Outcome(self._start_failure.code, self._start_failure)
        if not self._failed:
            return Outcome(0)
        exits = [self._exit(*failed) for failed in self._failed]
        found = self._records()
        rank = found.claimed
        if rank is not None and rank not in [e.rank for e in exits] and rank < len(self._workers):
            # It failed first, but was still on its way out when the launcher ended it.
            host = self._workers[rank].place.host
            text = f"rank {rank} on host {host} failed: {found.text}"
            details = describe(self._exit(rank, exits[0].code, exits[0].time)).details
            return Outcome(exits[0].code, Failure(rank, host, exits[0].code, text, details))
        first = first_failure(exits, rank, found.secondary)
        failure = describe(first)
        if first.rank != rank and first.rank in found.secondary:
            leaver = self._leaver(first.rank, found.secondary)
            if leaver is not None:
                failure = describe_leaver(leaver, first)
        others = other_stalls(exits, first.rank, found.secondary)
        return Outcome(failure.code, replace(failure, others=others))

    def _leaver(self, needed_by: int, secondary: Mapping[int, str]) -> Exit | None:
        """The rank that ended although rank `needed_by` still needed it, if one did."""
        reason = secondary[needed_by]
        late = [self._exit(*ended) for ended in self._late]
        left = [self._exit(*ended) for ended in self._left]
        return late_leaver(late, [reason, *secondary.values()]) or early_leaver(left, reason)

    def _exit(self, rank: int, code: int, when: float) -> Exit:
        worker = self._workers[rank]
        tail = worker.outputs[2].tail()
        return Exit(rank, worker.place.host, code, when, tail, worker.spec.remote)

    def _records(self) -> records.Records:
        """What the ranks that failed wrote into the store; nothing where it cannot be read."""
        ranks = [rank for rank, _, _ in self._failed]
        try:
            return records.read(self._store.address, self._store.secret, self._id, ranks)
        except (RuntimeError, ValueError) as error:
            self._console.say(f"cannot read which rank failed first: {error}")
            return records.Records()


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise RuntimeError(
            "the current folder, in which the ranks would run, no longer exists; "
            "change to another one"
        ) from error
