"""pin_gpu on pretended lists of GPUs."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest

import tfring as hvd
from tfring import _exchange, _ops, gpu, world
from tfring.gpu import View, choose, sharers


def _views(*hosts: tuple[int, str | None, int]) -> list[View]:
    """A view per rank: (host, CUDA_VISIBLE_DEVICES, GPUs seen)."""
    return [View(host, visible, [f"GPU:{i}" for i in range(n)]) for host, visible, n in hosts]


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param(_views(*[(0, None, 4)] * 4), [0, 1, 2, 3], id="all visible"),
        pytest.param(_views(*[(0, "4,5,6", 3)] * 3), [0, 1, 2], id="set for the host"),
        pytest.param(_views((0, "0", 1), (0, "1", 1), (0, "2", 1)), [0, 0, 0], id="per process"),
        pytest.param(_views((0, "0,1", 2), (0, "1,0", 2)), [0, 0], id="per process, first ones"),
        pytest.param(_views(*[(0, "0,1", 2)] * 2, *[(0, "2,3", 2)] * 2), [0, 1, 0, 1], id="pairs"),
        pytest.param(_views((0, None, 2), (1, None, 2), (0, None, 2)), [0, 0, 1], id="two hosts"),
        pytest.param(_views(*[(0, None, 2)] * 5), [0, 1, 0, 1, 0], id="more ranks than GPUs"),
        pytest.param(_views((0, None, 0), (0, None, 0)), [None, None], id="no GPU"),
        pytest.param(_views((0, "", 0), (0, "1", 1)), [None, 0], id="a rank without"),
    ],
)
def test_each_rank_takes_its_own(views: list[View], expected: list[int | None]) -> None:
    assert [choose(views, rank) for rank in range(len(views))] == expected


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param(_views(*[(0, None, 2)] * 2), [[], []], id="one each"),
        pytest.param(_views(*[(0, None, 2)] * 3), [[0, 2], [], [0, 2]], id="three on two"),
        pytest.param(_views((0, None, 1), (1, None, 1)), [[], []], id="different hosts"),
        pytest.param(_views((0, "0", 1), (0, "1", 1)), [[], []], id="per process"),
        pytest.param(_views((0, "0", 1), (0, "0", 1)), [[0, 1], [0, 1]], id="the same one given"),
    ],
)
def test_who_shares(views: list[View], expected: list[list[int]]) -> None:
    assert [sharers(views, rank) for rank in range(len(views))] == expected


class _Config:
    """`tf.config` of a machine with some GPUs."""

    def __init__(self, count: int, started: bool = False) -> None:
        self.gpus = [types.SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(count)]
        self.visible: list[Any] = list(self.gpus)
        self.grows: list[Any] = []
        self.started = started
        self.experimental = types.SimpleNamespace(
            set_memory_growth=lambda device, grow: self.grows.append((device, grow))
        )

    def list_physical_devices(self, kind: str) -> list[Any]:
        assert kind == "GPU"
        return self.gpus

    def list_logical_devices(self, kind: str) -> list[Any]:
        return self.gpus

    def set_visible_devices(self, device: Any, kind: str) -> None:
        if self.started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = [device]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process a rank of a host whose ranks all see what it sees."""

    def start(config: _Config, rank: int, size: int) -> None:
        monkeypatch.setattr(_ops, "tensorflow", lambda: types.SimpleNamespace(config=config))
        monkeypatch.setattr(world, "rank", lambda: rank)
        monkeypatch.setattr(gpu, "_hosts", lambda: [0] * size)
        monkeypatch.setattr(_exchange, "allgather", lambda data, name: [data] * size)

    return start


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_only_its_gpu_is_visible(pretend: Any, rank: int) -> None:
    config = _Config(4)
    pretend(config, rank, 3)
    assert hvd.pin_gpu() is config.gpus[rank]
    assert config.visible == [config.gpus[rank]]
    assert config.grows == [(config.gpus[rank], True)]


def test_memory_growth_can_be_left_alone(pretend: Any) -> None:
    config = _Config(1)
    pretend(config, 0, 1)
    hvd.pin_gpu(memory_growth=False)
    assert config.grows == []


def test_without_gpus_nothing_changes(pretend: Any) -> None:
    config = _Config(0)
    pretend(config, 1, 2)
    assert hvd.pin_gpu() is None
    assert config.visible == []


def _warnings(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("rank", "count"), [(0, 1), (1, 1), (2, 0), (3, 0)])
def test_the_first_of_those_that_share_says_so(
    pretend: Any, caplog: pytest.LogCaptureFixture, rank: int, count: int
) -> None:
    pretend(_Config(2), rank, 4)
    hvd.pin_gpu()
    warnings = _warnings(caplog)
    assert len(warnings) == count
    if count:
        assert (
            f"ranks {rank}, {rank + 2} of one host share /physical_device:GPU:{rank}"
            in (warnings[0])
        )


def test_too_late_says_when_to_call_it(pretend: Any) -> None:
    pretend(_Config(2, started=True), 1, 2)
    with pytest.raises(
        RuntimeError,
        match=r"too late to choose /physical_device:GPU:1: TensorFlow has started with 2 GPUs .*"
        r"Call it right after tfring\.init\(\)",
    ):
        hvd.pin_gpu()


def test_before_init_is_an_error() -> None:
    hvd.shutdown()
    with pytest.raises(hvd.NotInitializedError):
        hvd.pin_gpu()
