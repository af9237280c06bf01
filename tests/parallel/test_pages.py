"""The examples of the pages run between ranks, and leave the ranks alike.

Ranks that end with different weights are an error that `fit` itself finds.
"""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf

import tfring as hvd

from ..pages import ROOT, Block, blocks, run

DOCS = ROOT / "docs"
# Each block of these stands by itself.
ALONE = [DOCS / "training.md", DOCS / "data.md"]
# Each block of these needs the page's first one.
WITH_FIRST = [DOCS / "how_to.md", DOCS / "trouble.md"]
pytestmark = pytest.mark.many_ranks


@pytest.fixture
def shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks work in rank 0's folder."""
    monkeypatch.chdir(hvd.broadcast_object(str(tmp_path)))


def programs(pages: list[Path], skip: int) -> list[object]:
    return [
        pytest.param(page, block, id=f"{page.name}:{block[0] + 1}")
        for page in pages
        for block in blocks(page)[skip:]
    ]


@pytest.mark.parametrize(("page", "block"), programs(ALONE, 0))
def test_example_runs(page: Path, block: Block, shared_folder: None) -> None:
    keras.utils.set_random_seed(hvd.rank())  # ranks start differently, as in life,
    tf.random.set_seed(1)  # but shuffle alike
    run(page, block, {"__name__": "page"})
    hvd.barrier()


@pytest.mark.parametrize(("page", "block"), programs(WITH_FIRST, 1))
def test_example_runs_after_the_first(page: Path, block: Block, shared_folder: None) -> None:
    keras.utils.set_random_seed(1)
    names: dict[str, object] = {"__name__": "page"}
    run(page, blocks(page)[0], names)
    run(page, block, names)
    hvd.barrier()
