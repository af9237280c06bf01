"""Means over samples: batches of unequal sizes count as in one process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import Adasum, Sum, batch_samples
from tfring.compression import Compression
from tfring.optimizer import DistributedOptimizer, state_variables
from tfring.tape import DistributedGradientTape

MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def weighted(stock: Any = None, **kwargs: Any) -> Any:
    return DistributedOptimizer(stock or keras.optimizers.SGD(1.0), sample_weighted=True, **kwargs)


def stepper(optimizer: Any, variables: list[Any], graph: bool) -> Any:
    """Returns a function that applies gradients of a number of samples."""
    optimizer.build(variables)

    def step(number: Any, *gradients: Any) -> None:
        with batch_samples(number):
            optimizer.apply(list(gradients), variables)

    return tf.function(step) if graph else step


def run(ranks: Any, make: Any, batches: list[list[tuple[float, float]]], graph: bool) -> Any:
    """batches[rank][step] = (number, gradient); returns the simulation, w after each step."""
    sim = ranks(len(batches))

    def body(rank: int) -> list[float]:
        w = keras.Variable(0.0)
        step, values = stepper(make(), [w], graph), []
        for number, gradient in batches[rank]:
            step(tf.constant(number), tf.constant(gradient))
            values.append(float(w.numpy()))
        return values

    return sim, sim.run(body)


@MODES
@pytest.mark.parametrize("compression", [Compression.none, Compression.fp16])
def test_mean_over_samples(ranks: Any, graph: bool, compression: Any) -> None:
    make = lambda: weighted(compression=compression)  # noqa: E731
    # (3 * 2 + 1 * 6) / 4; then nothing from rank 1, whatever its gradient
    batches = [[(3.0, 2.0), (2.0, 1.0)], [(1.0, 6.0), (0.0, float("nan"))]]
    sim, values = run(ranks, make, batches, graph)
    assert values == [[-3.0, -4.0]] * 2
    # The numbers travel along, but apart from what is narrowed on its way.
    apart = ["optimizer0/bucket0/samples"] if compression is Compression.fp16 else []
    assert sim.names() == ["optimizer0/bucket0", *apart] * 2


def test_no_sample_anywhere_is_no_gradient(ranks: Any) -> None:
    assert run(ranks, weighted, [[(0.0, 1.0)]] * 2, False)[1] == [[0.0]] * 2


@MODES
@pytest.mark.parametrize(
    ("stock", "ours", "factor"),
    [
        ({"gradient_accumulation_steps": 2}, {}, 1),
        ({}, {"backward_passes_per_step": 2, "average_aggregated_gradients": True}, 1),
        ({}, {"backward_passes_per_step": 2}, 2),
    ],
    ids=["native", "averaged", "summed"],
)
@pytest.mark.parametrize("size", [1, 2])
def test_numbers_of_passes_add_up(
    ranks: Any, graph: bool, stock: Any, ours: Any, factor: int, size: int
) -> None:
    make = lambda: weighted(keras.optimizers.SGD(1.0, **stock), **ours)  # noqa: E731
    batches = [[(2.0, 8.0), (6.0, 0.0)] * 2, [(4.0, 4.0), (4.0, 1.0)] * 2][:size]
    # 16 / 8; (16 + 16 + 4) / 16
    once = -factor * [2.0, 2.25][size - 1]
    assert run(ranks, make, batches, graph)[1] == [[0.0, once, once, 2 * once]] * size


@MODES
@pytest.mark.parametrize("inside", [True, False], ids=["scale(dist)", "dist(scale)"])
def test_with_loss_scaling_and_native_passes(ranks: Any, graph: bool, inside: bool) -> None:
    def make() -> Any:
        stock = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        if inside:
            return keras.optimizers.LossScaleOptimizer(weighted(stock), initial_scale=2.0)
        return weighted(keras.optimizers.LossScaleOptimizer(stock, initial_scale=2.0))

    inf = float("inf")
    # Scaled by 2, dropped on both, scaled by 1: (1 * 2 + 3 * 6 + 2 * 5 + 2 * 1) / 8
    batches = [[(1.0, 4.0), (9.0, inf), (2.0, 5.0)], [(3.0, 12.0), (9.0, 1.0), (2.0, 1.0)]]
    sim, values = run(ranks, make, batches, graph)
    assert values == [[0.0, 0.0, -4.0]] * 2
    assert sim.names() == ["optimizer0/finite"] * 3 + ["optimizer0/bucket0"]


def test_numbers_of_all_passes_are_state(ranks: Any) -> None:
    """As where gradients add up by Keras and by us: what `JoinCallback` copies, say."""

    def body(rank: int) -> list[list[float]]:
        stock = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        optimizer, w = weighted(stock, backward_passes_per_step=2), keras.Variable(0.0)
        step = stepper(optimizer, [w], graph=False)
        for number in (64.0, 128.0, 32.0):
            step(number, tf.constant(1.0))
        values = [v.numpy() for v in state_variables(optimizer) if v.shape == (2,)]
        return sorted(value.tolist() for value in values)

    # In units of 64: of the two passes that Keras has, and of the one that we have.
    assert ranks(2).run(body) == [[[0.5, 0.0], [3.0, 0.0]]] * 2


@MODES
def test_a_rank_that_does_not_tell_is_an_error_on_all(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> str:
        w = keras.Variable(0.0)
        optimizer = weighted()
        optimizer.build([w])

        def step() -> None:
            optimizer.apply([tf.constant(1.0)], [w])

        step = tf.function(step) if graph else step
        with batch_samples(2):
            step()
        with pytest.raises(tf.errors.InvalidArgumentError, match="batch_samples") as error:
            if rank == 0:
                with batch_samples(2):
                    step()
            else:
                step()
        assert float(w.numpy()) == -1.0
        return type(error.value).__name__

    assert ranks(2).run(body) == ["InvalidArgumentError"] * 2


def test_a_function_traced_once_sees_each_number(ranks: Any) -> None:
    def body(rank: int) -> float:
        w = keras.Variable(0.0)
        optimizer = weighted()
        optimizer.build([w])

        @tf.function
        def step() -> None:
            optimizer.apply([tf.constant([0.0, 4.0][rank])], [w])

        for numbers in ([1, 1], [1, 3]):  # 2, then 3
            with batch_samples(numbers[rank]):
                step()
        return float(w.numpy())

    assert ranks(2).run(body) == [-5.0] * 2


@MODES
def test_sparse_gradients(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> Any:
        table = keras.Variable(np.zeros((2, 1), "float32"))
        optimizer = weighted()
        optimizer.build([table])

        def step() -> None:
            values = tf.constant([[[4.0]], [[8.0], [8.0]]][rank])
            slices = tf.IndexedSlices(values, tf.constant([[0], [0, 1]][rank]), [2, 1])
            with batch_samples([3, 1][rank]):
                optimizer.apply([slices], [table])

        (tf.function(step) if graph else step)()
        return table.numpy().ravel().tolist()

    assert ranks(2).run(body) == [[-5.0, -2.0]] * 2


@pytest.mark.parametrize("scale", [True, False])
def test_local_variables(ranks: Any, scale: bool) -> None:
    def body(rank: int) -> Any:
        v, w = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = weighted(scale_local_gradients=scale)
        optimizer.register_local_var(w)
        stepper(optimizer, [v, w], True)(
            tf.constant([3, 1][rank]), tf.constant([0.0, 4.0][rank]), tf.constant(4.0)
        )
        return float(v.numpy()), float(w.numpy())

    own = [-3.0, -1.0] if scale else [-4.0, -4.0]
    assert ranks(2).run(body) == [(-1.0, own[0]), (-1.0, own[1])]


@MODES
def test_tape(ranks: Any, graph: bool) -> None:
    sim = ranks(2)

    def body(rank: int) -> Any:
        w = tf.Variable(1.0)

        def gradient() -> Any:
            tape = DistributedGradientTape(tf.GradientTape(), sample_weighted=True)
            with batch_samples(tf.constant([3, 1][rank])), tape:
                loss = w * [2.0, 6.0][rank]
                return tape.gradient(loss, w)

        return float((tf.function(gradient) if graph else gradient)())

    assert sim.run(body) == [3.0, 3.0]
    assert sim.names() == ["tape0/bucket0"]


class Square(keras.losses.Loss):
    """The mean of squares, as a class of the user's own."""

    def call(self, y: Any, p: Any) -> Any:
        return keras.ops.mean(keras.ops.square(p - y), axis=-1)


