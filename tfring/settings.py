"""All settings of tfring: one declaration table, read once when `tfring.init` is called.

An argument wins over the environment; there the `TFRING_*` name wins over the `HOROVOD_*` name
that users may have set already.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["IGNORED", "SETTINGS", "Setting", "Settings", "ignored", "load", "markdown", "unknown"]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        name: field of `Settings`, and argument of `init` where it has one.
        environment: variables that are read, first one wins.
        default: value where nothing is set.
        parse: turns text or a given value into the value; raises ValueError with the rule.
        doc: what it does, with its unit.
    """

    name: str
    environment: tuple[str, ...]
    default: Any
    parse: Callable[[Any], Any]
    doc: str


def _seconds(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError("must be a positive number of seconds")
    return number


def _seconds_or_zero(value: Any) -> float:
    return 0.0 if float(value) == 0 else _seconds(value)


def _count(value: Any) -> int:
    number = int(value)
    if number < 0 or number != float(value):
        raise ValueError("must be a whole number, 0 or more")
    return number


def _spin(value: Any) -> int:
    if int(value) == -1:
        return -1
    if _count(value) > 1_000_000:
        raise ValueError("must be -1, or 0 to 1000000 microseconds")
    return int(value)


def _chunk(value: Any) -> int:
    if _count(value) > 1 << 30:
        raise ValueError("must be at most 1073741824 bytes")
    return int(value)


# The number of each is that of `tfr_host_algorithm`.
HOST_ALGORITHMS = ("auto", "direct", "halving_doubling", "ring")


def _host_algorithm(value: Any) -> str:
    return _one_of(HOST_ALGORITHMS, value)


# The number of each is that of `tfr_gpu_data`.
GPU_DATA = ("auto", "nccl", "host")
GPU_HOSTS = ("nccl", "tcp")


def _gpu_data(value: Any) -> str:
    return _one_of(GPU_DATA, value)


def _gpu_hosts(value: Any) -> str:
    return _one_of(GPU_HOSTS, value)


def _one_of(words: tuple[str, ...], value: Any) -> str:
    word = str(value).lower()
    if word not in words:
        raise ValueError(f"must be one of {', '.join(words)}")
    return word


def _small_count(value: Any) -> int:
    if _count(value) > 64:
        raise ValueError("must be at most 64")
    return int(value)


def _direct(value: Any) -> int:
    return -1 if int(value) == -1 else _count(value)


def _switch(value: Any) -> bool:
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    word = str(value).lower()
    if word not in words:
        raise ValueError("must be 1 or 0")
    return words[word]


def _text(value: Any) -> str | None:
    return str(value) or None


def _level(value: Any) -> str:
    # Horovod's names; Python's logging has no TRACE.
    levels = {"trace": "debug", "fatal": "critical"}
    level = levels.get(str(value).lower(), str(value).lower())
    if level not in ("debug", "info", "warning", "error", "critical"):
        raise ValueError("must be one of trace, debug, info, warning, error, fatal")
    return level


def _drift(value: Any) -> str:
    word = str(value).lower()
    if word not in ("raise", "warn", "resync", "off"):
        raise ValueError("must be one of raise, warn, resync, off")
    return word


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "start_timeout",
        ("TFRING_START_TIMEOUT", "HOROVOD_START_TIMEOUT"),
        30.0,
        _seconds,
        "Seconds that `init` waits for the other ranks.",
    ),
    Setting(
        "warn_after",
        ("TFRING_STALL_WARN_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
        60.0,
        _seconds_or_zero,
        "Seconds after which a collective that misses ranks is reported; 0: never.",
    ),
    Setting(
        "fail_after",
        ("TFRING_STALL_FAIL_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
        300.0,
        _seconds_or_zero,
        "Seconds after which such a collective fails; 0: never.",
    ),
    Setting(
        "bucket_bytes",
        ("TFRING_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
        32 << 20,
        _count,
        "Bytes of gradients that an optimizer reduces in one collective.",
    ),
    Setting(
        "interfaces",
        ("TFRING_INTERFACES", "HOROVOD_GLOO_IFACE"),
        None,
        _text,
        "Network interfaces to listen on, separated by commas; empty: any.",
    ),
    Setting(
        "shared_memory",
        ("TFRING_SHARED_MEMORY",),
        True,
        _switch,
        "1: ranks of one host exchange data through shared memory; 0: through TCP.",
    ),
    Setting(
        "dynamic_process_sets",
        ("TFRING_DYNAMIC_PROCESS_SETS", "HOROVOD_DYNAMIC_PROCESS_SETS"),
        False,
        _switch,
        '1: process sets may be added and removed after `init`; `process_sets="dynamic"` there.',
    ),
    Setting(
        "chunk_bytes",
        ("TFRING_CHUNK_BYTES",),
        0,
        _chunk,
        "Bytes of a staging chunk; 0: chosen by the engine.",
    ),
    Setting(
        "chunk_depth",
        ("TFRING_CHUNK_DEPTH",),
        0,
        _small_count,
        "Staging chunks of each rank inside a host; 0: chosen by the engine.",
    ),
    Setting(
        "direct_bytes",
        ("TFRING_DIRECT_BYTES",),
        -1,
        _direct,
        "Inside a host, up to this many bytes every rank reduces all, of more its share; "
        "-1: chosen by the engine.",
    ),
    Setting(
        "copy_threads",
        ("TFRING_COPY_THREADS",),
        0,
        _small_count,
        "Threads of each rank that move and reduce data of an allreduce inside a host; "
        "0: chosen by the engine.",
    ),
    Setting(
        "spin_us",
        ("TFRING_SPIN_US",),
        -1,
        _spin,
        "Microseconds that a waiting rank spins before it sleeps; -1: chosen by the engine.",
    ),
    Setting(
        "host_connections",
        ("TFRING_HOST_CONNECTIONS",),
        0,
        _small_count,
        "Data connections between each two hosts; 0: chosen by the engine. Rank 0's counts.",
    ),
    Setting(
        "host_leaders",
        ("TFRING_HOST_LEADERS",),
        0,
        _small_count,
        "Ranks of each host that exchange data with other hosts, at most as many as the smallest "
        "host has; 0: chosen by the engine. Rank 0's counts.",
    ),
    Setting(
        "host_algorithm",
        ("TFRING_HOST_ALGORITHM",),
        "auto",
        _host_algorithm,
        "How hosts add up: direct, halving_doubling, ring, or auto: by size and number of "
        "hosts. Rank 0's counts.",
    ),
    Setting(
        "gpu_data",
        ("TFRING_GPU_DATA",),
        "auto",
        _gpu_data,
        "How tensors of GPUs travel: nccl, host (through host memory), or auto: by NCCL where all "
        "ranks can. Rank 0's counts.",
    ),
    Setting(
        "gpu_hosts",
        ("TFRING_GPU_HOSTS",),
        "nccl",
        _gpu_hosts,
        "How tensors of GPUs travel between hosts: nccl, or tcp: NCCL adds up inside each host, "
        "and all but allreduce goes through host memory. Rank 0's counts.",
    ),
    Setting(
        "cudart_library",
        ("TFRING_CUDART_LIBRARY",),
        None,
        _text,
        "Path of the CUDA run-time library; none: found among the NVIDIA wheels, then by name.",
    ),
    Setting(
        "nccl_library",
        ("TFRING_NCCL_LIBRARY",),
        None,
        _text,
        "Path of libnccl.so.2; none: found among the NVIDIA wheels, then by name.",
    ),
    Setting(
        "check_batches",
        ("TFRING_CHECK_BATCHES",),
        True,
        _switch,
        "1: rank 0 warns when ranks begin to train with the same batch, unless each has shuffled "
        "the same data in its own order, as `fit` does by default; 0: nobody looks.",
    ),
    Setting(
        "log_level",
        ("TFRING_LOG_LEVEL", "HOROVOD_LOG_LEVEL"),
        "warning",
        _level,
        "Level of the Python logger `tfring`: trace, debug, info, warning, error or fatal.",
    ),
    Setting(
        "drift",
        ("TFRING_DRIFT",),
        "raise",
        _drift,
        "What `fit` does at an epoch's end when ranks' weights differ: raise, warn, resync or off.",
    ),
    Setting(
        "faults",
        ("TFRING_FAULTS",),
        None,
        _text,
        "Injected delays and failures, for tests only; see internals.md.",
    ),
)


# Horovod's variables that have no effect, and why. Not those of its build, of Spark and of tests.
IGNORED: dict[tuple[str, ...], str] = {
    ("HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY"): (
        "There is no polling cycle, and what ranks agreed on once needs no cache."
    ),
    ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER"): (
        "Ranks of one host always exchange data there first."
    ),
    ("HOROVOD_TORUS_ALLREDUCE", "HOROVOD_NUM_NCCL_STREAMS", "HOROVOD_BATCH_D2D_MEMCOPIES"): (
        "NCCL has one stream per process set, and nothing is copied into a fusion buffer."
    ),
    ("HOROVOD_ENABLE_ASYNC_COMPLETION", "HOROVOD_DISABLE_NVTX_RANGES"): (
        "Collectives of GPU tensors are asynchronous, and NVTX is not used."
    ),
    ("HOROVOD_DISABLE_GROUP_FUSION",): "A group is one collective, never mixed with others.",
    ("HOROVOD_ENABLE_XLA_OPS",): "Collectives work in functions that XLA compiles without it.",
    ("HOROVOD_ELASTIC", "HOROVOD_ELASTIC_TIMEOUT"): (
        "A job does not change its size; `size_op()` asks at run time."
    ),
    ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "HOROVOD_CCL_CACHE"): (
        "There is one engine, without MPI, Gloo and oneCCL."
    ),
    ("HOROVOD_MPI_THREADS_DISABLE", "HOROVOD_ADASUM_MPI_CHUNK_SIZE"): "There is no MPI.",
    ("HOROVOD_GLOO_TIMEOUT_SECONDS",): "See `start_timeout` and `fail_after`.",
    ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"): (
        "Ranks meet at `TFRING_RENDEZVOUS`, which `tfringrun` sets."
    ),
    (
        "HOROVOD_AUTOTUNE",
        "HOROVOD_AUTOTUNE_LOG",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
    ): "Nothing is tuned while training.",
    ("HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES"): (
        "No timeline is written by itself; see `tfring.trace`."
    ),
    ("HOROVOD_STALL_CHECK_DISABLE",): "Set `warn_after` and `fail_after` to 0.",
    ("HOROVOD_THREAD_AFFINITY",): "The engine's thread sleeps when there is nothing to do.",
    ("HOROVOD_LOG_HIDE_TIME",): "The format of the log is that of Python's `logging`.",
}


