"""Builds one wheel and runs the parallel tests with it on several TensorFlows.

    python -m tests.versions [--wheel FILE] [--keep] [VERSION ...]

Run it from the root of the repository. For each version it makes a virtual environment, installs
the wheel and `tensorflow-cpu` of that version, runs four groups of tests on two ranks, and removes
the environment again (2 GB each). It prints which C libraries the wheel needs, and at last a table.
A version may be `nightly`: the newest tf-nightly-cpu that installs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ["2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0", "nightly"]
PARALLEL = "tests/parallel/"

# Arguments of pytest for each column of the table.
GROUPS = {
    "eager": [f"{PARALLEL}test_collectives_{part}.py" for part in ("cases", "gather", "scatter")],
    "graph": [f"{PARALLEL}test_collectives_{part}.py" for part in ("gradients", "order", "sets")],
    "XLA": [f"{PARALLEL}test_collectives_xla.py", f"{PARALLEL}test_xla_fit.py"],
    "Keras fit": [f"{PARALLEL}test_{part}.py" for part in ("fit", "collectives_fit")],
}
_LIMIT_S = 900


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 if all is green."""
    options = _parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="tfring-versions-") as folder:
        wheel = options.wheel or _built(Path(folder))
        print(needs(wheel), flush=True)
        rows = []
        for version in options.versions or VERSIONS:
            place = Path(folder) / version
            try:
                rows.append(_row(version, place, wheel, options.limit))
            finally:
                if not options.keep:
                    shutil.rmtree(place, ignore_errors=True)
            print(_line(rows[-1]), flush=True)
    print("\n" + table(rows))
    return 0 if all(cell == "ok" for row in rows for cell in row[1:]) else 1


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", help=f"default: {' '.join(VERSIONS)}")
    parser.add_argument("--wheel", type=Path, help="use this one instead of building one")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--limit", type=int, default=_LIMIT_S, help="seconds for a group of tests")
    return parser.parse_args(arguments)


def needs(wheel: Path) -> str:
    """Says which versions of glibc and libstdc++ the libraries in a wheel ask for.

    They cannot be linked statically: TensorFlow brings its own copy of libstdc++'s symbols into
    the process, and strings and exceptions cross between the two.
    """
    found: dict[str, tuple[int, ...]] = {}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".so"):
                continue
            told = _run(["readelf", "-V", archive.extract(name, folder)]).stdout
            for kind, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)", told):
                number = tuple(map(int, version.split(".")))
                found[kind] = max(found.get(kind, (0,)), number)
    versions = ", ".join(f"{kind} {'.'.join(map(str, n))}" for kind, n in sorted(found.items()))
    return f"{wheel.name} needs {versions}"


def _built(folder: Path) -> Path:
    _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)])
    return next(folder.glob("*.whl"))


def _row(version: str, place: Path, wheel: Path, limit: int) -> list[str]:
    packages = ["tf-nightly-cpu"] if version == "nightly" else [f"tensorflow-cpu=={version}"]
    python = place / "bin" / "python"
    try:
        venv.create(place, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _run([*install, *packages, "pytest", "pytest-timeout"])
        _run([*install, str(wheel)])
        told = _run([str(python), "-c", "import tensorflow; print(tensorflow.__version__)"]).stdout
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().splitlines()
        print(f"{version}: {reason[-1] if reason else error}", flush=True)
        return [version, *("no environment" for _ in GROUPS)]
    label = told.split()[-1]
    return [label, *(_tested(place, tests, limit) for tests in GROUPS.values())]


def _tested(place: Path, tests: Sequence[str], limit: int) -> str:
    paths = [str(ROOT / test) for test in tests]
    config = str(ROOT / "pyproject.toml")
    command = [str(place / "bin" / "tfringrun"), "-np", "2", str(place / "bin" / "pytest")]
    try:
        done = subprocess.run(
            [*command, "-c", config, "-q", "-p", "no:cacheprovider", *paths],
            cwd=place,  # never in the sources, which hold no libraries
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return "too slow"
    if done.returncode == 0:
        return "ok"
    failed = re.findall(r"FAILED (\S+)", done.stdout + done.stderr)
    print("\n".join(failed[:5] or (done.stdout + done.stderr).splitlines()[-15:]), flush=True)
    return "failed"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns the rows as a table in Markdown."""
    head = ["TensorFlow", *GROUPS]
    return "\n".join([_line(head), _line(["---"] * len(head)), *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
