"""What ranks do together is what one process does with the mean of their gradients."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring.callbacks import BroadcastGlobalVariablesCallback
from tfring.optimizer import DistributedOptimizer

MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
WRAPPINGS = ["none", "scale(dist)", "dist(scale)"]
PASSES = {"1": {}, "native": {"native": 2}, "ours": {"ours": 2}}
SHAPES = [(3,), (2, 2), ()]
SCALE = 8.0

OPTIMIZERS = {
    "plain": lambda **kwargs: keras.optimizers.SGD(0.5, momentum=0.9, **kwargs),
    "clipnorm": lambda **kwargs: keras.optimizers.Adam(0.1, clipnorm=0.5, **kwargs),
    "global_clipnorm": lambda **kwargs: keras.optimizers.SGD(0.5, global_clipnorm=0.7, **kwargs),
    "clipvalue": lambda **kwargs: keras.optimizers.SGD(0.5, clipvalue=0.3, **kwargs),
    "weight_decay": lambda **kwargs: keras.optimizers.AdamW(0.1, weight_decay=0.2, **kwargs),
    "ema": lambda **kwargs: keras.optimizers.SGD(
        0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2, **kwargs
    ),
    "schedule": lambda **kwargs: keras.optimizers.Lion(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), **kwargs
    ),
}


def new_variables() -> list[keras.Variable]:
    random = np.random.default_rng(1)
    return [keras.Variable(random.normal(size=s).astype("float32")) for s in SHAPES]


def new_gradients(rank: int, steps: int) -> list[list[np.ndarray]]:
    random = np.random.default_rng(100 + rank)
    # Multiples of 1/8: the mean over two ranks and the loss scale are exact.
    return [
        [np.asarray(np.round(8 * random.normal(size=s)) / 8, "float32") for s in SHAPES]
        for _ in range(steps)
    ]


def stepper(optimizer: Any, variables: list[Any], graph: bool) -> Any:
    optimizer.build(variables)

    def step(*gradients: tf.Tensor) -> None:
        optimizer.apply(list(gradients), variables)

    return tf.function(step) if graph else step


def states(optimizer: Any, variables: list[Any]) -> list[np.ndarray]:
    return [np.array(v.numpy()) for v in [*variables, *optimizer.variables]]


def wrapped(wrapping: str, stock: Any, **kwargs: Any) -> Any:
    if wrapping == "none":
        return DistributedOptimizer(stock, **kwargs)
    if wrapping == "scale(dist)":
        distributed = DistributedOptimizer(stock, **kwargs)
        return keras.optimizers.LossScaleOptimizer(distributed, initial_scale=SCALE)
    return DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(stock, initial_scale=SCALE), **kwargs
    )


def combinations() -> list[Any]:
    """Each optimizer with each kind of passes, and these with all wrappings in turn."""
    pairs = [(kind, passes) for kind in OPTIMIZERS for passes in PASSES]
    return [(*pair, WRAPPINGS[(i + i // 3) % 3]) for i, pair in enumerate(pairs)]


@pytest.mark.parametrize(("kind", "passes", "wrapping"), combinations())
def test_as_one_process(ranks: Any, kind: str, passes: Any, wrapping: str) -> None:
    passes = PASSES[passes]
    steps, per_update = 4, 2 if passes else 1
    stock_options = {"gradient_accumulation_steps": 2} if "native" in passes else {}
    ours = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    factor = 1.0 if wrapping == "none" else SCALE

    def body(rank: int) -> Any:
        variables = new_variables()
        stock = OPTIMIZERS[kind](**stock_options)
        optimizer = wrapped(wrapping, stock, **(ours if "ours" in passes else {}))
        step = stepper(optimizer, variables, graph=True)
        for gradients in new_gradients(rank, steps):
            step(*(tf.constant(g * factor) for g in gradients))
        return states(stock, variables), int(stock.iterations)

    sim = ranks(2)
    results = sim.run(body)
    variables, stock = new_variables(), OPTIMIZERS[kind](**stock_options)
    step = stepper(stock, variables, graph=True)
    both = [new_gradients(rank, steps) for rank in range(2)]
    means = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in zip(*both, strict=True)]
    if "ours" in passes:
        halves = zip(means[::2], means[1::2], strict=True)
        means = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in halves]
    for gradients in means:
        step(*map(tf.constant, gradients))
    expected = states(stock, variables)
    for got, iterations in results:
        assert iterations == steps // per_update
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
    for mine, other in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_array_equal(mine, other)
    buckets = [name for name in sim.names() if "bucket" in name]
    assert buckets == ["optimizer0/bucket0"] * (steps // per_update)


@MODES
@pytest.mark.parametrize("wrapping", ["scale(dist)", "dist(scale)"])
def test_a_pass_that_one_rank_alone_cannot_use(ranks: Any, graph: bool, wrapping: str) -> None:
    scaled = {0: [8.0, 8.0, 4.0, 4.0, 12.0], 1: [24.0, np.inf, 12.0, 4.0, 4.0]}

    def body(rank: int) -> Any:
        w = keras.Variable(0.0)
        stock = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        optimizer = wrapped(wrapping, stock)
        step = stepper(optimizer, [w], graph)
        outer = optimizer
        seen = []
        for gradient in scaled[rank]:
            step(tf.constant(gradient, tf.float32))
            seen.append((float(w.numpy()), float(outer.dynamic_scale.numpy())))
        return seen, int(stock.iterations)

    sim = ranks(2)
    # 2; dropped; 2 (8 of scale 4): -2; 1 and 2: -3.5
    expected = [(0.0, 8.0), (0.0, 4.0), (-2.0, 4.0), (-2.0, 4.0), (-3.5, 4.0)]
    assert sim.run(body) == [(expected, 2)] * 2
    passes = ["optimizer0/finite"] * 2 + ["optimizer0/finite", "optimizer0/bucket0"]
    assert sim.names() == passes + ["optimizer0/finite"] * 2 + ["optimizer0/bucket0"]


@MODES
def test_ranks_with_variables_of_their_own_clip_alike(ranks: Any, graph: bool) -> None:
    shared, own = {0: 2.0, 1: 4.0}, {0: 8.0, 1: 16.0}  # 3; 4 and 8: the norm is sqrt(89)

    def body(rank: int) -> Any:
        v, w = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=1.0))
        optimizer.register_local_var(w)
        stepper(optimizer, [v, w], graph)(tf.constant(shared[rank]), tf.constant(own[rank]))
        return float(v.numpy()), float(w.numpy())

    results = ranks(2).run(body)
    assert results[0][0] == results[1][0]
    norm = np.sqrt(89.0)
    np.testing.assert_allclose(results, [(-3 / norm, -4 / norm), (-3 / norm, -8 / norm)], 1e-6)


@MODES
@pytest.mark.parametrize("passes", [1, "native", "ours"])
def test_what_overwrites_is_the_largest_of_all_ranks(ranks: Any, graph: bool, passes: Any) -> None:
    kwargs = {"gradient_accumulation_steps": 2} if passes == "native" else {}
    ours = {"backward_passes_per_step": 2} if passes == "ours" else {}

    def body(rank: int) -> Any:
        amax, w = keras.Variable(0.5), keras.Variable(0.0)
        amax.overwrite_with_gradient = True
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0, **kwargs), **ours)
        step = stepper(optimizer, [amax, w], graph)
        for value in [[5.0, 1.0], [2.0, 3.0]][rank][: 1 if passes == 1 else 2]:
            step(tf.constant(value), tf.constant(2.0))
        return float(amax.numpy()), float(w.numpy())

    sim = ranks(2)
    assert sim.run(body) == [(5.0, -4.0 if passes == "ours" else -2.0)] * 2
    assert sim.names().count("optimizer0/bucket0") == 1


@pytest.mark.parametrize("broadcasts", [False, True], ids=["", "broadcast"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "ours"])
def test_leftovers_of_an_epoch_join_the_next(ranks: Any, native: bool, broadcasts: bool) -> None:
    def body(rank: int) -> Any:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((1,)), layer])
        stock = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2 if native else None)
        ours = {} if native else {"backward_passes_per_step": 2}
        average = {"average_aggregated_gradients": True}
        optimizer = DistributedOptimizer(stock, **ours, **average)
        model.compile(optimizer, lambda y, p: keras.ops.mean(p))
        x = np.array([[1.0], [3.0], [5.0]], "float32") + 2 * rank
        seen = []
        for _ in range(2):
            first = [BroadcastGlobalVariablesCallback(0)] if broadcasts else []
            model.fit(x, x, batch_size=1, shuffle=False, callbacks=first, verbose=0)
            seen.append((float(model.get_weights()[0][0, 0]), int(optimizer.iterations)))
        return seen

    # Means over ranks 2, 4, 6; then 6 with 2, and 4 with 6.
    assert ranks(2).run(body) == [[(-3.0, 1), (-3.0 - 4.0 - 5.0, 3)]] * 2


def test_bfloat16_policy_scales_no_loss(ranks: Any) -> None:
    def body(rank: int) -> Any:
        layer = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros", dtype="mixed_bfloat16"
        )
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
        x = np.ones((1, 1), "float32")
        model.fit(x, x * [1.0, 3.0][rank], verbose=0)
        assert not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        return float(model.get_weights()[0][0, 0]), layer.kernel.dtype

    assert ranks(2).run(body) == [(2.0, "float32")] * 2
