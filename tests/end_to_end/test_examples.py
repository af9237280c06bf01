"""The examples, run as users run them: real data, their own processes."""

from __future__ import annotations

import functools
import json
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import Launcher

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Trained:
    accuracy: float
    digests: dict[int, str]  # of the final weights, by rank
    curve: list[float]  # loss after each epoch
    output: str


def digests_in(output: str) -> dict[int, str]:
    return {int(r): d for r, d in re.findall(r"rank (\d+): weights ([0-9a-f]{64})", output)}


def train(launcher: Launcher, ranks: int, *arguments: str) -> Trained:
    """Runs the digits example."""
    command = [sys.executable, str(EXAMPLES / "keras_digits.py"), *arguments]
    job = launcher.run("-np", str(ranks), *command, timeout=240)
    assert job.returncode == 0, job.stderr + job.stdout
    accuracy = re.search(r"test accuracy ([0-9.]+)", job.stdout)
    assert accuracy, job.stdout
    curves = curves_in(launcher.folder)
    return Trained(float(accuracy[1]), digests_in(job.stdout), curves[str(ranks)], job.stdout)


def curves_in(folder: Path) -> dict[str, list[float]]:
    return json.loads((folder / "digits_loss.json").read_text())["curves"]


@pytest.fixture
def digits(launcher: Launcher) -> Any:
    """Runs the digits example: `digits(ranks, *arguments)`."""
    return functools.partial(train, launcher)


@dataclass(frozen=True)
class Usual:
    """The example as it stands, on one rank and then, in the same folder, on two."""

    folder: Path
    one: Trained
    two: Trained


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Usual]:
    launcher = Launcher(tmp_path_factory.mktemp("usual"))
    yield Usual(launcher.folder, train(launcher, 1), train(launcher, 2))
    launcher.close()


def test_two_processes_reach_the_accuracy_of_one(usual: Usual) -> None:
    assert usual.one.accuracy > 0.95
    assert usual.two.accuracy >= usual.one.accuracy - 0.01
    assert usual.two.digests[0] == usual.two.digests[1]
    assert set(curves_in(usual.folder)) == {"1", "2"}


def test_loss_curves_become_a_picture(usual: Usual) -> None:
    pytest.importorskip("matplotlib")
    assert (usual.folder / "digits_loss.png").read_bytes().startswith(b"\x89PNG")


def test_progress_comes_from_one_rank(usual: Usual) -> None:
    lines = usual.two.output.splitlines()
    assert {line.split()[0] for line in lines if "loss:" in line} == {"[0]"}


def test_a_seed_gives_the_same_bits_again(digits: Any, usual: Usual) -> None:
    again, other = digits(2), digits(2, "--epochs", "1", "--seed", "5")
    assert again.digests == usual.two.digests
    assert again.curve == usual.two.curve
    assert other.curve[0] != again.curve[0]


def test_loss_curve_of_two_processes_is_that_of_one(digits: Any) -> None:
    one, two = (digits(ranks, "--epochs", "3", "--momentum", "0") for ranks in (1, 2))
    assert two.curve == pytest.approx(one.curve, rel=1e-5)


def test_whole_batches_with_warm_up(digits: Any) -> None:
    trained = digits(2, "--weak", "--batch", "24", "--rate", "0.025")
    assert trained.accuracy > 0.95
    assert trained.digests[0] == trained.digests[1]


def test_batch_that_cannot_be_cut(launcher: Any) -> None:
    script = str(EXAMPLES / "keras_digits.py")
    job = launcher.run("-np", "2", sys.executable, script, "--batch", "5", timeout=120)
    assert job.returncode == 1
    assert "must be a multiple of the number of ranks, 2. Received: --batch 5" in job.stderr


def test_loop_under_tf_function(launcher: Any) -> None:
    script = str(EXAMPLES / "tf_function_loop.py")
    job = launcher.run("-np", "2", sys.executable, script, "--epochs", "3", timeout=200)
    assert job.returncode == 0, job.stderr + job.stdout
    digests = digests_in(job.stdout)
    assert digests[0] == digests[1]
    losses = [float(x) for x in re.findall(r"loss ([0-9.]+) over 2 ranks", job.stdout)]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 2


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_help_fits_a_screen(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert "usage:" in output
    assert f"tfringrun -np 2 python {name}" in output
    lines = output.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
