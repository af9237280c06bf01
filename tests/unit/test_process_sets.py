"""Process sets with an engine that stands in for four ranks; this one is rank 1."""

from __future__ import annotations

import types
from typing import Any

import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _checks, errors, process_sets, world


class Engine:
    """Answers tfr_process_set_add and _remove as the engine of four ranks that agree does."""

    def __init__(self) -> None:
        self.sets: dict[int, list[int]] = {0: [0, 1, 2, 3]}
        self.free: list[int] = []  # handles
        self.failure: Exception | None = None

    def call(self, name: str, *arguments: Any) -> None:
        if self.failure is not None:
            raise self.failure
        getattr(self, name)(*arguments)

    def tfr_process_set_add(self, ranks: Any, count: int, number: Any) -> None:
        added = [ranks[i] for i in range(count)]
        if added[-1] > 3 or added in self.sets.values():
            raise ValueError(f"ranks {added} cannot be a set")
        new = self.free.pop(0) + (1 << 32) if self.free else len(self.sets)
        self.sets[new] = added
        number._obj.value = new

    def tfr_process_set_remove(self, number: int) -> None:
        del self.sets[number]
        self.free.append(number)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    engine = Engine()
    monkeypatch.setattr(world, "size", lambda: 4)
    monkeypatch.setattr(world, "rank", lambda: 1)
    monkeypatch.setattr(world, "call", engine.call)
    monkeypatch.setattr(world, "require_usable", lambda: None)
    dynamic = types.SimpleNamespace(dynamic_process_sets=True)
    monkeypatch.setattr(world, "settings", lambda: dynamic)
    process_sets._setup([])
    yield engine
    process_sets._teardown()


def test_text_is_horovods() -> None:
    made = hvd.ProcessSet(range(4, 0, -2))
    assert str(made) == "ProcessSet(process_set_id=None, ranks=[2, 4], mpi_comm=None)"
    assert repr(made) == str(made)


def test_sets_are_equal_to_themselves_only() -> None:
    one, other = hvd.ProcessSet([0]), hvd.ProcessSet([0])
    assert one == one and one != other
    assert len({one, other}) == 2


def test_unregistered_set_knows_nothing() -> None:
    made = hvd.ProcessSet([0, 2])
    assert (made.size(), made.rank(), made.included(), made.ranks) == (None, None, None, [0, 2])


@pytest.mark.parametrize(
    ("ranks", "kind"),
    [
        ([], ValueError),
        ([-1, 0], ValueError),
        ([0, 0], ValueError),
        (3, TypeError),
        ([0.5], TypeError),
        ("01", TypeError),
        (None, TypeError),
    ],
    ids=str,
)
def test_bad_ranks(ranks: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="`ranks_or_comm` must .*Received: ranks_or_comm="):
        hvd.ProcessSet(ranks)


def test_communicators_are_told_how() -> None:
    communicator = types.SimpleNamespace(Get_rank=lambda: 0)
    with pytest.raises(ValueError, match="give the list of its ranks"):
        hvd.ProcessSet(communicator)


def test_global_set_before_init() -> None:
    everyone = hvd.global_process_set
    assert (everyone.process_set_id, everyone.ranks, everyone.size()) == (0, None, None)


def test_global_set(engine: Engine) -> None:
    everyone = hvd.global_process_set
    assert (everyone.process_set_id, everyone.ranks) == (0, [0, 1, 2, 3])
    assert (everyone.size(), everyone.rank(), everyone.included()) == (4, 1, True)
    assert hvd.remove_process_set(everyone) is False


def test_member(engine: Engine) -> None:
    added = hvd.add_process_set([3, 1])
    assert str(added) == "ProcessSet(process_set_id=1, ranks=[1, 3], mpi_comm=None)"
    assert (added.size(), added.rank(), added.included()) == (2, 0, True)
    assert _checks.process_set(added) == 1
    assert process_sets.ids_and_ranks() == {0: [0, 1, 2, 3], 1: [1, 3]}


