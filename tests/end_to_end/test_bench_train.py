"""One tiny run of `tfring bench train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfring.bench.train import cli
from tfring.bench.train.result import WAYS

pytestmark = pytest.mark.timeout(180)


def test_train_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    tiny = "--model cnn --batch 1 --repeat 1 --seconds 0.01 --check"
    assert cli.main([*tiny.split(), "--json", str(file)]) == 0
    (result,) = json.loads(file.read_text())["results"]
    assert [set(result["turns"]), len(result["exchanges"])] == [set(WAYS), 1]
    assert all(result["throughput"][way] > 0 for way in WAYS)
    printed = capsys.readouterr()
    assert "2 ranks, cnn, batch 1: of the throughput of 2 independent processes" in printed.out
    assert "cnn: 1 x 3 turns of" in printed.err
