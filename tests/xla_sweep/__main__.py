"""Every collective under `jit_compile=True`: ten independent calls in one function, many times.

    python -m tests.xla_sweep [-np 2,4] [--sizes 4,64K,64M] [--collective sum,mixed] ...

Run it from the root of the repository, with tfring installed. All results of all repeats are
compared with what they must be; a collective that waits too long ends the run. Prints a table: the
mean time of a function, all its calls and the comparison included, and rank 0's largest resident
size so far.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
COLLECTIVES = (
    "sum,average,min,max,product,grouped,allgather,broadcast,reducescatter,alltoall,barrier,mixed"
)
SIZES = "4,1K,64K,1M,16M,64M"
_UNITS = {"K": 1 << 10, "M": 1 << 20}
_FAIL_S = 60  # a collective that waits so long


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 if all was right."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.xla_sweep", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("-np", type=_numbers, default="2,4", help="numbers of ranks (2,4)")
    add("--collective", type=_collectives, default=COLLECTIVES, help=f"({COLLECTIVES})")
    add("--sizes", type=_sizes, default=SIZES, help=f"bytes ({SIZES})")
    add("--dtype", default="float32", help="float32 (default), float16, bfloat16, int8, ...")
    add("--repeats", type=_positive, default=100, help="calls of each function (100)")
    options = parser.parse_args(arguments)
    codes = [_swept(np, options) for np in options.np]
    print("FAILED" if any(codes) else "All right.")
    return int(any(codes))


def _swept(np: int, options: argparse.Namespace) -> int:
    """Runs one job and prints its table line by line."""
    sizes = ",".join(map(str, options.sizes))
    command = [sys.executable, "-m", "tfring.launch", "-np", str(np)]
    command += [sys.executable, str(FOLDER / "rank.py"), options.dtype, options.collective, sizes]
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TFRING_STALL_FAIL_SECONDS": str(_FAIL_S),
    }
    print(f"\n{np} ranks, {options.repeats} repeats\n")
    print("| collective | dtype | bytes | function | resident | |\n|---|---|---|---|---|---|")
    # In a folder of its own: the sources hold no libraries.
    with (
        tempfile.TemporaryDirectory(prefix="tfring-sweep-") as folder,
        subprocess.Popen(
            [*command, str(options.repeats)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as job,
    ):
        assert job.stdout is not None
        for line in job.stdout:
            # Without the rank that the launcher puts before it.
            print(line[max(0, line.find("| ")) :].rstrip(), flush=True)
    return job.returncode


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer. Received: {text!r}")
    return number


def _numbers(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _sizes(text: str) -> list[int]:
    return [_bytes(part) for part in text.split(",")]


def _bytes(text: str) -> int:
    unit = _UNITS.get(text[-1:], 1)
    return _positive(text[:-1] if unit > 1 else text) * unit


def _collectives(text: str) -> str:
    unknown = sorted(set(text.split(",")) - set(COLLECTIVES.split(",")))
    if unknown:
        raise argparse.ArgumentTypeError(f"takes some of {COLLECTIVES}. Received: {unknown[0]!r}")
    return text


if __name__ == "__main__":
    sys.exit(main())