def ignored(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables of Horovod that are set and have no effect, each with why."""
    variables = os.environ if environment is None else environment
    return {name: why for names, why in IGNORED.items() for name in names if variables.get(name)}


# Variables of ours that are no settings: what `tfringrun` sets, and those of the tests.
_OTHERS = (
    "TFRING_RANK",
    "TFRING_SIZE",
    "TFRING_LOCAL_RANK",
    "TFRING_LOCAL_SIZE",
    "TFRING_CROSS_RANK",
    "TFRING_CROSS_SIZE",
    "TFRING_HOSTNAME",
    "TFRING_RENDEZVOUS",
    "TFRING_SECRET",
    "TFRING_JOB_ID",
)
_OF_TESTS = ("TFRING_TEST_", "TFRING_PROPERTY_")


def unknown(environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Returns the variables that begin with `TFRING_` and mean nothing, each with the nearest name.

    Args:
        environment: variables to look at; `os.environ` by default.

    Returns:
        Variable and the most similar one that is read, or None where none is similar.

    Example:
        >>> unknown({"TFRING_STALL_FAIL_SECOND": "5", "TFRING_SIZE": "2"})
        {'TFRING_STALL_FAIL_SECOND': 'TFRING_STALL_FAIL_SECONDS'}
    """
    variables = os.environ if environment is None else environment
    known = {name for setting in SETTINGS for name in setting.environment}.union(_OTHERS)
    strange = (
        name
        for name in sorted(variables)
        if name.startswith("TFRING_") and not name.startswith(_OF_TESTS) and name not in known
    )
    return {name: _nearest(name) for name in strange}


def _nearest(name: str) -> str | None:
    """The variable of ours that a name was probably meant for, also by Horovod's name for it."""
    own: dict[str, str] = {}
    for setting in SETTINGS:
        tails = [setting.name.upper(), *(n.split("_", 1)[1] for n in setting.environment)]
        own |= dict.fromkeys(tails, setting.environment[0])
    similar = difflib.get_close_matches(name.removeprefix("TFRING_"), own, n=1)
    return own[similar[0]] if similar else None


@dataclasses.dataclass(frozen=True)
class Settings:
    """The values in force; `tfring.settings.SETTINGS` says what each means."""

    start_timeout: float
    warn_after: float
    fail_after: float
    bucket_bytes: int
    interfaces: str | None
    shared_memory: bool
    dynamic_process_sets: bool
    chunk_bytes: int
    chunk_depth: int
    direct_bytes: int
    copy_threads: int
    spin_us: int
    host_connections: int
    host_leaders: int
    host_algorithm: str
    gpu_data: str
    gpu_hosts: str
    cudart_library: str | None
    nccl_library: str | None
    check_batches: bool
    log_level: str
    drift: str
    faults: str | None


def load(environment: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Reads every setting: argument, then environment, then default.

    Args:
        environment: variables to read; `os.environ` by default.
        **arguments: values by setting name; None counts as not given.

    Returns:
        The `Settings`.

    Raises:
        ValueError: a value breaks its rule; the text names the argument or variable.
        TypeError: an argument is no setting.

    Example:
        >>> load({"TFRING_START_TIMEOUT": "5"}).start_timeout
        5.0
    """
    variables = os.environ if environment is None else environment
    unknown = sorted(arguments.keys() - {setting.name for setting in SETTINGS})
    if unknown:
        raise TypeError(f"not a setting of tfring: {', '.join(unknown)}")
    return Settings(**{s.name: _value(s, arguments.get(s.name), variables) for s in SETTINGS})


def _value(setting: Setting, argument: Any, variables: Mapping[str, str]) -> Any:
    sources = [(setting.name, argument)]
    sources += [(name, variables.get(name) or None) for name in setting.environment]
    for name, value in sources:
        if value is not None:
            return _parse(setting, name, value)
    return setting.default


def _parse(setting: Setting, name: str, value: Any) -> Any:
    try:
        return setting.parse(value)
    except (ValueError, TypeError) as error:
        rule = str(error) if str(error).startswith("must ") else "must be a number"
        raise ValueError(f"`{name}` {rule}. Received: {name}={value!r}") from None


def markdown() -> str:
    """Returns the tables of settings and of what is ignored, as they stand in docs/settings.md."""
    lines = [
        "| Setting | Environment | Default | Meaning |",
        "|---|---|---|---|",
    ]
    for setting in SETTINGS:
        variables = ", ".join(f"`{name}`" for name in setting.environment)
        default = {None: "none", True: "1", False: "0"}.get(setting.default, setting.default)
        lines.append(f"| `{setting.name}` | {variables} | {default} | {setting.doc} |")
    lines += [
        "",
        "These variables of Horovod have no effect. When one is set, `init` says so at log level",
        "`info`.",
        "",
        "| Variable | Why |",
        "|---|---|",
    ]
    for names, why in IGNORED.items():
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {why} |")
    return "\n".join(lines) + "\n"
