"""Horovod's arguments, in its order, and what is wrong with wrong ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import tfring
import tfring.keras
from tfring.constants import Adasum, Max, Sum
from tfring.process_sets import ProcessSet

OPTIMIZER = (
    "optimizer name use_locking device_dense device_sparse compression sparse_as_dense "
    "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients "
    "num_groups groups process_set scale_local_gradients strict sample_weighted reproducible"
)
KERAS_OPTIMIZER = (
    "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients "
    "num_groups groups process_set scale_local_gradients strict sample_weighted reproducible"
)
PARTIAL_OPTIMIZER = (
    "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients "
    "groups process_set local_layers scale_local_gradients strict sample_weighted"
)
TAPE = (
    "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set scale_local_gradients strict "
    "sample_weighted"
)
PARTIAL_TAPE = (
    "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set local_layers "
    "scale_local_gradients strict sample_weighted"
)
V = [tf.Variable(float(i)) for i in range(3)]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (tfring.DistributedOptimizer, OPTIMIZER),
        (tfring.keras.DistributedOptimizer, KERAS_OPTIMIZER),
        (tfring.PartialDistributedOptimizer, PARTIAL_OPTIMIZER),
        (tfring.DistributedGradientTape, TAPE),
        (tfring.PartialDistributedGradientTape, PARTIAL_TAPE),
        (
            tfring.DistributedGradientTape.get_local_and_global_gradients,
            "self target sources output_gradients use_generic_names",
        ),
        (
            tfring.DistributedGradientTape.gradient,
            "self target sources output_gradients unconnected_gradients use_generic_names",
        ),
    ],
)
def test_order_of_arguments(function: Callable[..., Any], names: str) -> None:
    assert list(inspect.signature(function).parameters) == names.split()


def optimizer(**kwargs: Any) -> Any:
    return tfring.DistributedOptimizer(keras.optimizers.SGD(), **kwargs)


def keras_optimizer(**kwargs: Any) -> Any:
    return tfring.keras.DistributedOptimizer(keras.optimizers.SGD(), **kwargs)


def tape(**kwargs: Any) -> Any:
    return tfring.DistributedGradientTape(tf.GradientTape(), **kwargs)


EVERY = pytest.mark.parametrize("make", [optimizer, keras_optimizer, tape])


@EVERY
@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"op": Max}, ValueError, "`op` must be"),
        ({"op": 77}, ValueError, "`op` must be"),
        ({"groups": 0}, ValueError, "groups=0"),
        ({"groups": -1}, ValueError, "groups=-1"),
        ({"groups": "two"}, TypeError, "groups='two'"),
        ({"groups": [V[0]]}, TypeError, "list of lists"),
        ({"groups": [["kernel"]]}, TypeError, "'kernel'"),
        ({"groups": [[V[0]], []]}, ValueError, "empty list"),
        ({"groups": [[V[0], V[1]], [V[0]]]}, ValueError, "once"),
        ({"num_groups": -2}, ValueError, "num_groups=-2"),
        ({"num_groups": 2, "groups": 2}, ValueError, "not both"),
        ({"gradient_predivide_factor": 0.0}, ValueError, "positive"),
        ({"gradient_predivide_factor": float("inf")}, ValueError, "positive"),
        ({"gradient_predivide_factor": 2.0, "op": Sum}, ValueError, "needs `op="),
        ({"compression": "fp16"}, TypeError, "Compression.fp16"),
        ({"process_set": [0]}, TypeError, "must be a tfring.ProcessSet"),
    ],
)
@pytest.mark.filterwarnings("ignore:`num_groups`:DeprecationWarning")
def test_wrong(ranks: Any, make: Any, kwargs: Any, error: type[Exception], text: str) -> None:
    ranks(2)
    with pytest.raises(error, match=text):
        make(**kwargs)


@pytest.mark.parametrize("passes", [0, -1, 1.5, True])
def test_wrong_passes(ranks: Any, passes: Any) -> None:
    ranks(2)
    for make in (optimizer, keras_optimizer):
        with pytest.raises(ValueError, match=f"backward_passes_per_step={passes}"):
            make(backward_passes_per_step=passes)


@pytest.mark.parametrize("name", ["strict", "sample_weighted", "reproducible"])
def test_flags_are_true_or_false(ranks: Any, name: str) -> None:
    ranks(2)
    with pytest.raises(TypeError, match=f"`{name}` must be True or False. Received: {name}='no'"):
        optimizer(**{name: "no"})


@pytest.mark.parametrize("make", [optimizer, tape])
def test_adasum_pairs_ranks(ranks: Any, make: Any) -> None:
    ranks(3)
    with pytest.raises(ValueError, match="power of two.*3 ranks"):
        make(op=Adasum)


def test_keras_face_has_no_adasum(ranks: Any) -> None:
    ranks(2)
    with pytest.raises(ValueError, match=r"op=Adasum.*tfring.DistributedOptimizer"):
        keras_optimizer(op=Adasum)


def test_num_groups_is_deprecated(ranks: Any) -> None:
    ranks(2)
    with pytest.warns(DeprecationWarning, match="use `groups`") as caught:
        optimizer(num_groups=2)
    assert caught[0].filename == __file__


def test_a_group_of_unknown_variables(ranks: Any) -> None:
    ranks(1)
    a, stranger = keras.Variable(0.0), keras.Variable(0.0, name="stranger")
    with pytest.raises(ValueError, match="this optimizer only.*stranger"):
        optimizer(groups=[[a, stranger]]).apply([tf.constant(1.0)], [a])
    x, y = tf.Variable(1.0), tf.Variable(1.0, name="stranger")
    with tape(groups=[[x, y]]) as recorded:
        loss = x * y
    with pytest.raises(ValueError, match="`sources` only.*stranger"):
        recorded.gradient(loss, x)


def test_a_group_of_unknown_variables_with_a_v1_optimizer(ranks: Any) -> None:
    ranks(1)
    a, stranger = tf.Variable(0.0), tf.Variable(0.0, name="stranger")
    sgd = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(ValueError, match="this optimizer only.*stranger"):
        tfring.DistributedOptimizer(sgd, groups=[[a, stranger]]).compute_gradients(lambda: a, [a])


def test_a_group_of_variables_that_are_in_no_call_yet(ranks: Any) -> None:
    ranks(1)
    a, b = keras.Variable(1.0), keras.Variable(1.0)
    wrapped = optimizer(groups=[[a, b]])
    wrapped.build([a, b])
    wrapped.apply([tf.constant(1.0)], [a])


def test_groups_match_by_identity(ranks: Any) -> None:
    """Names are not unique in Keras 3."""
    sim = ranks(2)

    def body(rank: int) -> list[float]:
        same = [keras.Variable(0.0, name="kernel") for _ in range(4)]
        wrapped = tfring.DistributedOptimizer(
            keras.optimizers.SGD(1.0), groups=[[same[0], same[2].value], [same[3]]]
        )
        gradients = [tf.constant(float(i + rank)) for i in range(4)]
        wrapped.apply(gradients, same)
        return [float(v.numpy()) for v in same]

    assert sim.run(body) == [[-0.5, -1.5, -2.5, -3.5]] * 2
    assert sorted(count for rank, _, count in sim.calls if rank == 0) == [1, 1, 2]


def test_an_unregistered_set(ranks: Any) -> None:
    ranks(2)
    wrapped = optimizer(process_set=ProcessSet([0]))
    with pytest.raises(ValueError, match="must be registered"):
        wrapped.apply([tf.constant(1.0)], [keras.Variable(0.0)])
