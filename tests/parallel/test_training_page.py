"""The examples of docs/training.md run between ranks, and leave the ranks alike.

Ranks that end with different weights are an error that `fit` itself finds.
"""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf

import tfring as hvd

from ..pages import ROOT, Block, blocks, run

PAGE = ROOT / "docs" / "training.md"
pytestmark = pytest.mark.many_ranks


@pytest.fixture
def shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks work in rank 0's folder."""
    monkeypatch.chdir(hvd.broadcast_object(str(tmp_path)))


@pytest.mark.parametrize("block", blocks(PAGE), ids=lambda block: f"line {block[0] + 1}")
def test_example_runs(block: Block, shared_folder: None) -> None:
    keras.utils.set_random_seed(hvd.rank())  # ranks start differently, as in life,
    tf.random.set_seed(1)  # but shuffle alike
    run(PAGE, block, {"__name__": "page"})
    hvd.barrier()