def test_no_member(engine: Engine) -> None:
    added = hvd.add_process_set(hvd.ProcessSet([0, 2]))
    assert (added.size(), added.included()) == (2, False)
    with pytest.raises(ValueError, match="rank 1 is not in ProcessSet"):
        added.rank()
    with pytest.raises(tf.errors.InvalidArgumentError, match="must hold the rank that calls, 1"):
        _checks.process_set(added)


def test_the_object_given_is_returned(engine: Engine) -> None:
    made = hvd.ProcessSet([1, 2])
    assert hvd.add_process_set(made) is made


def test_ids_are_used_again_first_removed_first(engine: Engine) -> None:
    sets = [hvd.add_process_set([i]) for i in range(3)]
    assert [s.process_set_id for s in sets] == [1, 2, 3]
    assert hvd.remove_process_set(sets[1]) and hvd.remove_process_set(sets[0])
    assert (sets[1].process_set_id, sets[1].ranks) == (None, [1])
    assert hvd.remove_process_set(sets[1]) is False
    assert hvd.add_process_set([0, 3]).process_set_id == 2
    assert hvd.add_process_set(sets[1]).process_set_id == 1
    assert sorted(process_sets.ids_and_ranks()) == [0, 1, 2, 3]


def test_handles_are_not_used_again(engine: Engine) -> None:
    added = hvd.add_process_set([0, 1])
    first = _checks.process_set(added)
    hvd.remove_process_set(added)
    second = _checks.process_set(hvd.add_process_set(added))
    assert added.process_set_id == first == 1 and second != first
    assert process_sets.ranks_of(second) == [0, 1]
    assert _checks.set_handle(1) == second
    with pytest.raises(ValueError, match="no process set with id 1; it was removed"):
        process_sets.ranks_of(first)


@pytest.mark.parametrize("ranks", [[0, 1, 2, 3], [0, 2], [1, 9]], ids=str)
def test_ranks_that_the_engine_refuses(engine: Engine, ranks: list[int]) -> None:
    hvd.add_process_set([0, 2])
    with pytest.raises(ValueError, match=r"cannot be a set. Received: process_set=ProcessSet"):
        hvd.add_process_set(ranks)
    assert set(process_sets.ids_and_ranks()) == {0, 1}


def test_registered_object_is_not_added_again(engine: Engine) -> None:
    added = hvd.add_process_set([0, 2])
    with pytest.raises(ValueError, match="must not be registered already"):
        hvd.add_process_set(added)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (RuntimeError("rank 0 added [0], rank 1 [1]"), tf.errors.FailedPreconditionError),
        (errors.CommunicationError("rank 2 left"), errors.CommunicationError),
        (hvd.NotInitializedError("init"), hvd.NotInitializedError),
    ],
    ids=["mismatch", "lost peer", "shutdown"],
)
def test_kinds_of_errors(engine: Engine, failure: Exception, kind: type[Exception]) -> None:
    added = hvd.add_process_set([1, 2])
    engine.failure = failure
    made = hvd.ProcessSet([1])
    for call in (lambda: hvd.add_process_set(made), lambda: hvd.remove_process_set(added)):
        with pytest.raises(kind, match=str(failure).replace("[", r"\[")):
            call()
    assert (made.process_set_id, added.process_set_id) == (None, 1)