def linear() -> keras.Model:
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return keras.Sequential([keras.Input((1,)), layer])


FIT = {
    "mse": ("mse", False),
    "weights": ("mse", True),
    "own class": (Square(reduction="sum_over_batch_size"), True),
    "mean over weights": (Square(reduction="mean_with_sample_weight"), True),
}


@pytest.mark.parametrize(("kind", "eagerly"), [*((kind, False) for kind in FIT), ("mse", True)])
def test_fit_with_unequal_batches(ranks: Any, kind: str, eagerly: bool) -> None:
    loss, has_weights = FIT[kind]
    random = np.random.default_rng(3)
    x, y = random.normal(size=(2, 10, 1)).astype("float32")
    weights = random.uniform(0.5, 2.0, 10).astype("float32")
    # The second batches have 1 and 3 samples.
    rows = [[0, 1, 2, 6], [3, 4, 5, 7, 8, 9]]

    def train(optimizer: Any, order: list[int], size: int, scale: bool) -> Any:
        model = linear()
        if scale:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, loss, run_eagerly=eagerly)
        sample_weight = weights[order] if has_weights else None
        model.fit(
            x[order],
            y[order],
            size,
            sample_weight=sample_weight,
            shuffle=False,
            verbose=0,
            epochs=2,
        )
        return model.get_weights()[0].item()

    stock = lambda: keras.optimizers.SGD(0.1)  # noqa: E731
    scaled = kind == "weights"
    results = ranks(2).run(lambda rank: train(weighted(stock()), rows[rank], 3, scaled))
    ranks(1)
    expected = train(stock(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 6, False)
    assert results[0] == results[1]
    assert results[0] == pytest.approx(expected, rel=1e-6)


class Masked(keras.layers.Layer):
    """Identity that masks zeros."""

    supports_masking = True

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return keras.ops.not_equal(x[..., 0], 0.0)

    def call(self, x: Any) -> Any:
        return x


def test_fit_with_masks(ranks: Any) -> None:
    x = np.array([[[1.0], [2.0], [3.0]], [[4.0], [0.0], [0.0]]], "float32")

    def train(optimizer: Any, rows: list[int]) -> Any:
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((3, 1)), Masked(), dense])
        model.compile(optimizer, "mse")
        model.fit(x[rows], 2 * x[rows], len(rows), verbose=0)
        return model.get_weights()[0].item()

    results = ranks(2).run(lambda rank: train(weighted(keras.optimizers.SGD(0.01)), [rank]))
    ranks(1)
    expected = train(keras.optimizers.SGD(0.01), [0, 1])  # 4 values count, not 6
    assert results == pytest.approx([expected] * 2, rel=1e-6)


