"""pin_gpu on pretended lists of GPUs."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Sequence
from typing import Any

import pytest

import tfring as hvd
from tfring import _exchange, _gpu_devices, _ops, gpu, world
from tfring.gpu import View, choose, sharers


def _views(*hosts: tuple[int, str | None, int]) -> list[View]:
    """A view per rank: (host, CUDA_VISIBLE_DEVICES, GPUs seen)."""
    return [View(host, visible, [f"GPU:{i}" for i in range(n)]) for host, visible, n in hosts]


def _known(*ranks: str, visible: str | None = "0") -> list[View]:
    """A view per rank of one host, by the identities of the GPUs that it sees, a letter each."""
    return [View(0, visible, [f"GPU:{i}" for i in range(len(gpus))], [*gpus]) for gpus in ranks]


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param(_views(*[(0, None, 4)] * 4), [0, 1, 2, 3], id="all visible"),
        pytest.param(_views(*[(0, "4,5,6", 3)] * 3), [0, 1, 2], id="set for the host"),
        pytest.param(_views((0, "0", 1), (0, "1", 1), (0, "2", 1)), [0, 0, 0], id="per process"),
        pytest.param(_views((0, "0,1", 2), (0, "1,0", 2)), [0, 0], id="per process, first ones"),
        pytest.param(_views((0, "0,1", 2), (0, "0", 1)), [1, 0], id="leaves it to whom sees one"),
        pytest.param(_views((0, None, 2), (0, "0", 1)), [1, 0], id="all and one"),
        pytest.param(_views((0, "0,1", 2), (0, "0, 1", 2)), [0, 1], id="blanks"),
        pytest.param(_views((0, "2,3,-1,0", 2), (0, "2,3", 2)), [0, 1], id="none after -1"),
        pytest.param(_views(*[(0, "MIG-a", 1)] * 2), [0, 0], id="MIG"),
        pytest.param(_known("a", "b", "c"), [0, 0, 0], id="all called 0"),
        pytest.param(_known("ab", "ab", "ab"), [0, 1, 0], id="known, three on two"),
        pytest.param(_known("ab", "bc", "a"), [1, 1, 0], id="two move"),
        pytest.param(_known("abc", "a", "b"), [2, 0, 0], id="moves to the last"),
        pytest.param(_views(*[(0, "0,1", 2)] * 2, *[(0, "2,3", 2)] * 2), [0, 1, 0, 1], id="pairs"),
        pytest.param(_views((0, None, 2), (1, None, 2), (0, None, 2)), [0, 0, 1], id="two hosts"),
        pytest.param(_views(*[(0, None, 2)] * 5), [0, 1, 0, 1, 0], id="more ranks than GPUs"),
        pytest.param(_views((0, None, 0), (0, None, 0)), [None, None], id="no GPU"),
        pytest.param(_views((0, "", 0), (0, "1", 1)), [None, 0], id="a rank without"),
    ],
)
def test_each_rank_takes_its_own(views: list[View], expected: list[int | None]) -> None:
    assert choose(views) == expected


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param(_views(*[(0, None, 2)] * 2), [[], []], id="one each"),
        pytest.param(_views(*[(0, None, 2)] * 3), [[0, 2], [], [0, 2]], id="three on two"),
        pytest.param(_views((0, None, 1), (1, None, 1)), [[], []], id="different hosts"),
        pytest.param(_views((0, "0", 1), (0, "1", 1)), [[], []], id="per process"),
        pytest.param(_views((0, "0", 1), (0, "0", 1)), [[], []], id="one each, not known which"),
        pytest.param(_views((0, "0,1", 2), (0, "0", 1)), [[], []], id="two and one"),
        pytest.param(
            _views((0, "0,1", 2), *[(0, "0", 1)] * 2),
            [[], [1, 2], [1, 2]],
            id="two and the same one",
        ),
        pytest.param(_known("a", "b"), [[], []], id="all called 0"),
        pytest.param(_known("a", "a"), [[0, 1], [0, 1]], id="the same one given"),
        pytest.param(_known("a", "b", "a", visible=None), [[0, 2], [], [0, 2]], id="known"),
    ],
)
def test_who_shares(views: list[View], expected: list[list[int]]) -> None:
    assert [sharers(views, rank) for rank in range(len(views))] == expected


class _Config:
    """`tf.config` of a machine with some GPUs."""

    def __init__(self, count: int, started: bool = False, parts: bool = False) -> None:
        self.gpus = [types.SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(count)]
        self.visible: list[Any] = list(self.gpus)
        self.grows: list[Any] = []
        self.started = started
        self.parts = parts
        self.experimental = types.SimpleNamespace(set_memory_growth=self._set_memory_growth)

    def _set_memory_growth(self, device: Any, grow: bool) -> None:
        if self.parts:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        if self.started:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.grows.append((device, grow))

    def get_logical_device_configuration(self, device: Any) -> Any:
        return [object(), object()] if self.parts else None

    def get_visible_devices(self, kind: str) -> list[Any]:
        return self.visible

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
        monkeypatch.setattr(
            _gpu_devices, "identities", lambda count: [f"{i}" for i in range(count)]
        )
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


def test_a_late_call_that_has_nothing_to_choose_is_right(
    pretend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = _Config(1, started=True)
    pretend(config, 0, 1)
    assert hvd.pin_gpu() is config.gpus[0]
    (warning,) = _warnings(caplog)
    assert "memory of /physical_device:GPU:0 cannot be let grow" in warning
    assert hvd.pin_gpu(memory_growth=False) is config.gpus[0]
    assert len(_warnings(caplog)) == 1


def test_logical_devices_keep_the_memory_they_were_given(pretend: Any) -> None:
    config = _Config(2, parts=True)
    pretend(config, 1, 2)
    assert hvd.pin_gpu() is config.gpus[1]
    assert config.grows == []


class _Driver:
    """NVIDIA's driver, of a machine with some GPUs; a call named in `fails` does."""

    def __init__(self, count: int, fails: str = "") -> None:
        self.count, self.fails = count, fails

    def __getattr__(self, name: str) -> Any:
        call = getattr(type(self), f"_{name}")
        return lambda *arguments: 1 if name == self.fails else call(self, *arguments) or 0

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuDeviceGetCount(self, to: Any) -> None:
        to._obj.value = self.count

    def _cuDeviceGet(self, to: Any, place: int) -> None:
        to._obj.value = 10 + place

    def _cuDeviceGetUuid_v2(self, to: Any, device: Any) -> None:
        to._obj[:] = [device.value] * 16


_CALLS = ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2"]


def test_identities_are_the_uuids() -> None:
    assert _gpu_devices._identities(_Driver(2), 2) == ["0a" * 16, "0b" * 16]


@pytest.mark.parametrize("fails", _CALLS)
def test_a_driver_that_fails_tells_none(fails: str) -> None:
    assert _gpu_devices._identities(_Driver(2, fails), 2) == []


def test_a_driver_that_sees_others_tells_none() -> None:
    assert _gpu_devices._identities(_Driver(3), 2) == []


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda path: types.SimpleNamespace(cuInit=lambda flags: 0), id="old"),
        pytest.param(lambda path: ctypes.CDLL("libno_such_library.so"), id="missing"),
    ],
)
def test_without_a_driver_that_can_there_are_none(
    monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    monkeypatch.setattr(
        _gpu_devices, "ctypes", types.SimpleNamespace(**{**vars(ctypes), "CDLL": load})
    )
    assert _gpu_devices.identities(2) == []


def test_before_init_is_an_error() -> None:
    hvd.shutdown()
    with pytest.raises(hvd.NotInitializedError):
        hvd.pin_gpu()