def test_static_mode(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    added = hvd.add_process_set([1])
    static = types.SimpleNamespace(dynamic_process_sets=False)
    monkeypatch.setattr(world, "settings", lambda: static)
    for call in (lambda: hvd.add_process_set([2]), lambda: hvd.remove_process_set(added)):
        with pytest.raises(ValueError, match=r"needs the dynamic mode. .*TFRING_DYNAMIC_PROCESS"):
            call()
    assert hvd.remove_process_set(hvd.global_process_set) is False


def test_shutdown_makes_sets_unusable(engine: Engine) -> None:
    added = hvd.add_process_set([1, 2])
    process_sets._teardown()
    assert (added.process_set_id, added.ranks) == (None, [1, 2])
    assert (hvd.global_process_set.process_set_id, hvd.global_process_set.ranks) == (0, None)
    with pytest.raises(ValueError, match="no process set with id 1"):
        process_sets.ranks_of(1)


@pytest.mark.parametrize(
    ("argument", "kind", "text"),
    [
        ("static", ValueError, "`process_sets` must be a list"),
        (hvd.ProcessSet([0]), TypeError, "`process_sets` must be a list"),
        (7, TypeError, "`process_sets` must be a list"),
        ([[0, 1]], TypeError, "must hold tfring.ProcessSet objects only"),
        ([hvd.ProcessSet([0]), hvd.ProcessSet([0])], ValueError, "must not hold ranks twice"),
        ([hvd.ProcessSet(range(4))], ValueError, "tfring.global_process_set"),
        ([hvd.ProcessSet([2, 4])], ValueError, "must hold ranks of this job, 0 to 3"),
    ],
)
def test_bad_sets_at_init(argument: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        process_sets.requested(argument, 4)


@pytest.mark.parametrize("argument", [None, "dynamic", [], ()], ids=str)
def test_no_sets_at_init(argument: Any) -> None:
    assert process_sets.requested(argument, 4) == []


def test_sets_at_init(engine: Engine) -> None:
    sets = [hvd.ProcessSet([2, 3]), hvd.ProcessSet([1, 3])]
    process_sets._setup(process_sets.requested(sets, 4))
    assert [s.process_set_id for s in sets] == [1, 2]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ([0], TypeError, "`process_set` must be a tfring.ProcessSet"),
        (0, TypeError, "`process_set` must be a tfring.ProcessSet"),
        (hvd.ProcessSet([0]), ValueError, "must be registered"),
    ],
)
def test_bad_argument_of_a_collective(engine: Engine, value: Any, kind, text: str) -> None:
    with pytest.raises(kind, match=text):
        _checks.process_set(value)


def test_root_is_a_global_rank_of_the_set(engine: Engine) -> None:
    number = hvd.add_process_set([1, 3]).process_set_id
    assert [_checks.root(root, number) for root in (1, 3)] == [1, 3]
    for root in (0, 2, 4):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"one of \[1, 3\]"):
            _checks.root(root, number)


@pytest.mark.usefixtures("world")
def test_world_of_one() -> None:
    assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=[0], mpi_comm=None)"
    assert float(hvd.allreduce(3.0, process_set=hvd.global_process_set)) == 3.0
    with pytest.raises(ValueError, match="needs the dynamic mode"):
        hvd.add_process_set([0])


@pytest.mark.parametrize("comm", [[1], [0, 1], "all", object(), types.SimpleNamespace(Get_rank=0)])
def test_communicator_of_init_must_be_everyone(comm: Any) -> None:
    with pytest.raises(ValueError, match=r"`comm` must be None or the ranks 0 to 0 .*process_sets"):
        hvd.init(comm)
    assert not hvd.is_initialized()


def test_failed_init_can_be_repeated() -> None:
    with pytest.raises(ValueError, match="`process_sets` must hold ranks of this job"):
        hvd.init(process_sets=[hvd.ProcessSet([5])])
    hvd.init([0], "dynamic")
    try:
        assert world.settings().dynamic_process_sets
        assert float(hvd.allreduce(2.0)) == 2.0
    finally:
        hvd.shutdown()


@pytest.mark.parametrize("name", ["TFRING_DYNAMIC_PROCESS_SETS", "HOROVOD_DYNAMIC_PROCESS_SETS"])
def test_dynamic_mode_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    hvd.init()
    try:
        assert world.settings().dynamic_process_sets
    finally:
        hvd.shutdown()