class OwnStep(keras.Model):
    """A model with a train_step and a loss of its own."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(), initializer="zeros")

    def call(self, x: Any) -> Any:
        return x * self.w

    def train_step(self, data: Any) -> Any:
        x = data[0]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x))
        self.optimizer.apply(tape.gradient(loss, [self.w.value]), [self.w])
        return {"loss": loss}


@pytest.mark.parametrize("on_batch", [False, True], ids=["fit", "train_on_batch"])
def test_own_train_step(ranks: Any, on_batch: bool) -> None:
    def body(rank: int) -> float:
        model = OwnStep()
        model.compile(weighted())
        x = np.array([[[2.0]] * 3, [[6.0]]][rank], "float32")
        if on_batch:
            model.train_on_batch(x, x)
        else:
            model.fit(x, x, verbose=0)
        return float(model.w.numpy())

    assert ranks(2).run(body) == [-3.0] * 2


def test_losses_that_are_sums_are_an_error(ranks: Any) -> None:
    ranks(1)
    model = linear()
    model.compile(weighted(), keras.losses.MeanSquaredError(reduction="sum"))
    with pytest.raises(ValueError, match=r"\['sum'\]"):
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)


@pytest.mark.parametrize("op", [Sum, Adasum])
def test_other_operations_are_an_error(ranks: Any, op: int) -> None:
    ranks(1)
    with pytest.raises(ValueError, match=r"needs `op=tfring.Average`.*sample_weighted=True"):
        weighted(op=op)
    with pytest.raises(ValueError, match="sample_weighted"):
        DistributedGradientTape(tf.GradientTape(), op=op, sample_weighted=True)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(-1, ValueError), (float("inf"), ValueError), ([2], TypeError), (True, TypeError)],
)
def test_bad_numbers(number: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="Received: number="):
        batch_samples(number)


def test_tensors_that_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="scalar"):
        batch_samples(tf.zeros([2]))
    with pytest.raises(TypeError, match="scalar"):
        batch_samples(tf.constant("2"))
