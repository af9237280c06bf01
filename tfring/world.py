"""The job seen from this process: `init`, `shutdown`, who am I. Only `init` loads TensorFlow."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tfring import _failure, _identity, _native, gpu_libraries
from tfring import settings as _settings
from tfring.errors import FORKED, NOT_INITIALIZED, NotInitializedError

if TYPE_CHECKING:
    from tfring.process_sets import ProcessSet

__all__ = [
    "Stats",
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "stats",
]

_NEVER_S = 1e9
_T = TypeVar("_T")

_logger = logging.getLogger("tfring")


@dataclasses.dataclass(frozen=True)
class Stats:
    """What the engine of this rank has done since `init`.

    Attributes:
        collectives: collectives finished on this rank.
        tensors: tensors that they carried.
        control_messages: messages that this rank sent to agree on what runs.
        payload_bytes: bytes of the input tensors.
        travel_bytes: the same in the types in which they travel between ranks; with
            `Compression.fp16` or `bf16`, the difference is what was saved.
        wire_bytes_sent: data bytes that this rank wrote to the network.
        staging_bytes: memory that the engine holds now for data.
        staging_bytes_peak: the most it ever held.
        wait_ns: nanoseconds in which this rank had collectives pending and none could run, because
            other ranks had not come to them yet. Time that passes for many at once counts once.
        transfer_ns: nanoseconds in which data was moved and reduced. A peer that the system stops
            in the middle of it counts here, not as waited for.
        queue_ns: nanoseconds from when all ranks had a collective until it began, because others
            ran first or the engine had yet to wake, added up over collectives.
        waited_for: seconds of `wait_ns` by the rank that came last, for every rank of the job. At
            the start of a job, too.
    """

    collectives: int
    tensors: int
    control_messages: int
    payload_bytes: int
    travel_bytes: int
    wire_bytes_sent: int
    staging_bytes: int
    staging_bytes_peak: int
    wait_ns: int
    transfer_ns: int
    queue_ns: int
    waited_for: Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class _World:
    handle: c_void_p
    info: _native.Info
    settings: _settings.Settings
    hook: _failure.FailureHook
    identity: _identity.Identity


class _Process:
    """What this process holds of tfring; a forked child gets a new one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.calling = threading.RLock()  # held while a call into the engine waits for peers
        self.world: _World | None = None
        self.attempts = 0
        self.forked = False
        self.hooked = False
        self.leaving: list[Callable[[], None]] = []  # called first by `shutdown`


_process = _Process()


def init(
    comm: Sequence[int] | None = None,
    process_sets: Sequence[ProcessSet] | Literal["dynamic"] | None = None,
    *,
    start_timeout: float | None = None,
    warn_after: float | None = None,
    fail_after: float | None = None,
    interfaces: str | None = None,
    shared_memory: bool | None = None,
) -> None:
    """Joins the job that the launcher started; every rank must call it.

    Blocks until all ranks are connected. A second call while initialized does nothing. After
    `shutdown`, or after an `init` that failed, it may be called again, on every rank. A process
    that no launcher started gets a world of one. `shutdown` is called when Python exits.

    Args:
        comm: None, or the list of all ranks in order, which means the same. A job has one world;
            for fewer ranks use process sets.
        process_sets: process sets to register, the same on all ranks. Or "dynamic": sets may be
            added and removed later. Default: none.
        start_timeout: seconds to wait for the other ranks. Default 30.
        warn_after: seconds after which a collective that misses ranks is reported, 0 means never.
            Default 60.
        fail_after: seconds after which such a collective fails, 0 means never. Default 300.
        interfaces: network interfaces to listen on, separated by commas. Default: any.
        shared_memory: exchange data of ranks on one host through shared memory. Default True.
            Every argument that is None comes from the environment, see docs/settings.md.

    Raises:
        ValueError: an argument or an environment variable breaks its rule.
        TypeError: `process_sets` is something else.
        tf.errors.FailedPreconditionError: ranks gave different process sets.
        CommunicationError: ranks did not arrive in time or could not be reached; it names them.
        ImportError: TensorFlow is missing or older than 2.16.
        RuntimeError: the process was forked from one that had called `init`.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> 0 <= hvd.rank() < hvd.size()
        True
    """
    from tfring import process_sets as _sets

    with _process.lock:
        if _process.forked:
            raise RuntimeError(FORKED)
        if _process.world is not None:
            return
        _process.attempts += 1
        settings = _settings.load(
            dynamic_process_sets=True if process_sets == "dynamic" else None,
            start_timeout=start_timeout,
            warn_after=warn_after,
            fail_after=fail_after,
            interfaces=interfaces,
            shared_memory=shared_memory,
        )
        identity = _identity.from_environment(os.environ)
        _check_communicator(comm, identity.size)
        sets = _sets.requested(process_sets, identity.size)
        _logger.setLevel(settings.log_level.upper())
        for name, why in _settings.ignored().items():
            _logger.info("%s is set, but has no effect. %s", name, why)
        if identity.rank == 0:
            _warn_of_unknown_variables()
        _process.world = _create(identity, settings)
        try:
            _sets._setup(sets)
        except BaseException:
            shutdown()
            raise


