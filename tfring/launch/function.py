"""`tfring.run`: a Python function on several processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from tfring.launch import cli, ssh
from tfring.launch.failure import Failure
from tfring.launch.job import Job, JobOptions, listen_address
from tfring.launch.output import Console
from tfring.launch.rendezvous import StoreClient, StoreServer

FUNCTION_KEY = "run/function"
RESULT_KEY = "run/result/{}"
ERROR_KEY = "run/error/{}"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    output_filename: str | None = None,
    verbose: bool = False,
    network_interfaces: str | None = None,
    executable: str | None = None,
    env: Mapping[str, str] | None = None,
    pretend_hosts: bool = False,
) -> list[Any]:
    """Runs `func(*args, **kwargs)` on several processes and returns all results.

    The function, its arguments and its results travel by cloudpickle through a store that
    only this job's processes can read. What the processes print appears here, each line
    behind the rank's number. The function calls `tfring.init()` itself.

    Args:
        func: The function; it may be a lambda or a local function.
        args: Its positional arguments, the same on every rank.
        kwargs: Its keyword arguments.
        num_proc: The number of processes; default: all slots of the hosts, or 1.
        np: The same as `num_proc`.
        hosts: `"host:slots,..."`; default: this machine.
        hostfile: A file with lines `host slots=N`, instead of `hosts`.
        start_timeout: Seconds to connect to hosts, and for the ranks to meet (30).
        ssh_port: The port of ssh on the other hosts.
        ssh_identity_file: The identity file of ssh.
        output_filename: A folder; each rank's output is also written below it.
        verbose: Say on standard error what happens to each rank.
        network_interfaces: Comma list of network interfaces to use between hosts.
        executable: The Python that runs the function; default: this one.
        env: The environment of the processes; default: this process's.
        pretend_hosts: Run every rank on this machine, whatever its host.

    Returns:
        The results in rank order.

    Raises:
        ValueError: An argument is wrong, or `hosts` and `hostfile` are both given.
        RuntimeError: A rank failed; the text names the rank, its host and its exit code, and
            holds its traceback. All other ranks have been ended by then. KeyboardInterrupt
            ends them too.

    Example:
        >>> import tfring
        >>> tfring.run(lambda a, b: a + b, args=(1, 2), np=2)
        [3, 3]
    """
    if not callable(func):
        raise ValueError(f"func must be callable. Received: func={func!r}")
    size = _size(num_proc, np, hosts, hostfile)
    base_env = dict(os.environ if env is None else env)
    if network_interfaces:
        base_env["TFRING_INTERFACES"] = network_interfaces
    timeout = cli.start_timeout(_positive("start_timeout", start_timeout), base_env)
    python = executable or sys.executable
    options = JobOptions(
        argv=[python, "-m", "tfring.launch.function_worker"],
        places=cli.choose_places(size, hosts, hostfile),
        env=base_env,
        start_timeout=timeout,
        output_filename=output_filename,
        pretend_hosts=pretend_hosts,
        network_interfaces=network_interfaces,
        ssh_options=ssh.SshOptions(ssh_port, ssh_identity_file, timeout),
        python=python,
        verbose=verbose,
    )
    return _run(options, pack(func, args, kwargs))


def pack(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """The bytes that `function_worker` runs: module search path and pickled call."""
    with _pickled_by_value(func):
        call = cloudpickle.dumps((func, tuple(args), dict(kwargs or {})))
    return pickle.dumps({"path": [os.path.abspath(entry) for entry in sys.path], "call": call})


@contextlib.contextmanager
def _pickled_by_value(func: Callable[..., Any]) -> Iterator[None]:
    """Sends the functions of `func`'s module whole if other processes cannot import it."""
    module = sys.modules.get(getattr(func, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _can_be_imported(module.__name__):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    # The finders are asked: importlib.util.find_spec would answer from sys.modules.
    top = name.partition(".")[0]
    finders = [getattr(finder, "find_spec", None) for finder in sys.meta_path]
    return any(find is not None and find(top, None) is not None for find in finders)


def _size(
    num_proc: int | None, np: int | None, hosts: str | None, hostfile: str | None
) -> int | None:
    if num_proc is not None and np is not None and num_proc != np:
        raise ValueError(
            f"num_proc and np mean the same: give one. Received: num_proc={num_proc}, np={np}"
        )
    size = np if num_proc is None else num_proc
    if size is None:
        return None if hosts is not None or hostfile is not None else 1
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        name = "np" if num_proc is None else "num_proc"
        raise ValueError(f"{name} must be a positive integer. Received: {name}={size!r}")
    return size


def _positive(name: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a positive number. Received: {name}={value!r}")
    return value


def _run(options: JobOptions, packed: bytes) -> list[Any]:
    with (
        StoreServer(listen_address(options)) as store,
        StoreClient(store.address, store.secret) as client,
    ):
        client.set(FUNCTION_KEY, packed)
        outcome = Job(options, Console(), store).run()
        if outcome.failure is not None:
            raise RuntimeError(_error_text(outcome.failure, client))
        if outcome.code != 0:  # no signal handler is installed here: the output was closed
            raise RuntimeError("the job was ended because standard output was closed")
        return [_result(client, rank) for rank in range(len(options.places))]


def _error_text(failure: Failure, client: StoreClient) -> str:
    sent = client.get(ERROR_KEY.format(failure.rank))
    details = "\n".join(failure.details) if sent is None else sent.decode("utf-8", "replace")
    return f"{failure.text}:\n{details}" if details else failure.text


def _result(client: StoreClient, rank: int) -> Any:
    value = client.get(RESULT_KEY.format(rank))
    if value is None:
        raise RuntimeError(
            f"rank {rank} ended with exit code 0, but its function did not return "
            "(did it call sys.exit or os._exit?)"
        )
    return pickle.loads(value)
