"""DistributedOptimizer between real ranks. Run under tfringrun with at least 2 ranks.

Per-rank values are given for two ranks; further ranks repeat rank 1's. Expected values are
computed from them, so the tests hold for any number of ranks.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = [
    pytest.mark.skipif(hvd.size() < 2, reason="needs at least 2 ranks"),
    pytest.mark.timeout(120),
]
MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def of_rank(first: Any, others: Any) -> Any:
    return first if hvd.rank() == 0 else others


def mean(first: float, others: float) -> float:
    return (first + others * (hvd.size() - 1)) / hvd.size()


def variable(value: Any, name: str = "w") -> keras.Variable:
    return keras.Variable(np.asarray(value, "float32"), name=name)


def same_everywhere(*variables: Any) -> bool:
    mine = [v.numpy().tobytes() for v in variables]
    return all(theirs == mine for theirs in hvd.allgather_object(mine))


def train(optimizer: Any, w: Any, gradients: list[float], graph: bool) -> list[float]:
    """Applies each gradient; returns w after each."""
    optimizer.build([w])

    def step(gradient: tf.Tensor) -> None:
        optimizer.apply_gradients([(gradient, w)])

    call = tf.function(step) if graph else step
    values = []
    for gradient in gradients:
        call(tf.constant(gradient))
        values.append(float(w.numpy()))
    return values


@MODES
def test_average(graph: bool) -> None:
    w = variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    assert train(optimizer, w, [of_rank(2.0, 6.0)], graph) == pytest.approx([-mean(2.0, 6.0)])
    assert same_everywhere(w)


@MODES
def test_sum(graph: bool) -> None:
    w = variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    assert train(optimizer, w, [of_rank(2.0, 6.0)], graph) == [-(2.0 + 6.0 * (hvd.size() - 1))]


@MODES
@pytest.mark.parametrize("averaged", [True, False])
def test_backward_passes(graph: bool, averaged: bool) -> None:
    w = variable(0.0)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0),
        backward_passes_per_step=2,
        average_aggregated_gradients=averaged,
    )
    values = train(optimizer, w, of_rank([1.0, 3.0], [5.0, 7.0]), graph)
    total = mean(4.0, 12.0)
    assert values == pytest.approx([0.0, -total / 2 if averaged else -total])
    assert int(optimizer.iterations) == 1


def test_backward_passes_are_one_collective() -> None:
    w = variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    train(optimizer, w, [1.0, 1.0], False)
    before = hvd.stats().collectives
    train(optimizer, w, [1.0, 1.0], False)
    assert hvd.stats().collectives - before == 1


@MODES
def test_clip_after_the_reduction(graph: bool) -> None:
    w = variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=1.0))
    others = 4.0 * hvd.size()
    values = train(optimizer, w, [of_rank(5.0 - others * (hvd.size() - 1), others)], graph)
    mean_gradient = 5.0 / hvd.size()
    assert values == pytest.approx([-min(mean_gradient, 1.0)])


@MODES
def test_native_accumulation(graph: bool) -> None:
    w = variable(1.0)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(
            1.0, gradient_accumulation_steps=2, weight_decay=0.1, global_clipnorm=1.0
        )
    )
    assert train(optimizer, w, [3.0, 5.0], graph) == pytest.approx([1.0, -0.1])
    assert int(optimizer.iterations) == 1


@MODES
@pytest.mark.parametrize("inside", [True, False], ids=["scale(dist)", "dist(scale)"])
def test_one_rank_alone_overflows(graph: bool, inside: bool) -> None:
    scale = keras.optimizers.LossScaleOptimizer
    sgd = keras.optimizers.SGD(1.0)
    if inside:
        optimizer = scale(hvd.DistributedOptimizer(sgd), initial_scale=4.0)
    else:
        optimizer = hvd.DistributedOptimizer(scale(sgd, initial_scale=4.0))
    w = variable(0.0)
    values = train(optimizer, w, of_rank([4.0, 4.0, 4.0], [4.0, float("inf"), 4.0]), graph)
    assert values == [-1.0, -1.0, -3.0]
    assert float(optimizer.dynamic_scale.numpy()) == 2.0
    assert same_everywhere(w, optimizer.dynamic_scale)


@MODES
def test_gradient_of_one_rank_only(graph: bool) -> None:
    a, b = variable(0.0), variable(7.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))

    def step() -> None:
        optimizer.apply([tf.constant(4.0) if hvd.rank() == 0 else None, None], [a, b])

    (tf.function(step) if graph else step)()
    assert float(a.numpy()) == pytest.approx(-4.0 / hvd.size())
    assert float(b.numpy()) == 7.0


def test_strict() -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), strict=True)
    gradient = tf.constant(4.0) if hvd.rank() == 0 else None
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"`lonely` is None on ranks \[1"):
        optimizer.apply([gradient], [variable(0.0, "lonely")])
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == hvd.size()


@MODES
def test_different_models(graph: bool) -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    w = variable(np.zeros(of_rank(3, 4)))
    optimizer.build([w])

    def step() -> None:
        optimizer.apply([tf.zeros(of_rank(3, 4))], [w])

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 0 has .*\(3,\).*\(4,\)"):
        (tf.function(step) if graph else step)()
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == hvd.size()


@MODES
@pytest.mark.parametrize("as_dense", [False, True], ids=["sparse", "as dense"])
def test_sparse(graph: bool, as_dense: bool) -> None:
    table = variable(np.zeros((4, 2)))
    rows = of_rank([0, 1, 1], [1, 3])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=as_dense)
    optimizer.build([table])

    def step() -> None:
        slices = tf.IndexedSlices(tf.ones((len(rows), 2)), tf.constant(rows), [4, 2])
        optimizer.apply([slices], [table])

    (tf.function(step) if graph else step)()
    expected = [mean(1.0, 0.0), mean(2.0, 1.0), 0.0, mean(0.0, 1.0)]
    np.testing.assert_allclose(table.numpy(), -np.outer(expected, [1.0, 1.0]), rtol=1e-6)
    assert same_everywhere(table)


def test_sparse_merges_before_it_sends() -> None:
    table = variable(np.zeros((400, 256)))
    rows = of_rank([0, 1, 1], [1, 3])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    slices = tf.IndexedSlices(tf.ones((len(rows), 256)), tf.constant(rows), [400, 256])
    optimizer.apply([slices], [table])
    before = hvd.stats().payload_bytes
    optimizer.apply([slices], [table])
    assert hvd.stats().payload_bytes - before < 3 * 256 * 4


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
@MODES
def test_compression(compression: Any, graph: bool) -> None:
    w = variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=compression)
    (value,) = train(optimizer, w, [of_rank(1 / 3, 2 / 3)], graph)
    step = 2.0**-11 if compression is hvd.Compression.fp16 else 2.0**-8
    assert value == pytest.approx(-mean(1 / 3, 2 / 3), abs=step)
    assert w.dtype == "float32"


@MODES
def test_predivide(graph: bool) -> None:
    w = variable(0.0)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), gradient_predivide_factor=2.0 * hvd.size()
    )
    (value,) = train(optimizer, w, [of_rank(2.0, 6.0)], graph)
    assert value == pytest.approx(-mean(2.0, 6.0))


@MODES
@pytest.mark.parametrize("groups", [None, 1, 3, "lists"])
def test_groups_do_not_change_the_numbers(graph: bool, groups: Any) -> None:
    variables = [variable(np.zeros(i)) for i in range(6)]
    if groups == "lists":
        groups = [[variables[0], variables[5]], [variables[3]]]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=groups)
    optimizer.build(variables)

    def step() -> None:
        gradients = [tf.fill([i], of_rank(float(i), 3.0 * i)) for i in range(6)]
        optimizer.apply(gradients, variables)

    (tf.function(step) if graph else step)()
    for i, v in enumerate(variables):
        np.testing.assert_allclose(v.numpy(), np.full(i, -mean(i, 3.0 * i)), rtol=1e-6)


def test_two_optimizers_in_one_step() -> None:
    nets = [[variable(0.0, "same"), variable(0.0, "same")] for _ in range(2)]
    optimizers = [hvd.DistributedOptimizer(keras.optimizers.Adam(0.1 * (k + 1))) for k in range(2)]
    for optimizer, net in zip(optimizers, nets, strict=True):
        optimizer.build(net)
    generator = np.random.default_rng(hvd.rank())

    @tf.function
    def step(gradients: tf.Tensor) -> None:
        for k in range(2):
            optimizers[k].apply([gradients[2 * k], gradients[2 * k + 1]], nets[k])

    for _ in range(5):
        step(tf.constant(generator.normal(size=4), tf.float32))
    assert same_everywhere(*nets[0], *nets[1])
    assert len({float(v.numpy()) for net in nets for v in net}) == 4


def test_layers_of_one_name_do_not_mix() -> None:
    layers = [variable(0.0, "same"), variable(0.0, "same")]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([tf.constant(of_rank(1.0, 3.0)), tf.constant(of_rank(2.0, 4.0))], layers)
    values = [float(v.numpy()) for v in layers]
    assert values == pytest.approx([-mean(1.0, 3.0), -mean(2.0, 4.0)])


@MODES
def test_no_control_message_per_tensor(graph: bool) -> None:
    variables = [variable(np.zeros(3)) for _ in range(100)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(variables)

    def step() -> None:
        optimizer.apply([tf.ones(3)] * 100, variables)

    call = tf.function(step) if graph else step
    for _ in range(2):
        call()
    before = hvd.stats()
    for _ in range(50):
        call()
    after = hvd.stats()
    assert after.collectives - before.collectives == 50
    assert after.tensors - before.tensors == 5000
    assert after.control_messages - before.control_messages <= 50
    assert float(variables[0].numpy()[0]) == -52.0