def _warn_of_unknown_variables() -> None:
    for name, nearest in _settings.unknown().items():
        hint = f"Did you mean {nearest}?" if nearest else "docs/settings.md lists those that do."
        _logger.warning("%s is set, but tfring reads no such variable. %s", name, hint)


def shutdown() -> None:
    """Leaves the job; does nothing where `init` has not been called.

    Collectives that still run fail, here and on ranks that need this one, so call it when all
    ranks are done. Returns within a few seconds whatever the others do. `init` may follow, on
    every rank.
    """
    from tfring import _ops, process_sets

    with _process.lock:
        if is_initialized():
            while _process.leaving:
                _process.leaving.pop(0)()
        world, _process.world = _process.world, None
        if world is None:
            return
        world.hook.remove()
        _ops.set_world(None, NOT_INITIALIZED)
        process_sets._teardown()
        if not _process.calling.acquire(blocking=False):
            _native.engine().tfr_world_abort(world.handle, b"shutdown was called")
            _process.calling.acquire()
        try:
            _native.engine().tfr_world_shutdown(world.handle)
        finally:
            _process.calling.release()


def is_initialized() -> bool:
    """Returns whether collectives can be used: after `init`, before `shutdown`."""
    return _process.world is not None and not _process.forked


def rank() -> int:
    """Returns the number of this process, 0 to `size() - 1`.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return _world().info.rank


def size() -> int:
    """Returns the number of processes of the job.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return _world().info.size


def local_rank() -> int:
    """Returns the number of this process among those of its host, 0 to `local_size() - 1`.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return _world().info.local_rank


def local_size() -> int:
    """Returns the number of processes on this host.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return _world().info.local_size


def cross_rank() -> int:
    """Returns the number of this host among the hosts that have this `local_rank`.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return _world().info.cross_rank


def cross_size() -> int:
    """Returns the number of hosts that have this `local_rank`.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return _world().info.cross_size


def is_homogeneous() -> bool:
    """Returns whether every host holds equally many processes.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return bool(_world().info.homogeneous)


def stats() -> Stats:
    """Returns what the engine of this rank has done since `init`.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
        RuntimeError: in a forked process.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> hvd.stats().waited_for[0]  # seconds that this rank has waited for rank 0
        0.0
    """
    raw = _native.Stats()
    with_engine(lambda handle: _native.engine().tfr_world_stats(handle, byref(raw)))
    waits = (c_uint64 * size())()
    with_engine(lambda handle: _native.engine().tfr_world_waits(handle, waits))
    sums = {field[0]: getattr(raw, field[0]) for field in _native.Stats._fields_}
    return Stats(**sums, waited_for={rank: ns / 1e9 for rank, ns in enumerate(waits)})


def settings() -> _settings.Settings:
    """Returns the settings that `init` read.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return _world().settings


def identity() -> _identity.Identity:
    """Returns what `init` found out about this process: its job, and where the ranks meet.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
    """
    return _world().identity


def generation() -> int:
    """Returns how often `init` has tried to join; what was agreed with peers holds for one."""
    return _process.attempts


def at_shutdown(function: Callable[[], None]) -> None:
    """Has `shutdown` call a function once, while other ranks can still be told something."""
    with _process.lock:
        _process.leaving.append(function)


def not_at_shutdown(function: Callable[[], None]) -> None:
    """Takes back what `at_shutdown` was told."""
    with _process.lock:
        if function in _process.leaving:
            _process.leaving.remove(function)


def with_engine(function: Callable[[c_void_p], _T]) -> _T:
    """Calls a function with the engine's world, at a moment when `shutdown` does not free it.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
        RuntimeError: in a forked process.
    """
    with _process.lock:
        require_usable()
        return function(_world().handle)


def require_usable() -> None:
    """Raises unless collectives can be used in this process.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
        RuntimeError: in a forked process.
    """
    if _process.forked:
        raise RuntimeError(FORKED)
    _world()


