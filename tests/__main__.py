"""Runs the tests of tfring on the installed package: `python tests`.

Builds and runs the engine's own tests, then the unit tests, the parallel tests on 2, 3 and 4
ranks, and the end-to-end tests. Several tests run at a time where they do not disturb each other:
those marked `alone` measure time or processor use. Everything runs in a temporary folder, so that
the package that is tested is the installed one and never the source tree.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent
LIMIT_S = 1200  # of one command
AT_ONCE = min(4, len(os.sched_getaffinity(0)))  # tests; each has a few busy threads
# Tests of tests/parallel that also run on 3 and 4 ranks.
MORE_RANKS = ("collectives_*", "keras_values", "sync_batch_norm*", "tape", "v1_start")
# Of these, what sees no more in three ranks than in two and in four: parts of equal size or none.
NOT_ON_3 = ("collectives_fit", "collectives_gradients", "collectives_sparse", "keras_values")
NOT_ON_3 += ("collectives_training_sets", "collectives_xla_sweep", "sync_batch_norm*", "tape")
NOT_ON_3 += ("v1_start",)
SPREAD = ("-n", str(AT_ONCE), "--dist", "worksteal")
SANITIZERS = {"address": "address,undefined", "thread": "thread"}

# Runs a command in the temporary folder; raises CalledProcessError or TimeoutExpired.
Run = Callable[[list[str]], None]


def engine(run: Run, sanitize: str | None = None) -> None:
    """Builds and runs the C++ tests; warnings are errors."""
    build = [tool("cmake"), "-S", str(ROOT), "-B", "engine", "-DTFRING_BUILD_TENSORFLOW=OFF"]
    build += ["-DTFRING_BUILD_TESTS=ON", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", "-GNinja"]
    if sanitize:
        build += [f"-DTFRING_SANITIZE={SANITIZERS[sanitize]}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
        build += ["-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g"]  # half the time to compile
    run(build)
    run([tool("cmake"), "--build", "engine", "--parallel", "2", "--", "--quiet"])
    test = [tool("ctest"), "--test-dir", "engine", "--output-on-failure", "--timeout", "300"]
    run([*test, "--parallel", str(AT_ONCE)])


def unit(run: Run) -> None:
    """Runs the tests that need one process."""
    run([*pytest(TESTS / "unit"), *SPREAD])


def parallel(run: Run) -> None:
    """Runs the tests that every rank runs: all on 2 ranks, some on 3 and 4."""
    run([*launcher(2), *pytest(TESTS / "parallel")])
    run([*launcher(3), *pytest(*sorted(files(MORE_RANKS) - files(NOT_ON_3)))])
    run([*launcher(4), *pytest(*sorted(files(MORE_RANKS)))])


def files(names: tuple[str, ...]) -> set[pathlib.Path]:
    """The files of parallel tests with these names, which may have a `*`."""
    return {path for name in names for path in (TESTS / "parallel").glob(f"test_{name}.py")}


def end_to_end(run: Run) -> None:
    """Runs the tests that start jobs of their own."""
    run([*pytest(TESTS / "end_to_end"), *SPREAD, "-m", "not alone"])
    run([*pytest(TESTS / "end_to_end"), "-m", "alone"])


PARTS = {"engine": engine, "unit": unit, "parallel": parallel, "end_to_end": end_to_end}


def tool(name: str) -> str:
    """Returns the path of a build tool, first that of this Python's environment."""
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(name, path=os.pathsep.join([scripts, os.environ.get("PATH", "")]))
    if found is None:
        sys.exit(f"{name} is not installed; it comes with `pip install '.[test]'`")
    return found


def pytest(*paths: pathlib.Path) -> list[str]:
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    return [sys.executable, "-m", "pytest", "-q", *config, *map(str, paths)]


def launcher(ranks: int) -> list[str]:
    return [sys.executable, "-m", "tfring.launch", "-np", str(ranks)]


def run_in(folder: str, command: list[str]) -> None:
    """Runs one command; it and everything below it are ended when its time is over."""
    print("+", " ".join(command), flush=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            code = process.wait(LIMIT_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def run_part(name: str, sanitize: str | None) -> str | None:
    """Returns why the part failed, or None."""
    with tempfile.TemporaryDirectory(prefix="tfring-tests-") as folder:

        def run(command: list[str]) -> None:
            run_in(folder, command)

        try:
            if name == "engine":
                engine(run, sanitize)
            else:
                PARTS[name](run)
        except subprocess.CalledProcessError as error:
            return f"exit code {error.returncode}"
        except subprocess.TimeoutExpired:
            return f"not done after {LIMIT_S} s"
    return None


def show_package() -> None:
    """Says what is tested; ends the program when it is not installed."""
    code = "import tfring; print('Testing tfring', tfring.__version__, 'in', tfring.__path__[0])"
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_in(folder, [sys.executable, "-c", code])
        except subprocess.CalledProcessError:
            sys.exit("tfring is not installed for this Python: pip install '.[cpu,test]'")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests", description=__doc__.split("\n\n")[1])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if none")
    parser.add_argument(
        "--sanitize", choices=SANITIZERS, help="build the engine's tests with a sanitizer"
    )
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"PART must be one of {', '.join(PARTS)}. Received: {' '.join(unknown)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended, too
    parts = args.parts or list(PARTS)
    if parts != ["engine"]:
        show_package()
    lines = []
    failed = False
    for part in parts:
        start = time.monotonic()
        reason = run_part(part, args.sanitize)
        failed = failed or reason is not None
        result = "passed" if reason is None else f"FAILED: {reason}"
        lines.append(f"  {part:<10} {time.monotonic() - start:6.0f} s  {result}")
    print("", "tfring tests:", *lines, "FAILED" if failed else "All passed.", sep="\n", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
