"""Builds one wheel and runs the parallel tests with it on several TensorFlows.

    python -m tests.versions [--wheel FILE] [--results FILE] [VERSION ...]

Run it from the root of the repository. For each version it makes a virtual environment of the
Python that runs it, installs the wheel and `tensorflow-cpu` of that version, runs groups of tests
on two ranks, and removes the environment again (2 GB each, in TMPDIR). It prints which C libraries
the wheel needs, and at last a table. A version may be `nightly`: the newest tf-nightly-cpu that
installs.

It takes some minutes per version. With `--results` and `--wheel`, several calls, also of several
Pythons, add to one table; `--build FOLDER` builds the wheel for them and does nothing else.
"""

from __future__ import annotations

import argparse
import datetime
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

from . import wheel as _wheel
from .rows import Results, Row, table

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
_LABEL = """
import platform
import keras
import numpy
import tensorflow
print(tensorflow.__version__, keras.__version__, numpy.__version__, platform.python_version())
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 if all that it ran is green."""
    options = _parsed(arguments)
    if options.build:
        options.build.mkdir(parents=True, exist_ok=True)
        print(_wheel.told(_wheel.build(ROOT, options.build)))
        return 0
    good = True
    with tempfile.TemporaryDirectory(prefix="tfring-versions-") as folder:
        wheel = options.wheel or _wheel.build(ROOT, Path(folder))
        print(_wheel.told(wheel), flush=True)
        results = Results(options.results, _wheel.digest(wheel))
        for version in options.versions or VERSIONS:
            place = Path(folder) / version
            try:
                row = _row(version, place, wheel, options.limit)
            finally:
                if not options.keep:
                    shutil.rmtree(place, ignore_errors=True)
            good = good and row.good
            print(f"{' '.join(row.label)}: {', '.join(row.cells)}", flush=True)
            results.add(row)
    print("\n" + table(list(GROUPS), results))
    return 0 if good else 1


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.versions")
    parser.add_argument("versions", nargs="*", help=f"default: {' '.join(VERSIONS)}")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build the wheel there only")
    parser.add_argument("--wheel", type=Path, help="use this one instead of building one")
    parser.add_argument("--results", type=Path, help="keep the rows in this file, and add to it")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--limit", type=int, default=_LIMIT_S, help="seconds for a group of tests")
    options = parser.parse_args(arguments)
    if options.wheel and not zipfile.is_zipfile(options.wheel):
        parser.error(f"--wheel must be a wheel that is there. Received: {options.wheel}")
    return options


def _row(version: str, place: Path, wheel: Path, limit: int) -> Row:
    today = datetime.date.today().isoformat()
    try:
        label = _environment(version, place, wheel)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().splitlines()
        print(f"{version}: {reason[-1] if reason else error}", flush=True)
        label = [version, "", "", ".".join(map(str, sys.version_info[:3]))]
        return Row(version, label, ["no environment"] * len(GROUPS), today)
    return Row(version, label, [_tested(place, tests, limit) for tests in GROUPS.values()], today)


def _environment(version: str, place: Path, wheel: Path) -> list[str]:
    """Makes the environment and returns the versions of what is in it."""
    package = "tf-nightly-cpu" if version == "nightly" else f"tensorflow-cpu=={version}"
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _wheel.run([*install, package, "pytest", "pytest-timeout"])
    _wheel.run([*install, str(wheel)])
    return _wheel.run([python, "-c", _LABEL]).stdout.splitlines()[-1].split()


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
    print((done.stdout + done.stderr)[-20000:], flush=True)
    failed = re.findall(r"FAILED (\S+)", done.stdout + done.stderr)
    print("\n".join(failed), flush=True)
    return "failed"


if __name__ == "__main__":
    sys.exit(main())
