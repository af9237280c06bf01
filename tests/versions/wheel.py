"""The wheel: building it, what it needs of a system, and the tag that says so to pip."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

Version = tuple[int, ...]

# The first glibc of a manylinux tag whose systems have this libstdc++ (GLIBCXX_3.4.N).
_GLIBC_OF_LIBSTDCXX = {25: (2, 28), 28: (2, 31), 29: (2, 34), 30: (2, 35), 32: (2, 38), 33: (2, 39)}


def build(source: Path, folder: Path) -> Path:
    """Builds a wheel of a checkout and returns its path; its tag says which glibc it needs.

    pip on an older system then says that the wheel is not for it, in place of a loader's error
    later. For older systems than this one, build there.
    """
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder)]
    run([*command, str(source)])
    plain = next(folder.glob("*.whl"))
    with tempfile.TemporaryDirectory() as tools:
        venv.create(tools, with_pip=True)
        python = str(Path(tools) / "bin" / "python")
        run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "wheel"])
        platform = plain.stem.rsplit("-", 1)[1].replace("linux", tag(needs(plain)), 1)
        run([python, "-m", "wheel", "tags", "--remove", "--platform-tag", platform, str(plain)])
    return next(folder.glob("*.whl"))


def needs(wheel: Path) -> dict[str, Version]:
    """Returns the newest version of each of the system's libraries that a wheel asks for.

    libstdc++ cannot be linked statically: TensorFlow brings its own copy of its symbols into the
    process, and strings and exceptions cross between the two.
    """
    found: dict[str, Version] = {}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".so"):
                continue
            told = run(["readelf", "-V", archive.extract(name, folder)]).stdout
            for kind, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)", told):
                number = tuple(map(int, version.split(".")))
                found[kind] = max(found.get(kind, (0,)), number)
    return found


def tag(needed: dict[str, Version]) -> str:
    """Returns the beginning of the platform's tag: `manylinux_2_35`."""
    glibc = needed.get("GLIBC", (2, 17))[:2]
    libstdcxx = needed.get("GLIBCXX", (3, 4))[2:]
    if libstdcxx:
        fits = [least for known, least in _GLIBC_OF_LIBSTDCXX.items() if known >= libstdcxx[0]]
        if not fits:
            raise ValueError(f"no manylinux tag is known here for GLIBCXX_3.4.{libstdcxx[0]}")
        glibc = max(glibc, min(fits))
    return "manylinux_" + "_".join(map(str, glibc))


def told(wheel: Path) -> str:
    """Says what a wheel needs, in one line."""
    needed = sorted(needs(wheel).items())
    versions = ", ".join(f"{kind} {'.'.join(map(str, number))}" for kind, number in needed)
    return f"{wheel.name} needs {versions}"


def digest(wheel: Path) -> str:
    """Returns what tells this wheel from others."""
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command and returns what it printed.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    return subprocess.run(command, check=True, capture_output=True, text=True)
