from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from ctypes import byref, c_int32, c_void_p, string_at

import pytest

from tfring import _failure, _native, errors
from tfring._identity import Identity

SECRET = "between us"


@pytest.fixture
def store() -> Iterator[str]:
    server, port = c_void_p(), c_int32()
    _native.call("tfr_store_serve", b"127.0.0.1", 0, SECRET.encode(), byref(server), byref(port))
    yield f"127.0.0.1:{port.value}"
    _native.engine().tfr_store_server_close(server)


def read(store: str, key: str) -> bytes | None:
    client, found = c_void_p(), _native.Bytes()
    _native.call("tfr_store_connect", store.encode(), SECRET.encode(), 5.0, byref(client))
    try:
        _native.call("tfr_store_get", client, key.encode(), 0.0, byref(found))
        return string_at(found.data, found.size)
    except errors.CommunicationError:
        return None
    finally:
        _native.engine().tfr_bytes_free(byref(found))
        _native.engine().tfr_store_client_close(client)


def identity(store: str | None, rank: int) -> Identity:
    return Identity(rank, 2, "a", store, SECRET, "j1")


@pytest.fixture(autouse=True)
def this_process_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_failure._end, "at_once", False)


class Recorder:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> None:
        self.texts.append(text)


def raise_through(hook: _failure.FailureHook, error: BaseException) -> None:
    hook(type(error), error, None)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Stands in for the hook that prints, and keeps what it was given."""
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(error))
    return seen


def test_first_failure_is_recorded_and_ends_the_world(store: str, quiet: list) -> None:
    abort = Recorder()
    hook = _failure.FailureHook(identity(store, 1), abort)
    hook.install()
    error = ValueError("boom7")
    raise_through(hook, error)
    hook.remove()
    record = json.loads(read(store, "failure/j1") or b"null")
    assert record == {"rank": 1, "text": "ValueError: boom7", "secondary": False}
    assert abort.texts == ["ValueError: boom7"]
    assert quiet == [error]


def test_long_text_becomes_one_short_line(store: str, quiet: list) -> None:
    abort = Recorder()
    hook = _failure.FailureHook(identity(store, 1), abort)
    hook.install()
    raise_through(hook, ValueError("first\n  second\n" + "x" * 5000))
    (text,) = abort.texts
    assert text.startswith("ValueError: first second xxx")
    assert len(text) == 400
    hook.remove()


def test_second_failure_does_not_replace_the_first(store: str) -> None:
    assert _failure.claim(identity(store, 1), "first") is True
    assert _failure.claim(identity(store, 0), "second") is False
    assert json.loads(read(store, "failure/j1") or b"null")["text"] == "first"


@pytest.mark.parametrize(
    "error", [errors.CommunicationError("rank 1 left"), KeyboardInterrupt(), SystemExit(3)]
)
def test_what_is_nobodys_fault_is_not_recorded(
    store: str, quiet: list, error: BaseException
) -> None:
    abort = Recorder()
    hook = _failure.FailureHook(identity(store, 0), abort)
    hook.install()
    raise_through(hook, error)
    hook.remove()
    assert read(store, "failure/j1") is None
    assert abort.texts == []
    assert quiet == [error]


def test_lost_peer_is_marked_as_secondary(store: str, quiet: list) -> None:
    abort = Recorder()
    hook = _failure.FailureHook(identity(store, 0), abort)
    hook.install()
    error = errors.CommunicationError("rank 1 has\nshut down")
    raise_through(hook, error)
    hook.remove()
    record = json.loads(read(store, "secondary/j1/0") or b"null")
    text = "CommunicationError: rank 1 has shut down"
    assert record == {"rank": 0, "text": text, "secondary": True}
    assert read(store, "failure/j1") is None
    assert abort.texts == []
    assert quiet == [error]


def test_mark_keeps_the_end_of_a_long_text(store: str) -> None:
    _failure.mark_secondary(identity(store, 0), "x" * 5000 + " rank 1 has shut down")
    text = json.loads(read(store, "secondary/j1/0") or b"null")["text"]
    assert text.endswith("x rank 1 has shut down")
    assert len(text) == 400


@pytest.mark.parametrize("error", [ValueError("boom7"), KeyboardInterrupt(), SystemExit(3)])
def test_nothing_else_is_marked_as_secondary(store: str, quiet: list, error: BaseException) -> None:
    hook = _failure.FailureHook(identity(store, 0), Recorder())
    hook.install()
    raise_through(hook, error)
    hook.remove()
    assert read(store, "secondary/j1/0") is None


def test_mark_that_cannot_be_written_is_told(quiet: list, capsys: pytest.CaptureFixture) -> None:
    hook = _failure.FailureHook(identity("127.0.0.1:1", 0), Recorder())
    hook.install()
    error = errors.CommunicationError("rank 1 left")
    raise_through(hook, error)
    hook.remove()
    assert "could not record the failure" in capsys.readouterr().err
    assert quiet == [error]


def test_lost_store_still_ends_the_world(quiet: list, capsys: pytest.CaptureFixture) -> None:
    abort = Recorder()
    hook = _failure.FailureHook(identity("127.0.0.1:1", 0), abort)
    hook.install()
    raise_through(hook, ValueError("boom7"))
    hook.remove()
    assert abort.texts == ["ValueError: boom7"]
    assert "could not record the failure" in capsys.readouterr().err


def test_removed_hook_only_passes_on(store: str, quiet: list) -> None:
    abort = Recorder()
    hook = _failure.FailureHook(identity(store, 0), abort)
    hook.install()
    hook.remove()
    raise_through(hook, ValueError("boom7"))
    assert read(store, "failure/j1") is None
    assert abort.texts == []
    assert len(quiet) == 1


WAITS = "after 8 s, the limit, it still waits for rank 1"


@pytest.mark.parametrize(
    "text",
    [
        f"allreduce 'optimizer0/bucket0' (allreduce of float32 (4,), op=Average): {WAITS}",
        f"allreduce 'tape1/bucket2' (allreduce of float32 (4,), op=Average): {WAITS}",
        f"allreduce 'loss' failed: allgather 'metric average' (allgather of uint8 (4,)): {WAITS}",
        f"at node 'a'\n  File \"x\"\nallgather 'callbacks' (allgather of uint8 (4,)): {WAITS}",
        "allreduce 'optimizer0/bucket0' failed: rank 1 (host a) has shut down",
    ],
    ids=["optimizer", "tape", "metrics", "callbacks", "left"],
)
def test_who_waits_in_vain_for_batches_is_told_the_way_out(
    text: str, quiet: list, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = _failure.FailureHook(identity(None, 0), Recorder())
    hook.install()
    raise_through(hook, errors.CommunicationError(text))
    hook.remove()
    (line,) = capsys.readouterr().err.splitlines()
    assert "tfring.data.shortest" in line
    assert "JoinCallback" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank 1 (host a) has shut down", "rank 1 has left without calling `fit`"),
        (WAITS, "some ranks have not called `fit`"),
    ],
    ids=["left", "elsewhere"],
)
def test_who_waits_in_vain_for_fit_is_told_so(
    text: str, words: str, quiet: list, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = _failure.FailureHook(identity(None, 0), Recorder())
    hook.install()
    error = errors.CommunicationError(f"allgather 'callbacks' failed: {text}")
    _failure.mark_before_training(error)
    raise_through(hook, error)
    hook.remove()
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert "JoinCallback" not in line


@pytest.mark.parametrize(
    "error",
    [
        errors.CommunicationError(f"allreduce 'loss' (allreduce of float32 ()): {WAITS}"),
        errors.CommunicationError("allreduce 'optimizer0/bucket0' failed: rank 1: ValueError: x"),
        ValueError(f"allreduce 'optimizer0/bucket0' (allreduce of float32 ()): {WAITS}"),
    ],
    ids=["another collective", "failed peer", "another error"],
)
def test_others_are_not(error: Exception, quiet: list, capsys: pytest.CaptureFixture[str]) -> None:
    hook = _failure.FailureHook(identity(None, 0), Recorder())
    hook.install()
    raise_through(hook, error)
    hook.remove()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("size", "error", "at_once"),
    [
        (2, ValueError("boom7"), True),
        (1, ValueError("boom7"), False),
        (2, KeyboardInterrupt(), False),
    ],
    ids=["one of two", "alone", "interrupted"],
)
def test_a_rank_that_failed_ends_at_once(
    quiet: list, size: int, error: BaseException, at_once: bool
) -> None:
    hook = _failure.FailureHook(Identity(0, size, "a", None, SECRET, "j1"), Recorder())
    hook.install()
    raise_through(hook, error)
    hook.remove()
    assert _failure._end.at_once == at_once
