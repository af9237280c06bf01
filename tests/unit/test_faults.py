"""When a wrong argument is announced to the peers, and when not."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _calls, _ops

pytestmark = pytest.mark.usefixtures("world")


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is announced as if there were a second rank."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(_ops, "announce_fault", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(_calls.world, "size", lambda: 2)
    return calls


WRONG = {
    _calls.ALLREDUCE: lambda: hvd.allreduce("text", name="n"),
    _calls.ALLGATHER: lambda: hvd.allgather(1.0, name="n"),
    _calls.BROADCAST: lambda: hvd.broadcast(1.0, 7, name="n"),
    _calls.REDUCESCATTER: lambda: hvd.reducescatter([1.0], op=hvd.Max, name="n"),
    _calls.ALLTOALL: lambda: hvd.alltoall([1.0], [1, 2, 3], name="n"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_argument_is_announced_under_the_calls_name(kind: int, announced: list) -> None:
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)) as caught:
        WRONG[kind]()
    ((*sent, text, group),) = announced
    assert (sent, group) == ([kind, "n"], 0)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", [None, "", 3], ids=str)
def test_call_without_a_name_is_announced_by_position(name: Any, announced: list) -> None:
    with pytest.raises((TypeError, ValueError)):
        hvd.allreduce("text", name=name)
    assert [call[1] for call in announced] == ["eager"]


def test_only_the_first_line_is_sent(announced: list) -> None:
    with pytest.raises(ValueError, match="one"), _calls.announced(_calls.ALLREDUCE, "n", 3):
        raise ValueError("one\ntwo")
    with pytest.raises(KeyError), _calls.announced(_calls.ALLREDUCE, "n", 3):
        raise KeyError
    assert announced == [(1, "n", "one", 3), (1, "n", "KeyError", 3)]


def test_nothing_is_announced_while_a_function_is_traced(announced: list) -> None:
    with pytest.raises(TypeError):
        tf.function(lambda: hvd.allreduce("text"))()
    assert announced == []


def test_nothing_is_announced_to_a_set_that_cannot_be_used(announced: list) -> None:
    for wrong in ("text", hvd.ProcessSet([0])):
        with pytest.raises((TypeError, ValueError)):
            hvd.allreduce("text", process_set=wrong)
    assert announced == []


def test_nobody_is_told_in_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ops, "announce_fault", None)
    with pytest.raises(TypeError):
        hvd.allreduce("text")
