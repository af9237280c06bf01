"""The examples of whole tasks: ImageNet, a GAN, sparse gradients."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGENET = ("--model", "small", "--image-size", "32", "--batch-size", "8")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(launcher: Any) -> Any:
    """Runs an example on a number of ranks and returns its output."""

    def run(ranks: int, name: str, *arguments: str) -> str:
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        job = launcher.run("-np", str(ranks), *command, timeout=240)
        assert job.returncode == 0, job.stderr + job.stdout
        return job.stdout

    return run


def digests(output: str, what: str = "weights") -> set[tuple[str, str]]:
    return set(re.findall(rf"rank (\d+): {what} ([0-9a-f]{{64}})", output))


def assert_equal_on_ranks(output: str, ranks: int, what: str = "weights") -> None:
    found = digests(output, what)
    assert {rank for rank, _ in found} == {str(rank) for rank in range(ranks)}
    assert len({digest for _, digest in found}) == 1


def rates(output: str) -> list[float]:
    line = re.search(r"^\[0\] learning rates (.*)$", output, re.MULTILINE)
    assert line, output
    return [float(rate) for rate in line[1].split()]


def test_imagenet_trains_and_goes_on(run: Any, launcher: Any) -> None:
    first = run(2, "keras_imagenet_resnet50.py", *IMAGENET, "--epochs", "2")
    assert_equal_on_ranks(first, 2)
    saved = {path.name for path in launcher.folder.glob("*.keras")}
    assert saved == {"checkpoint-1.keras", "checkpoint-2.keras"}
    # 4 steps an epoch; at the last step of epoch e: 0.025 / 2 * ((e + 3/4) / 5 + 1).
    assert rates(first) == pytest.approx([0.0125 * (1 + 0.75 / 5), 0.0125 * (1 + 1.75 / 5)])

    third = run(2, "keras_imagenet_resnet50.py", *IMAGENET, "--epochs", "3", "--fp16-allreduce")
    assert "going on after epoch 2" in third
    assert "Epoch 3/3" in third
    assert "Epoch 1/" not in third
    assert rates(third) == pytest.approx([0.0125 * (1 + 2.75 / 5)])
    assert_equal_on_ranks(third, 2)
    assert digests(third) != digests(first)
    assert (launcher.folder / "checkpoint-3.keras").exists()
    logs = launcher.folder / "logs"
    assert logs.exists() or "no TensorBoard logs" in third


def test_imagenet_without_anything_left_to_do(run: Any, launcher: Any) -> None:
    (launcher.folder / "checkpoint-4.keras").touch()
    output = run(2, "keras_imagenet_resnet50.py", *IMAGENET, "--epochs", "4")
    assert "checkpoint-4.keras is the last epoch's already" in output


def test_imagenet_with_several_batches_per_allreduce(run: Any) -> None:
    options = ("--batches-per-allreduce", "2", "--gradient-predivide-factor", "2")
    options += ("--warmup-epochs", "0", "--log-dir", "", "--epochs", "1")
    output = run(2, "keras_imagenet_resnet50.py", *IMAGENET, *options)
    assert rates(output) == pytest.approx([0.0125 * 2 * 2])
    assert_equal_on_ranks(output, 2)


def test_imagenet_with_adasum(run: Any) -> None:
    options = ("--use-adasum", "--warmup-epochs", "0", "--log-dir", "", "--epochs", "1")
    output = run(2, "keras_imagenet_resnet50.py", *IMAGENET, *options)
    assert rates(output) == pytest.approx([0.0125])  # that of one rank
    assert_equal_on_ranks(output, 2)


def test_imagenet_rate_drops_at_30_60_and_80() -> None:
    drop = runpy.run_path(str(EXAMPLES / "keras_imagenet_resnet50.py"))["drop"]
    factors = {epoch: drop(epoch) for epoch in (0, 29, 30, 59, 60, 79, 80, 89)}
    expected = {0: 1, 29: 1, 30: 0.1, 59: 0.1, 60: 0.01, 79: 0.01, 80: 0.001, 89: 0.001}
    assert factors == pytest.approx(expected)


def test_imagenet_says_what_a_folder_must_hold(launcher: Any) -> None:
    for part in ("train", "val"):
        (launcher.folder / part / "label").mkdir(parents=True)
    script = str(EXAMPLES / "keras_imagenet_resnet50.py")
    folders = ("--train-dir", "train", "--val-dir", "val")
    job = launcher.run("-np", "2", sys.executable, script, *IMAGENET, *folders, timeout=120)
    assert job.returncode == 1
    assert "train must hold one folder per class" in job.stderr
    assert "Received: 1 folders with 0 images" in job.stderr


def test_two_optimizers_in_one_step(run: Any) -> None:
    output = run(2, "gan.py", "--epochs", "3")
    assert_equal_on_ranks(output, 2, "generator")
    assert_equal_on_ranks(output, 2, "discriminator")
    assert "[0] epoch 3: generator" in output
    assert "[1] epoch" not in output


def test_sparse_gradients_give_the_numbers_of_whole_tables(run: Any) -> None:
    rows, tables = (run(2, "embedding.py", "--epochs", "3", *more) for more in ((), ("--dense",)))
    assert_equal_on_ranks(rows, 2)
    assert digests(rows) == digests(tables)
    sent = [int(re.search(r"distinct rows, (\d+) bytes", out)[1]) for out in (rows, tables)]
    assert sent[0] < sent[1] / 10


def test_sparse_gradients_on_two_ranks_learn_what_one_learns(run: Any) -> None:
    losses = [
        [float(loss) for loss in re.findall(r"loss ([0-9.]+) over", run(n, "embedding.py"))]
        for n in (1, 2)
    ]
    assert len(losses[0]) == 6
    assert losses[0][-1] < losses[0][0] / 1.5
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_two_process_sets_train_two_models(run: Any) -> None:
    output = run(4, "process_sets.py", "--epochs", "3")
    found = {name: digests(output, name) for name in ("wide", "deep")}
    assert {rank for rank, _ in found["wide"]} == {"0", "2"}
    assert {rank for rank, _ in found["deep"]} == {"1", "3"}
    assert all(len({digest for _, digest in pairs}) == 1 for pairs in found.values())
    assert "[0] ranks [0, 2] trained wide" in output
    assert "[1] ranks [1, 3] trained deep" in output
    accuracy = float(re.search(r"together: accuracy ([0-9.]+)", output)[1])
    assert accuracy > 0.85
