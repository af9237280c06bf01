"""Who takes part: the contenders of a run, how their ranks start, and who is missing."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys

from tfring.bench.options import Options
from tfring.bench.result import Entry

# Below, the cost of a call from Python hides that of the memory.
LIMIT_FROM_BYTES = 2**16


@dataclasses.dataclass(frozen=True)
class Contender:
    """One group of ranks.

    Attributes:
        kind: `engine`, `op`, `mpi`, `gloo` or `limit`.
        role: `own`, `peer` or `limit`.
        ways: what it measures; most have one way, called "".
        starter: the command that starts `np` ranks, without what they run.
        needs: `shared` memory or a `meeting` file, or "" for nothing.
        from_bytes: smaller sizes are left out.
        most_calls: of a turn; enough for a percentile, few enough to keep each.
    """

    kind: str
    role: str
    ways: tuple[str, ...]
    starter: tuple[str, ...]
    needs: str = ""
    from_bytes: int = 0
    most_calls: int = 2000

    def entries(self, title: str) -> list[Entry]:
        """Returns a column for each way."""
        names = {"": "", "eager": ", eager", "function": ", tf.function"}
        return [
            Entry(f"{self.kind}.{way}".rstrip("."), title + names[way], self.role)
            for way in self.ways
        ]


def choose(options: Options, np: int) -> tuple[list[Contender], list[str]]:
    """Returns the contenders, and one line for each peer that is not installed."""
    ours = (sys.executable, "-m", "tfring.launch", "-np", str(np))
    # Its ranks do not wait for each other: only a whole turn shows what they share.
    limit = Contender("limit", "limit", ("",), ours, "shared", LIMIT_FROM_BYTES, 10**6)
    chosen = [limit]
    absent: list[str] = []
    if "engine" in options.levels:
        chosen.append(Contender("engine", "own", ("",), ours))
    if "op" in options.levels:
        chosen.append(Contender("op", "own", ("eager", "function"), ours))
    if options.peers:
        peers, absent = _peers(np, ours)
        chosen += peers
    return chosen, absent


def _peers(np: int, ours: tuple[str, ...]) -> tuple[list[Contender], list[str]]:
    peers, absent = [], []
    mpiexec = _mpiexec()
    if importlib.util.find_spec("mpi4py") is None:
        absent.append("MPI: mpi4py is not installed (`pip install mpi4py mpich`)")
    elif mpiexec is None:
        absent.append("MPI: there is no mpiexec beside this Python or in PATH")
    else:
        starter = (mpiexec, *_mpi_flags(mpiexec), "-n", str(np))
        peers.append(Contender("mpi", "peer", ("",), starter))
    if importlib.util.find_spec("torch") is None:
        absent.append("gloo: torch is not installed (`pip install torch`)")
    else:
        peers.append(Contender("gloo", "peer", ("",), ours, "meeting"))
    return peers, absent


def _mpiexec() -> str | None:
    # The one that pip installed belongs to the library that mpi4py finds.
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    return beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")


def _mpi_flags(mpiexec: str) -> tuple[str, ...]:
    try:
        done = subprocess.run(
            [mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if not any(name in done.stdout for name in ("Open MPI", "OpenRTE", "Open Run-Time")):
        return ()
    # Nobody else's ranks are bound to cores either; as root it refuses without the last.
    flags = ("--oversubscribe", "--bind-to", "none")
    return (*flags, "--allow-run-as-root") if os.geteuid() == 0 else flags
