"""The reducer: when a plan is kept, and when a new one is made."""

from __future__ import annotations

import gc
import types
from typing import Any

import pytest
import tensorflow as tf

from tfring import _reducer, world
from tfring._plan import Kind, Plan
from tfring._reducer import Options, Reducer
from tfring.process_sets import ProcessSet


def plan(reducer: Reducer, gradients: list[Any], variables: list[Any]) -> Plan:
    return reducer.plan_for(gradients, variables, range(len(variables)))


def test_a_plan_is_kept(ranks: Any) -> None:
    ranks(1)
    reducer, w = Reducer("tape", Options()), tf.Variable(1.0)
    first = plan(reducer, [tf.constant(1.0)], [w])
    assert plan(reducer, [tf.constant(2.0)], [w]) is first
    assert plan(reducer, [None], [w]) is first


def test_a_new_one_for_what_does_not_fit(ranks: Any) -> None:
    ranks(1)
    reducer, w = Reducer("tape", Options()), tf.Variable(1.0)
    names = [
        plan(reducer, [gradient], [w]).name
        for gradient in (None, tf.constant(1.0), tf.constant(1.0, tf.float64), None)
    ]
    assert names == ["tape0", "tape0/plan1", "tape0/plan2", "tape0"]


def test_another_variable_needs_another_plan(ranks: Any) -> None:
    ranks(1)
    reducer, gradient = Reducer("tape", Options()), [tf.constant(1.0)]
    assert plan(reducer, gradient, [tf.Variable(1.0)]).name == "tape0"
    assert plan(reducer, gradient, [tf.Variable(1.0)]).name == "tape0/plan1"


@pytest.fixture
def quick_collections() -> None:
    """Objects of former tests are not looked at in each."""
    gc.collect()
    gc.freeze()


def test_an_id_that_is_used_again_is_not_the_same_variable(
    ranks: Any, quick_collections: None
) -> None:
    ranks(1)
    reducer, gradient = Reducer("tape", Options()), [tf.constant(1.0)]
    for attempt in range(50):
        w = tf.Variable(1.0)
        assert plan(reducer, gradient, [w]).name == (
            "tape0" if attempt == 0 else f"tape0/plan{attempt}"
        )
        del w
        gc.collect()


def test_tensors_as_sources_share_a_plan(ranks: Any) -> None:
    ranks(1)
    reducer, gradient = Reducer("tape", Options()), [tf.constant(1.0)]
    first = plan(reducer, gradient, [tf.constant(1.0)])
    assert plan(reducer, gradient, [tf.constant(1.0)]) is first


def test_plans_of_dead_variables_are_forgotten(ranks: Any, quick_collections: None) -> None:
    ranks(1)
    reducer, gradient = Reducer("tape", Options()), [tf.constant(1.0)]
    for _ in range(20):
        plan(reducer, gradient, [tf.Variable(1.0)])
        gc.collect()
    assert sum(map(len, reducer._plans.values())) <= 2


def test_a_new_world_needs_a_new_plan(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(1)
    reducer, w = Reducer("optimizer", Options()), tf.Variable(1.0)
    first = plan(reducer, [tf.constant(1.0)], [w])
    monkeypatch.setattr(world, "generation", lambda: 2)
    assert plan(reducer, [tf.constant(1.0)], [w]) is not first


def test_numbers_start_over_in_a_new_world() -> None:
    members = ProcessSet([0])
    counted = [_reducer._number("optimizer", g, members) for g in (1, 1, 2)]
    assert counted == [0, 1, 0]


def test_keras_and_tf_variables_are_one(ranks: Any) -> None:
    variable = tf.Variable(1.0)
    assert _reducer.key(types.SimpleNamespace(value=variable)) == _reducer.key(variable)


def test_densify(ranks: Any) -> None:
    ranks(1)
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]), [3, 2])
    w = tf.Variable(tf.zeros((3, 2)))
    for densify, kind in ((False, Kind.SPARSE), (True, Kind.DENSE)):
        reducer = Reducer("tape", Options(), densify=densify)
        agreed = plan(reducer, [slices], [w])
        assert agreed.entries[0].kind is kind
        (filled,) = reducer.fill(agreed, [slices], [w])
        assert isinstance(filled, tf.IndexedSlices) is not densify


@pytest.mark.parametrize("kind", [Kind.DENSE, Kind.SPARSE])
def test_what_is_missing_is_zero(ranks: Any, kind: Kind) -> None:
    ranks(1)
    w = tf.Variable(tf.zeros((3, 2)))
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]), [3, 2])
    present = slices if kind is Kind.SPARSE else tf.ones((3, 2))
    reducer = Reducer("tape", Options())
    (zero,) = reducer.fill(plan(reducer, [present], [w]), [None], [w])
    assert tf.convert_to_tensor(zero).numpy().tolist() == [[0.0, 0.0]] * 3


def test_source_of_unknown_shape(ranks: Any) -> None:
    sim = ranks(2)

    def body(rank: int) -> list[float]:
        reducer = Reducer("tape", Options())

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def step(x: tf.Tensor) -> tf.Tensor:
            gradients = [x * 2.0 if rank == 0 else None]
            agreed = plan(reducer, gradients, [x])
            return reducer.reduce(agreed, reducer.fill(agreed, gradients, [x]))[0]

        return step(tf.constant([1.0, 2.0])).numpy().tolist()

    assert sim.run(body) == [[1.0, 2.0]] * 2
