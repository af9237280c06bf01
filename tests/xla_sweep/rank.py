"""What each rank of the sweep runs: `rank.py DTYPES COLLECTIVES SIZES REPEATS`, lists with commas.

Rank 0 prints a row of a table for each case.
"""

from __future__ import annotations

import resource
import sys
import time

import tensorflow as tf
from cases import function, has, wrong

import tfring as hvd


def main(arguments: list[str]) -> int:
    """Returns 1 if anything was wrong on this rank."""
    dtypes, collectives, sizes = (argument.split(",") for argument in arguments[:3])
    repeats = int(arguments[3])
    hvd.init()
    failed = False
    for dtype in map(tf.as_dtype, dtypes):
        for collective in collectives:
            if not has(collective, dtype):
                continue
            for size in map(int, sizes):
                run = function(collective, dtype, size)
                run(tf.constant(0))  # compiles
                begin = time.monotonic()
                fault = wrong(run, repeats)
                seconds = (time.monotonic() - begin) / repeats
                # One answer for all: a rank that is wrong must not stop alone.
                faults = hvd.allgather_object(fault)
                failed = failed or any(faults)
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                if hvd.rank() == 0:
                    told = [f"rank {r}: {fault}" for r, fault in enumerate(faults) if fault]
                    print(
                        f"| {collective} | {dtype.name} | {size} | {1e3 * seconds:.3f} ms | "
                        f"{memory:.0f} MiB | {'; '.join(told) or 'right'} |",
                        flush=True,
                    )
    hvd.shutdown()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
