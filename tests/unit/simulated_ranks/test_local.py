"""Local variables: not reduced, and scaled by the number of ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import optimizer as optimizer_module
from tfring.optimizer import DistributedOptimizer
from tfring.partial import PartialDistributedGradientTape, PartialDistributedOptimizer
from tfring.tape import DistributedGradientTape

MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def stepper(optimizer: Any, variables: list[Any], graph: bool) -> Any:
    def step(*gradients: tf.Tensor) -> None:
        optimizer.apply(gradients, variables)

    return tf.function(step) if graph else step


@MODES
@pytest.mark.parametrize(("scale", "expected"), [(True, [-1.0, -3.0]), (False, [-2.0, -6.0])])
def test_optimizer(ranks: Any, graph: bool, scale: bool, expected: list[float]) -> None:
    sim = ranks(2)

    def body(rank: int) -> tuple[float, float]:
        own, shared = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), scale_local_gradients=scale)
        optimizer.register_local_var(own.value if rank else own)  # of Keras or of TensorFlow
        optimizer.build([own, shared])
        gradient = tf.constant([2.0, 6.0][rank])
        stepper(optimizer, [own, shared], graph)(gradient, gradient)
        return float(own.numpy()), float(shared.numpy())

    assert sim.run(body) == [(expected[0], -4.0), (expected[1], -4.0)]
    assert [count for _, _, count in sim.calls] == [1, 1]


@MODES
def test_aggregation(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> list[tuple[float, float]]:
        own, shared = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        optimizer.register_local_var(own)
        optimizer.build([own, shared])
        step = stepper(optimizer, [own, shared], graph)
        values = []
        for gradient in ([1.0, 3.0], [5.0, 7.0])[rank]:
            step(tf.constant(gradient), tf.constant(gradient))
            values.append((float(own.numpy()), float(shared.numpy())))
        return values

    assert ranks(2).run(body) == [[(0.0, 0.0), (-2.0, -8.0)], [(0.0, 0.0), (-6.0, -8.0)]]


@MODES
def test_native_accumulation(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> tuple[float, float]:
        own, shared = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
        optimizer.register_local_var(own)
        optimizer.build([own, shared])
        step = stepper(optimizer, [own, shared], graph)
        for gradient in ([1.0, 3.0], [5.0, 7.0])[rank]:
            step(tf.constant(gradient), tf.constant(gradient))
        return float(own.numpy()), float(shared.numpy())

    assert ranks(2).run(body) == [(-1.0, -4.0), (-3.0, -4.0)]


@MODES
@pytest.mark.parametrize("inside", [True, False], ids=["scale(dist)", "dist(scale)"])
def test_overflow_of_one_rank_alone(ranks: Any, graph: bool, inside: bool) -> None:
    """All ranks skip the update, or loss scales and shared weights would drift apart."""

    def body(rank: int) -> tuple[list[float], list[float], float]:
        own, shared = keras.Variable(0.0), keras.Variable(0.0)
        sgd = keras.optimizers.SGD(1.0)
        if inside:
            distributed = DistributedOptimizer(sgd)
            optimizer = keras.optimizers.LossScaleOptimizer(distributed, initial_scale=4.0)
        else:
            scaled = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=4.0)
            distributed = optimizer = DistributedOptimizer(scaled)
        distributed.register_local_var(own)
        optimizer.build([own, shared])
        step = stepper(optimizer, [own, shared], graph)
        values: tuple[list[float], list[float]] = ([], [])
        for gradient in ([8.0, 8.0], [24.0, np.inf])[rank]:
            step(tf.constant(gradient), tf.constant(8.0))
            values[0].append(float(own.numpy()))
            values[1].append(float(shared.numpy()))
        return *values, float(optimizer.dynamic_scale.numpy())

    assert ranks(2).run(body) == [
        ([-1.0, -1.0], [-2.0, -2.0], 2.0),
        ([-3.0, -3.0], [-2.0, -2.0], 2.0),
    ]


def test_shapes_and_numbers_of_local_variables_are_each_ranks_own(ranks: Any) -> None:
    def body(rank: int) -> list[float]:
        own = [keras.Variable(np.zeros(rank + 2, "float32")) for _ in range(rank + 1)]
        shared = keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        for v in own:
            optimizer.register_local_var(v)
        gradients = [*(tf.ones(rank + 2) for _ in own), tf.constant(1.0 + rank)]
        optimizer.apply(gradients, [*own, shared])
        return [float(shared.numpy()), float(own[-1].numpy()[-1])]

    assert ranks(2).run(body) == [[-1.5, -0.5]] * 2


def test_local_on_some_ranks_only_is_an_error(ranks: Any) -> None:
    def body(rank: int) -> None:
        v, w = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        if rank:
            optimizer.register_local_var(v)
        optimizer.apply([tf.ones(()), tf.ones(())], [v, w])

    with pytest.raises(tf.errors.FailedPreconditionError, match="local variables=False"):
        ranks(2).run(body)


def test_passes_must_be_alike(ranks: Any) -> None:
    def body(rank: int) -> None:
        v = keras.Variable(0.0)
        optimizer = DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=1 + rank
        )
        optimizer.apply([tf.ones(())], [v])

    with pytest.raises(tf.errors.FailedPreconditionError, match="backward_passes_per_step=1"):
        ranks(2).run(body)


def test_sparse_gradients(ranks: Any) -> None:
    def body(rank: int) -> list[float]:
        table = keras.Variable(np.zeros((3, 1), "float32"))
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        optimizer.register_local_var(table)
        optimizer.apply([tf.IndexedSlices(tf.ones((1, 1)), tf.constant([rank]), [3, 1])], [table])
        return table.numpy().ravel().tolist()

    assert ranks(2).run(body) == [[-0.5, 0.0, 0.0], [0.0, -0.5, 0.0]]


def test_what_must_start_alike(ranks: Any) -> None:
    ranks(2)
    own, shared = keras.Variable([0.0, 0.0]), keras.Variable(0.0)
    optimizer = DistributedOptimizer(keras.optimizers.Adam(), backward_passes_per_step=2)
    optimizer.register_local_var(own)
    optimizer.build([own, shared])
    shapes = [tuple(v.shape) for v in optimizer_module.state_variables(optimizer)]
    # iterations, learning rate, m and v of the shared one, counter, its accumulator
    assert shapes == [()] * 6
    assert optimizer_module.local_variables(optimizer, [own, shared]) == [own]


@pytest.mark.parametrize("wrong", ["kernel", None, 3, keras.layers.Dense(1)])
def test_no_variable(ranks: Any, wrong: Any) -> None:
    ranks(1)
    with pytest.raises(TypeError, match="must be a tf.Variable or keras.Variable"):
        DistributedOptimizer(keras.optimizers.SGD()).register_local_var(wrong)
    with pytest.raises(TypeError, match="`source` must be"):
        DistributedGradientTape(tf.GradientTape()).register_local_source(wrong)


@MODES
@pytest.mark.parametrize(("scale", "expected"), [(True, [0.5, 1.0]), (False, [1.0, 2.0])])
def test_tape(ranks: Any, graph: bool, scale: bool, expected: list[float]) -> None:
    def body(rank: int) -> Any:
        own, x, shared = keras.Variable(1.0), tf.constant(1.0), tf.Variable(1.0)

        def gradient() -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                loss = (own + shared + x) * (1.0 + rank)
            tape = DistributedGradientTape(tape, scale_local_gradients=scale)
            tape.register_local_source(own)
            tape.register_local_source(x)
            local, shared_ones = tape.get_local_and_global_gradients(loss, [own, shared, x])
            assert [pair[0] for pair in local] == [own, x]
            assert [pair[0] for pair in shared_ones] == [shared]
            return (
                tape.gradient(loss, {"o": own, "s": shared, "x": x}),
                [pair[1] for pair in (*local, *shared_ones)],
            )

        return tf.nest.map_structure(float, (tf.function(gradient) if graph else gradient)())

    for rank, (gradients, pairs) in enumerate(ranks(2).run(body)):
        own = expected[rank]
        assert gradients == {"o": own, "s": 1.5, "x": own}
        assert pairs == [own, own, 1.5]


def test_tape_and_optimizer_scale_once(ranks: Any) -> None:
    def body(rank: int) -> tuple[float, float]:
        own, shared = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        optimizer.register_local_var(own)
        with tf.GradientTape() as tape:
            loss = (own + shared) * 2.0
        tape = DistributedGradientTape(tape)
        tape.register_local_source(own)
        optimizer.apply(tape.gradient(loss, [own, shared]), [own, shared])
        return float(own.numpy()), float(shared.numpy())

    assert ranks(2).run(body) == [(-1.0, -2.0)] * 2


def model_with(own: Any, shared: Any) -> keras.Model:
    return keras.Sequential([own, shared])


@MODES
@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("as_list", [True, False])
def test_partial_optimizer(ranks: Any, graph: bool, built: bool, as_list: bool) -> None:
    def body(rank: int) -> tuple[float, float]:
        own, shared = (
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)
        )
        model = keras.Sequential([own, shared])
        if built:
            model.build((None, 1))
        optimizer = PartialDistributedOptimizer(
            keras.optimizers.SGD(1.0), local_layers={own} if as_list else own
        )
        if not built:
            model.build((None, 1))
        optimizer.build(model.trainable_variables)
        step = stepper(optimizer, model.trainable_variables, graph)
        step(tf.fill((1, 1), 2.0 + 4.0 * rank), tf.fill((1, 1), 2.0 + 4.0 * rank))
        return tuple(float(w[0, 0]) for w in model.get_weights())

    assert ranks(2).run(body) == [(0.0, -3.0), (-2.0, -3.0)]


@MODES
def test_partial_tape(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> list[float]:
        own, shared = (
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)
        )
        model = keras.Sequential([keras.Input((1,)), own, shared])

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                loss = model(tf.fill((1, 1), 1.0 + rank))
            tape = PartialDistributedGradientTape(tape, local_layers=[own])
            return tape.gradient(loss, model.trainable_variables)

        return [float(g[0, 0]) for g in (tf.function(gradient) if graph else gradient)()]

    assert ranks(2).run(body) == [[0.5, 1.5], [1.0, 1.5]]


@pytest.mark.parametrize(
    "wrong",
    ["dense", 3, [None], [keras.layers.Dense(1), "x"], {"a": keras.layers.Dense(1)}, [[1]]],
    ids=str,
)
def test_wrong_layers(ranks: Any, wrong: Any) -> None:
    ranks(1)
    with pytest.raises(ValueError, match="`local_layers` must be"):
        PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=wrong)
    with pytest.raises(ValueError, match="`local_layers` must be"):
        PartialDistributedGradientTape(tf.GradientTape(), local_layers=wrong)


def test_partial_is_for_keras(ranks: Any) -> None:
    ranks(1)
    with pytest.raises(TypeError, match="must be a Keras optimizer.*register_local_var"):
        PartialDistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_no_layers(ranks: Any, nothing: Any) -> None:
    ranks(1)
    optimizer = PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=nothing)
    assert optimizer_module.local_variables(optimizer, [keras.Variable(0.0)]) == []
