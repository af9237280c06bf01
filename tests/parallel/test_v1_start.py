"""v1 graphs and sessions: all ranks start alike, and objects travel beside the graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def own_variables(rank: int) -> list[tf.Variable]:
    return [
        v1.get_variable("a", initializer=np.full((2, 3), float(rank), np.float32)),
        v1.get_variable("b", initializer=np.int64(rank + 5)),
    ]


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "ref"])
def test_global_variables_become_the_roots(rank: int, size: int, resource: bool) -> None:
    root = size - 1
    with v1.variable_scope("v", use_resource=resource):
        variables = own_variables(rank)
    operation = hvd.broadcast_global_variables(root)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(operation)
        a, b = session.run(variables)
    np.testing.assert_array_equal(a, np.full((2, 3), root))
    assert b == root + 5


def test_one_collective_for_all_variables(rank: int) -> None:
    own_variables(rank)
    operation = hvd.broadcast_global_variables(0)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        before = hvd.stats().collectives
        session.run(operation)
    assert hvd.stats().collectives - before == 1


def test_no_variables() -> None:
    with v1.Session() as session:
        session.run(hvd.broadcast_global_variables(0))


def test_hook_in_a_monitored_session(rank: int) -> None:
    variables = own_variables(rank)
    hook = hvd.BroadcastGlobalVariablesHook(0, device="/cpu:0")
    with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
        a, b = session.run(variables)
    np.testing.assert_array_equal(a, np.zeros((2, 3)))
    assert b == 5


def test_hook_serves_several_sessions_and_graphs(rank: int) -> None:
    hook = hvd.BroadcastGlobalVariablesHook(0)
    for _ in range(2):
        with tf.Graph().as_default():
            variable = own_variables(rank)[1]
            for _ in range(2):
                with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
                    assert session.run(variable) == 5


def test_hook_restores_what_only_the_root_has(rank: int, tmp_path) -> None:
    variables = own_variables(rank + 1)
    v1.train.get_or_create_global_step()
    folder = str(tmp_path)
    if rank == 0:
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(variables[1].assign(77))
            v1.train.Saver().save(session, f"{folder}/model.ckpt", write_meta_graph=False)
    hook = hvd.BroadcastGlobalVariablesHook(0)
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=folder if rank == 0 else None, save_checkpoint_secs=None, hooks=[hook]
    ) as session:
        assert session.run(variables[1]) == 77


def test_hook_refuses_to_start_anew() -> None:
    hook = hvd.BroadcastGlobalVariablesHook(0)
    hook.begin()
    with v1.Session() as session:
        hook.after_create_session(session, None)
        with pytest.raises(hvd.CommunicationError, match="starts anew"):
            hook.after_create_session(session, None)


def test_objects_while_a_graph_is_built(rank: int, size: int) -> None:
    assert hvd.allgather_object({"rank": rank}) == [{"rank": r} for r in range(size)]
    assert hvd.broadcast_object([rank], root_rank=size - 1) == [size - 1]
    assert hvd.broadcast_object_fn(root_rank=0, name="object")(rank) == 0


def test_objects_with_a_session(rank: int, size: int) -> None:
    with v1.Session() as session:
        assert hvd.broadcast_object(rank, session=session) == 0
        assert hvd.allgather_object(rank, session=session) == list(range(size))
        assert hvd.broadcast_object_fn(session=session)("x" * (rank + 1)) == "x"


@pytest.mark.parametrize("name", [None, "mine"])
def test_each_collective_of_a_graph_stands_alone(size: int, name: str | None) -> None:
    """A session may run any part of a graph: nothing else has to be fed."""
    x, y = v1.placeholder(tf.float32, []), v1.placeholder(tf.float32, [])
    first = hvd.allreduce(x, op=hvd.Sum, name=name)
    second = hvd.allreduce(y, op=hvd.Sum, name=name)
    with v1.Session() as session:
        for value in (1.0, 2.0):
            assert session.run(second, {y: value}) == value * size
            assert session.run(first, {x: value}) == value * size
        assert session.run([first, second], {x: 1.0, y: 10.0}) == [size, 10.0 * size]