def submit(request: _native.Request) -> tuple[int, str]:
    """Hands a request to the engine, at a moment when `shutdown` does not free it.

    Returns:
        0 and an empty text when the engine has accepted it, else its code and reason.

    Raises:
        NotInitializedError: before `init` or after `shutdown`.
        RuntimeError: in a forked process.
    """
    with _process.lock:
        require_usable()
        error = _native.Error()
        code = _native.engine().tfr_submit(_world().handle, byref(request), byref(error))
    return code, error.text.decode(errors="replace") if code else ""


def call(name: str, *arguments: Any) -> None:
    """Calls an engine function of this world that may wait for peers; `shutdown` ends the wait.

    Args:
        name: of the function, whose first argument is the world and the last a `tfr_error`.
        *arguments: what stands between them.
    """
    with _process.calling:
        _native.call(name, _world().handle, *arguments)


def fail(text: str) -> None:
    """Ends the job for every rank, with this one as the first to blame unless another was first.

    An uncaught exception does this by itself; it is for programs that catch everything, such as
    test runners.

    Args:
        text: what failed, one line; the other ranks' errors and the launcher show it.
    """
    with _process.lock:
        if is_initialized():
            _world().hook.report(text)


def _abort(text: str) -> None:
    with _process.lock:
        if is_initialized():
            _native.engine().tfr_world_abort(_world().handle, text.encode())


def _world() -> _World:
    world = _process.world
    if world is None:
        raise NotInitializedError(NOT_INITIALIZED)
    return world


def _check_communicator(comm: Any, size: int) -> None:
    """Raises ValueError unless `comm` means the whole job."""
    if comm is None or (isinstance(comm, Sequence) and list(comm) == list(range(size))):
        return
    raise ValueError(
        f"`comm` must be None or the ranks 0 to {size - 1} in order. Received: comm={comm!r}. "
        "For collectives among some ranks, give init(process_sets=[tfring.ProcessSet(ranks)]) and "
        "process_set= to each collective."
    )


def _create(identity: _identity.Identity, settings: _settings.Settings) -> _World:
    from tfring import _ops

    _ops.library()
    _ops.prepare_xla()
    _hook_process()
    config = _config(identity, settings, f"{identity.job}/{_process.attempts}")
    handle, info = c_void_p(), _native.Info()
    _native.call("tfr_world_create", byref(config), byref(handle))
    engine = _native.engine()
    engine.tfr_world_info(handle, byref(info))
    hook = _failure.FailureHook(identity, _abort)
    hook.install()
    _ops.set_world(handle, "")
    _logger.info("rank %d of %d, %d on this host", info.rank, info.size, info.local_size)
    return _World(handle, info, settings, hook, identity)


def _config(
    identity: _identity.Identity, settings: _settings.Settings, session: str
) -> _native.Config:
    return _native.Config(
        rank=identity.rank,
        size=identity.size,
        host=_native.encode(identity.host),
        store=_native.encode(identity.store),
        secret=_native.encode(identity.secret),
        session=session.encode(),
        interfaces=_native.encode(settings.interfaces),
        faults=_native.encode(settings.faults),
        start_timeout_s=settings.start_timeout,
        warn_after_s=settings.warn_after or _NEVER_S,
        fail_after_s=settings.fail_after,
        chunk_bytes=settings.chunk_bytes,
        shared_memory=int(settings.shared_memory),
        spin_us=settings.spin_us,
        host_connections=settings.host_connections,
        host_leaders=settings.host_leaders,
        host_algorithm=_settings.HOST_ALGORITHMS.index(settings.host_algorithm),
        depth=settings.chunk_depth,
        copy_threads=settings.copy_threads,
        direct_bytes=settings.direct_bytes,
        cudart_library=_native.encode(settings.cudart_library or gpu_libraries.cudart()),
        nccl_library=_native.encode(settings.nccl_library or gpu_libraries.nccl()),
        gpu_data=_settings.GPU_DATA.index(settings.gpu_data),
        gpu_hosts_by_tcp=int(settings.gpu_hosts == "tcp"),
    )


def _hook_process() -> None:
    """Registers, once per process, what is to happen at exit and in a forked child."""
    if _process.hooked:
        return
    _process.hooked = True
    atexit.register(shutdown)
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _process
    from tfring import _ops

    parent, _process = _process, _Process()
    _process.hooked = True
    if parent.world is None:
        return
    _process.forked = True
    parent.world.hook.remove()
    _ops.after_fork(FORKED)
    _native.engine().tfr_world_after_fork(parent.world.handle)
