"""What workers of a job tell a test, one JSON object a line."""

from __future__ import annotations

import json
from typing import Any

MARK = "REPORT "

# Put first in a worker's program; `tell(**values)` then reports from there.
PRELUDE = f"""
import json, os, sys, time
import tensorflow as tf
import tfring.keras as hvd

def tell(**values):
    print("{MARK}" + json.dumps(dict(values, at=time.monotonic())), flush=True)

"""


def reports(output: str, rank: int) -> list[dict[str, Any]]:
    """What a rank told, in its order; `at` is the time, on the clock of all processes here."""
    start = f"[{rank}] {MARK}"
    return [
        json.loads(line[len(start) :]) for line in output.splitlines() if line.startswith(start)
    ]
