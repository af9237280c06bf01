"""The command line of `tfringrun`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tfring import _suggest
from tfring.launch import check_build, flags, hosts, ssh
from tfring.launch.agent import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from tfring.launch.failure import Failure
from tfring.launch.job import Job, JobOptions, Outcome, listen_address
from tfring.launch.output import Console
from tfring.launch.rendezvous import StoreServer
from tfring.version import __version__

DEFAULT_START_TIMEOUT_S = 30.0

_VERSION = f"tfringrun {__version__}"
_USAGE = "tfringrun -np N [options] command [arguments]"
_EXAMPLES = """examples:
  tfringrun -np 2 python train.py --epochs 3
  tfringrun -np 4 -H node1:2,node2:2 python train.py      (ssh to node1, node2)
  tfringrun -np 4 --pretend-hosts -H a:2,b:2 pytest tests/parallel
Other flags of horovodrun are accepted; each says that it has no effect, or why
it is refused.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = _suggest.for_flags(self, message)
        self.exit(2, f"tfringrun: error: {message}\nSee tfringrun --help.\n")


class _Help(argparse.HelpFormatter):
    """Keeps the examples as written and the list of options narrow."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=33, width=80)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        return names if action.nargs == 0 else f"{names} {action.metavar}"


def make_parser() -> argparse.ArgumentParser:
    """Builds the parser of the command line."""
    parser = _Parser(
        "tfringrun",
        usage=_USAGE,
        description="Runs a command on several processes that train together.",
        epilog=_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    _add_job_flags(parser)
    _add_output_flags(parser)
    flags.add_to(parser)
    return parser


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("processes and hosts")
    add = group.add_argument
    add("-np", "--num-proc", type=flags.positive_int, metavar="N", help="number of processes")
    add("-H", "--hosts", metavar="HOSTS", help="host:slots,... (localhost:N)")
    add("-hostfile", "--hostfile", metavar="FILE", help="lines `host slots=N`")
    add("--pretend-hosts", action="store_true", help="run all ranks here, whatever their host")
    add("-p", "--ssh-port", type=flags.positive_int, metavar="PORT", help="port of ssh")
    add("-i", "--ssh-identity-file", metavar="FILE", help="identity file of ssh")
    add("--network-interfaces", metavar="NICS", help="network between hosts, as eth0,eth1")
    add("--network-interface", dest="network_interfaces", help=argparse.SUPPRESS)
    add(
        "--start-timeout",
        type=flags.positive_float,
        metavar="S",
        help="time to connect and for ranks to meet (30)",
    )


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output and information")
    add = group.add_argument
    add("--output-filename", metavar="DIR", help="also write DIR/rank.N/stdout and stderr")
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="put the time before each line",
    )
    add("--verbose", action="store_true", help="say what happens to each rank")
    add("-cb", "--check-build", action="store_true", help="show what is installed")
    add("-v", "--version", action="version", version=_VERSION, help="show the version")
    add("-h", "--help", action="help", help="show this text")


def start_timeout(given: float | None, env: Mapping[str, str]) -> float:
    """The start time-out: the argument, then the environment's, then 30 s.

    Raises:
        ValueError: The environment's is not a positive number.
    """
    if given is not None:
        return given
    for name in ("TFRING_START_TIMEOUT", "HOROVOD_START_TIMEOUT"):
        if env.get(name):
            try:
                return flags.positive_float(env[name])
            except argparse.ArgumentTypeError as error:
                raise ValueError(f"{name} {error}") from error
    return DEFAULT_START_TIMEOUT_S


def choose_places(
    size: int | None, host_list: str | None, hostfile: str | None
) -> list[hosts.Place]:
    """Decides where each rank runs.

    Args:
        size: The number of ranks; None is all slots of the hosts.
        host_list: `host:slots,...`, or None.
        hostfile: A file of hosts, or None; without both, this machine holds all ranks.

    Raises:
        ValueError: Both lists are given, or neither they nor `size`, or one is malformed, or
            there are too few slots.
    """
    if host_list is not None and hostfile is not None:
        raise ValueError("-H and --hostfile cannot be given together: both list the hosts")
    if host_list is not None:
        found = hosts.parse_hosts(host_list)
    elif hostfile is not None:
        found = hosts.parse_hostfile(hostfile)
    elif size is not None:
        found = [hosts.Host("localhost", size)]
    else:
        raise ValueError("give the number of processes with -np, for example: -np 2")
    return hosts.assign(found, size if size is not None else sum(host.slots for host in found))


def _options(args: argparse.Namespace) -> JobOptions:
    argv = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not argv:
        raise ValueError(f"give the command to run: {_USAGE}")
    env = os.environ | args.tuning
    if args.network_interfaces:
        env["TFRING_INTERFACES"] = args.network_interfaces
    timeout = start_timeout(args.start_timeout, env)
    if args.output_filename is not None:
        try:
            os.makedirs(args.output_filename, exist_ok=True)
        except OSError as error:
            text = f"--output-filename {args.output_filename}: no such folder can be made: {error}"
            raise ValueError(text) from error
    return JobOptions(
        argv=argv,
        places=choose_places(args.num_proc, args.hosts, args.hostfile),
        env=env,
        start_timeout=timeout,
        output_filename=args.output_filename,
        pretend_hosts=args.pretend_hosts,
        network_interfaces=args.network_interfaces,
        ssh_options=ssh.SshOptions(args.ssh_port, args.ssh_identity_file, timeout),
        verbose=args.verbose,
    )


def _check_command(options: JobOptions) -> Failure | None:
    """Looks for the command here, so that a misspelt one is reported once, not per rank."""
    local = next((place for place in options.places if not options.is_remote(place)), None)
    name = options.argv[0]
    if local is None or shutil.which(name, path=options.env.get("PATH")) is not None:
        return None
    if not os.path.exists(name):
        text = f"command not found on host {local.host}: {name}"
        return Failure(local.rank, local.host, EXIT_NOT_FOUND, text)
    text = f"cannot run {name} on host {local.host}: it is not an executable file"
    if name.endswith(".py"):
        text += f". Did you mean: python {name}"
    return Failure(local.rank, local.host, EXIT_NOT_EXECUTABLE, text)


def run_job(options: JobOptions, console: Console) -> Outcome:
    """Runs a job with Ctrl-C, SIGTERM and SIGHUP handed on to its ranks.

    Raises:
        ValueError: `options.network_interfaces` names no interface of this machine.
        CommunicationError: The store cannot listen.
    """
    missing = _check_command(options)
    if missing is not None:
        return Outcome(missing.code, missing)
    with StoreServer(listen_address(options)) as store:
        job = Job(options, console, store)

        def hand_on(signum: int, frame: Any) -> None:
            job.interrupt(signum)

        former = {
            signum: signal.signal(signum, hand_on)
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            # SIGINT also where a script's `&` made it ignored; SIGHUP not under nohup.
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN
        }
        try:
            return job.run()
        finally:
            for signum, handler in former.items():
                signal.signal(signum, handler)


def report(outcome: Outcome, console: Console) -> None:
    """Writes the first failure's words last, where the user looks first."""
    failure = outcome.failure
    if failure is None:
        return
    console.say(failure.text + (":" if failure.details else ""))
    lines = [f"[{failure.rank}] {line}\n" for line in failure.details]
    console.show("".join(lines).encode("utf-8", "replace"))
    for line in failure.others:
        console.say(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfringrun` with the arguments `argv` (default: the process's own).

    Returns:
        The exit code: 0 if every rank ended well, the first failure's (128 + n for signal
        n), 127 if the command is not found, 2 for wrong arguments, 130 after Ctrl-C.
    """
    try:
        return _main(argv)
    except KeyboardInterrupt:  # before the job hands signals on, or after it
        print("tfringrun: SIGINT: ended", file=sys.stderr)
        return 128 + signal.SIGINT


def _main(argv: Sequence[str] | None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.check_build:
        print(check_build.report())
        return 0
    console = Console(timestamps=args.prefix_output_with_timestamp)
    try:
        options = _options(args)
        for note in args.notes:
            console.say(note)
        outcome = run_job(options, console)
    except ValueError as error:
        parser.error(str(error))
    except (RuntimeError, OSError, ImportError) as error:
        console.say(f"error: {error}")
        return 1
    report(outcome, console)
    _drop_closed_output()
    return outcome.code


def _drop_closed_output() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # What Python does at its end would fail again and say so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
