"""Who is told that gradients leave the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _staged, gpu_build, world

pytestmark = pytest.mark.usefixtures("world")


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU, and kernels for it."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["a GPU"])
    monkeypatch.setattr(gpu_build, "is_built", lambda tf: True)
    _staged._warn.cache_clear()
    yield
    _staged._warn.cache_clear()


def _told(caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    caplog.clear()
    hvd.DistributedOptimizer(keras.optimizers.SGD(), **options)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"compression": hvd.Compression.fp16}, "compression=FP16Compressor"),
        ({"compression": hvd.Compression.bf16}, "compression=BF16Compressor"),
        ({"op": hvd.Adasum}, "op=tfring.Adasum"),
    ],
    ids=["fp16", "bf16", "adasum"],
)
def test_what_nccl_does_not_know_is_told_once(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], what: str
) -> None:
    (text,) = _told(caplog, **options)
    assert f"travel through host memory, not by NCCL: {what} has no counterpart" in text
    assert _told(caplog, **options) == []


def test_a_tape_tells_too(caplog: pytest.LogCaptureFixture) -> None:
    hvd.DistributedGradientTape(tf.GradientTape(), compression=hvd.Compression.fp16)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("options", [{}, {"op": hvd.Sum}], ids=["average", "sum"])
def test_what_nccl_knows_is_not_told(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    assert _told(caplog, **options) == []


def test_other_ranks_keep_silent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "rank", lambda: 1)
    assert _told(caplog, compression=hvd.Compression.fp16) == []


@pytest.mark.parametrize("missing", ["gpu", "kernels"])
def test_where_nothing_would_stay_on_a_gpu_it_is_not_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "gpu":
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [])
    else:
        monkeypatch.setattr(gpu_build, "is_built", lambda tf: False)
    assert _told(caplog, compression=hvd.Compression.fp16) == []
