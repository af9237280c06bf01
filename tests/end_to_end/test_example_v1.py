"""The v1 example, run as users run it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "v1_session.py"

pytestmark = pytest.mark.timeout(300)


def run(launcher: Any, ranks: int, *arguments: str) -> tuple[float, dict[str, str]]:
    """Returns the accuracy, and the digest of each rank's weights."""
    job = launcher.run("-np", str(ranks), sys.executable, str(SCRIPT), *arguments, timeout=240)
    assert job.returncode == 0, job.stderr + job.stdout
    accuracy = re.search(rf"accuracy ([0-9.]+) over {ranks} ranks", job.stdout)
    assert accuracy, job.stdout
    digests = dict(re.findall(r"rank (\d+): weights ([0-9a-f]{64})", job.stdout))
    return float(accuracy[1]), digests


def test_two_processes_learn_and_end_alike(launcher: Any) -> None:
    accuracy, digests = run(launcher, 2, "--passes", "2")
    assert accuracy > 0.95
    assert digests["0"] == digests["1"]


def test_one_process_and_resuming_with_two(launcher: Any) -> None:
    folder = launcher.folder / "checkpoints"
    first, _ = run(launcher, 1, "--steps", "100", "--checkpoints", str(folder))
    assert (folder / "model.ckpt-100.index").exists()
    second, digests = run(launcher, 2, "--steps", "300", "--checkpoints", str(folder))
    # Steps go on from where one process stopped, on both ranks.
    assert (folder / "model.ckpt-150.index").exists()
    assert digests["0"] == digests["1"]
    assert second > first - 0.02
