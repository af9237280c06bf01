"""`init` with process sets, when it fails, and again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf

import tfring as hvd
from tfring import process_sets

pytestmark = pytest.mark.many_ranks


@pytest.fixture(autouse=True)
def between_jobs(rank: int, size: int) -> Iterator[None]:
    """Tests begin without a world; the next file finds the one it knows."""
    hvd.shutdown()
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("TFRING_DYNAMIC_PROCESS_SETS")
        yield
    hvd.shutdown()
    hvd.init()
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size


def test_sets_are_usable_at_once_and_again(size: int) -> None:
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet(range(size - 1, 0, -1))]
    for _ in range(2):
        hvd.init(process_sets=sets)
        assert [s.process_set_id for s in sets] == [1, 2]
        own = sets[0 if hvd.rank() == 0 else 1]
        assert hvd.allgather_object(hvd.rank(), process_set=own) == own.ranks
        with pytest.raises(ValueError, match="needs the dynamic mode"):
            hvd.remove_process_set(sets[0])
        hvd.shutdown()
        assert [s.process_set_id for s in sets] == [None, None]
        with pytest.raises(hvd.NotInitializedError):
            hvd.allreduce(1.0, process_set=own)


def test_sets_and_dynamic_mode(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    first = hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    second = hvd.add_process_set([1])
    assert hvd.remove_process_set(first)
    assert process_sets.ids_and_ranks() == {0: list(range(size)), 2: second.ranks}


def test_second_init_changes_nothing(size: int) -> None:
    hvd.init()
    late = hvd.ProcessSet([0])
    hvd.init(process_sets=[late])
    assert late.process_set_id is None
    assert process_sets.ids_and_ranks() == {0: list(range(size))}


@pytest.mark.parametrize("wrong", ["unknown", "twice", "all", "communicator"])
def test_wrong_arguments_then_right_ones(wrong: str, size: int) -> None:
    arguments = {
        "unknown": {"process_sets": [hvd.ProcessSet([0, size])]},
        "twice": {"process_sets": [hvd.ProcessSet([0]), hvd.ProcessSet([0])]},
        "all": {"process_sets": [hvd.ProcessSet(range(size))]},
        "communicator": {"comm": [0]},
    }[wrong]
    with pytest.raises(ValueError, match="Received: "):
        hvd.init(**arguments)
    assert not hvd.is_initialized()
    hvd.init(comm=list(range(size)))
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size


def test_ranks_that_disagree_then_agree(rank: int, size: int) -> None:
    own = hvd.ProcessSet([0])
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.init(process_sets=[own if rank == 0 else hvd.ProcessSet([1])])
    assert not hvd.is_initialized()
    assert own.process_set_id is None
    hvd.init(process_sets=[own])
    assert own.process_set_id == 1


# A function of a tensor of one element, and its gradient on each rank.
GRADIENTS = {
    "broadcast": (lambda x: 3.0 * hvd.broadcast(x, root_rank=0), [3.0, 0.0]),
    "allgather": (lambda x: hvd.allgather(x) * [3.0, 4.0], [3.0, 4.0]),
    "product": (lambda x: 3.0 * hvd.allreduce(x, op=hvd.Product), [2 * 3.0 * 2, 2 * 3.0 * 1]),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("collective", GRADIENTS)
def test_gradient_after_ranks_were_swapped(
    collective: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph that rank 0 has made now runs as rank 1."""
    function, expected = GRADIENTS[collective]

    @tf.function
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    for now in (rank, 1 - rank):
        monkeypatch.setenv("TFRING_RANK", str(now))
        hvd.init()
        assert hvd.rank() == now
        assert gradient(tf.constant([1.0 + now])).numpy().tolist() == [expected[now]]
        hvd.shutdown()
    assert gradient.experimental_get_tracing_count() == 1
