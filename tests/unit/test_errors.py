from __future__ import annotations

import pytest
import tensorflow as tf

import tfring as hvd
from tfring import errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (3, ValueError),
        (9, RuntimeError),
        (8, MemoryError),
        (4, errors.CommunicationError),
        (13, errors.CommunicationError),
        (14, errors.CommunicationError),
    ],
)
def test_codes(code: int, kind: type[Exception]) -> None:
    error = errors.from_engine(code, "why")
    assert type(error) is kind
    assert str(error) == "why"


@pytest.mark.parametrize("function", [hvd.size, lambda: hvd.allreduce(1.0)], ids=["size", "op"])
@pytest.mark.parametrize("compiled", [False, True])
def test_not_initialized_is_a_value_error(function, compiled: bool) -> None:
    @tf.function
    def in_a_graph():
        return function()

    with pytest.raises(errors.NotInitializedError, match=r"call tfring.init\(\) first") as caught:
        (in_a_graph if compiled else function)()
    assert isinstance(caught.value, ValueError)


def test_lost_peer_is_a_communication_error() -> None:
    assert errors.is_communication_error(tf.errors.AbortedError(None, None, "rank 1 left"))
    assert errors.is_communication_error(errors.CommunicationError("rank 1 left"))


@pytest.mark.parametrize("explicit", [True, False])
def test_error_caused_by_a_lost_peer_is_a_communication_error(explicit: bool) -> None:
    try:
        try:
            raise errors.CommunicationError("rank 1 left")
        except errors.CommunicationError as lost:
            raise RuntimeError("training failed") from (lost if explicit else None)
    except RuntimeError as error:
        assert errors.is_communication_error(error) is explicit


@pytest.mark.parametrize(
    "error", [ValueError("boom"), tf.errors.FailedPreconditionError(None, None, "shapes differ")]
)
def test_own_mistake_is_not(error: Exception) -> None:
    assert not errors.is_communication_error(error)


def test_circular_context_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert not errors.is_communication_error(first)
