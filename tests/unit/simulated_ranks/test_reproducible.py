"""`reproducible=True`: the same bits, whoever computes which micro-batch."""

from __future__ import annotations

import fractions
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring import _reproducible
from tfring.compression import Compression
from tfring.constants import Adasum, Average, Sum
from tfring.optimizer import DistributedOptimizer

MICRO = 4  # micro-batches in a global batch
# Number of ranks, then passes of each.
SPLITS = [(1, 4), (2, 2), (4, 1)]
# Simulated collectives block one of TensorFlow's threads each, of which there may be two.
IN_GRAPHS = SPLITS[:2]
EAGERLY = pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])


def _floats(shape: Any, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Floats of many sizes, whose sums round."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) * 2.0 ** random.integers(-12, 12, shape)
    return np.asarray(tf.cast(values, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("addends", [1, 4, 1024])
def test_there_and_back(dtype: str, addends: int) -> None:
    values = tf.constant(_floats([1000], dtype=dtype))
    back = _reproducible.decoded(_reproducible.encoded(values, _reproducible.limb_bits(addends)))
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sum_is_that_of_fractions(dtype: str) -> None:
    rows = _floats([7, 50], dtype=dtype)
    bits = _reproducible.limb_bits(7)
    parts = [_reproducible.encoded(tf.constant(row), bits) for row in rows]
    limbs = [tf.add_n([p.limbs[i] for p in parts]) for i in range(len(parts[0].limbs))]
    total = _reproducible.Fixed(limbs, parts[0].bad, bits, parts[0].dtype, 1)
    exact = [sum(map(fractions.Fraction, map(float, column))) / 7 for column in rows.T]
    expected = np.array([float(value) for value in exact])
    rtol = np.finfo(dtype).eps if dtype == "float64" else 0
    np.testing.assert_allclose(_reproducible.decoded(total, 7), expected.astype(dtype), rtol=rtol)


@pytest.mark.parametrize("addends", [1, 2, 3, 1024, 1 << 20])
def test_no_sum_overflows(addends: int) -> None:
    bits = _reproducible.limb_bits(addends)
    largest = np.nextafter(np.float64(2.0**_reproducible.TOP), 0)
    limbs = _reproducible.encoded(tf.constant([largest, -largest]), bits).limbs
    assert all(abs(int(value)) * addends < 2**63 for limb in limbs for value in limb)


def test_too_many_addends() -> None:
    with pytest.raises(ValueError, match="at most 1048576 gradients. Received: 1048577"):
        _reproducible.limb_bits((1 << 20) + 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**40, -(2.0**41)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_outside_makes_nan(bad: float, dtype: str) -> None:
    fixed = _reproducible.encoded(tf.cast([1.0, bad], dtype), 60)
    assert np.isnan(np.asarray(_reproducible.decoded(fixed), "float32")).all()


def _train(
    ranks: Any,
    split: tuple[int, int],
    make: Callable[[], Any],
    gradients: Callable[[int, int], list[Any]],
    *,
    eagerly: bool = True,
    steps: int = 3,
    bucket_bytes: int = 1 << 25,
    dtype: str = "float32",
    **options: Any,
) -> list[bytes]:
    """Trains with `gradients(step, micro-batch)`; the weights of every rank in the end."""
    size, passes = split
    options = {"average_aggregated_gradients": True, "reproducible": True, **options}

    def body(rank: int) -> bytes:
        variables = [keras.Variable(_floats([9, 5], 7), dtype=dtype), keras.Variable([1.0] * 3)]
        optimizer = DistributedOptimizer(make(), backward_passes_per_step=passes, **options)
        optimizer.build(variables)
        apply = optimizer.apply if eagerly else tf.function(optimizer.apply)
        for step in range(steps):
            for number in range(passes):
                apply(gradients(step, rank * passes + number))
        assert int(optimizer.iterations) == steps
        return b"".join(v.numpy().tobytes() for v in variables)

    sim = ranks(size, bucket_bytes)
    return sim.run(body)


def _dense(step: int, micro: int, dtype: str = "float32") -> list[Any]:
    seed = step * MICRO + micro
    return [tf.constant(_floats([9, 5], seed, dtype)), tf.constant(_floats([3], seed + 99))]


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.1, global_clipnorm=1.0, weight_decay=0.01),
    "clipped": lambda: keras.optimizers.RMSprop(0.1, clipnorm=0.5, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


def _all_alike(results: list[list[bytes]]) -> bool:
    return len({weights for result in results for weights in result}) == 1


@EAGERLY
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_do_not_depend_on_the_number_of_ranks(ranks: Any, name: str, eagerly: bool) -> None:
    results = [
        _train(ranks, split, OPTIMIZERS[name], _dense, eagerly=eagerly)
        for split in (SPLITS if eagerly else IN_GRAPHS)
    ]
    assert _all_alike(results)


def test_without_the_option_bits_depend_on_it(ranks: Any) -> None:
    results = [
        _train(ranks, split, OPTIMIZERS["sgd"], _dense, reproducible=False) for split in SPLITS
    ]
    assert not _all_alike(results)


@pytest.mark.parametrize("order", [[3, 1, 0, 2], [2, 3, 0, 1]])
def test_bits_do_not_depend_on_who_has_which(ranks: Any, order: list[int]) -> None:
    results = [
        _train(
            ranks,
            (2, 2),
            OPTIMIZERS["adam"],
            lambda step, micro, places=places: _dense(step, places[micro]),
        )
        for places in (range(MICRO), order)
    ]
    assert _all_alike(results)


@pytest.mark.parametrize("bucket_bytes", [0, 64])
def test_bits_do_not_depend_on_buckets(ranks: Any, bucket_bytes: int) -> None:
    results = [
        _train(ranks, (2, 2), OPTIMIZERS["sgd"], _dense, bucket_bytes=each)
        for each in (bucket_bytes, 1 << 25)
    ]
    assert _all_alike(results)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(ranks: Any, dtype: str) -> None:
    gradients = functools.partial(_dense, dtype=dtype)
    variables = "float64" if dtype == "float64" else "float32"
    results = [
        _train(ranks, split, OPTIMIZERS["sgd"], gradients, dtype=variables) for split in SPLITS
    ]
    assert _all_alike(results)


def test_sums_of_ranks_and_passes(ranks: Any) -> None:
    results = [
        _train(
            ranks,
            split,
            OPTIMIZERS["sgd"],
            _dense,
            op=Sum,
            average_aggregated_gradients=False,
        )
        for split in SPLITS
    ]
    assert _all_alike(results)


def test_predivision_changes_nothing(ranks: Any) -> None:
    results = [
        _train(ranks, (4, 1), OPTIMIZERS["sgd"], _dense, op=Average, **options)
        for options in ({}, {"gradient_predivide_factor": 3.0})
    ]
    assert _all_alike(results)


@EAGERLY
def test_sparse_gradients(ranks: Any, eagerly: bool) -> None:
    def gradients(step: int, micro: int) -> list[Any]:
        dense = _dense(step, micro)
        rows = tf.constant([micro, 8, micro])
        return [tf.IndexedSlices(dense[0][:3], rows, tf.constant([9, 5])), dense[1]]

    splits = SPLITS if eagerly else IN_GRAPHS
    results = [
        _train(ranks, split, OPTIMIZERS["adam"], gradients, eagerly=eagerly) for split in splits
    ]
    assert _all_alike(results)


def test_a_gradient_that_is_missing_everywhere(ranks: Any) -> None:
    def gradients(step: int, micro: int) -> list[Any]:
        return [_dense(step, micro)[0], None]

    results = [_train(ranks, split, OPTIMIZERS["sgd"], gradients) for split in SPLITS]
    assert _all_alike(results)
    assert results[0][0].endswith(np.ones(3, "float32").tobytes())


def test_a_gradient_that_some_ranks_miss(ranks: Any) -> None:
    def gradients(step: int, micro: int) -> list[Any]:
        dense = _dense(step, micro)
        return [dense[0], tf.zeros([3]) if micro in (1, 2) else dense[1]]

    def missing(step: int, micro: int) -> list[Any]:
        dense = gradients(step, micro)
        return [dense[0], None if micro in (1, 2) else dense[1]]

    results = [
        _train(ranks, (1, 4), OPTIMIZERS["sgd"], gradients),
        _train(ranks, (4, 1), OPTIMIZERS["sgd"], missing),
    ]
    assert _all_alike(results)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_loss_scaling_skips_alike(ranks: Any, bad: float) -> None:
    def gradients(step: int, micro: int) -> list[Any]:
        dense = _dense(step, micro)
        return [dense[0] + (bad if (step, micro) == (1, 2) else 0.0), dense[1]]

    def body(rank: int, passes: int) -> Any:
        variables = [keras.Variable(_floats([9, 5], 7)), keras.Variable([1.0] * 3)]
        inner = DistributedOptimizer(
            keras.optimizers.SGD(0.1),
            backward_passes_per_step=passes,
            average_aggregated_gradients=True,
            reproducible=True,
        )
        outer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
        outer.build(variables)
        for step in range(3):
            for number in range(passes):
                outer.apply(gradients(step, rank * passes + number))
        weights = b"".join(v.numpy().tobytes() for v in variables)
        return weights, float(outer.dynamic_scale.numpy()), int(outer.iterations)

    results = [
        result
        for size, passes in SPLITS
        for result in ranks(size).run(functools.partial(body, passes=passes))
    ]
    assert len(set(results)) == 1
    assert results[0][1:] == (2.0, 2)


def test_fit(ranks: Any) -> None:
    x = _floats([16, 6], 1)
    y = x.sum(axis=1, keepdims=True)

    def body(rank: int, size: int, passes: int) -> bytes:
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
        )
        model.set_weights([_floats(w.shape, 3) for w in model.get_weights()])
        optimizer = DistributedOptimizer(
            keras.optimizers.Adam(0.01, clipnorm=1.0),
            backward_passes_per_step=passes,
            average_aggregated_gradients=True,
            reproducible=True,
        )
        model.compile(optimizer, "mse", run_eagerly=False)
        # Micro-batches of 2 samples, dealt out to ranks in turn.
        mine = np.arange(16).reshape(8, 2)[rank::size].ravel()
        model.fit(x[mine], y[mine], batch_size=2, shuffle=False, verbose=0)
        return b"".join(w.tobytes() for w in model.get_weights())

    results = [
        weights
        for size, passes in IN_GRAPHS
        for weights in ranks(size).run(functools.partial(body, size=size, passes=passes))
    ]
    assert len(set(results)) == 1


def test_local_variables_stay_each_ranks_own(ranks: Any) -> None:
    def body(rank: int) -> Any:
        shared, own = keras.Variable([0.0]), keras.Variable([0.0])
        optimizer = DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, reproducible=True
        )
        optimizer.register_local_var(own)
        optimizer.build([shared, own])
        for _ in range(2):
            optimizer.apply([tf.constant([rank + 1.0])] * 2)
        return float(shared[0]), float(own[0])

    assert ranks(2).run(body) == [(-3.0, -1.0), (-3.0, -2.0)]


@pytest.mark.parametrize("module", [tfring, tfring.keras])
@pytest.mark.parametrize(
    ("optimizer", "arguments", "text"),
    [
        (keras.optimizers.SGD, {"compression": Compression.fp16}, "Use Compression.none"),
        (
            functools.partial(keras.optimizers.SGD, gradient_accumulation_steps=2),
            {},
            "Use backward_passes_per_step",
        ),
        (tf.compat.v1.train.AdamOptimizer, {}, "needs an optimizer of Keras 3"),
    ],
)
def test_refused(module: Any, optimizer: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=rf"`reproducible=True`.*Received: .*{text}|{text}"):
        module.DistributedOptimizer(optimizer(), reproducible=True, **arguments)


def test_adasum_is_refused() -> None:
    with pytest.raises(ValueError, match="Adasum is not"):
        DistributedOptimizer(keras.optimizers.SGD(), op=Adasum, reproducible=True)


def test_ranks_must_agree_on_it(ranks: Any) -> None:
    def body(rank: int) -> None:
        optimizer = DistributedOptimizer(keras.optimizers.SGD(), reproducible=rank == 1)
        optimizer.apply([tf.constant([1.0])], [keras.Variable([1.0])])

    with pytest.raises(tf.errors.FailedPreconditionError, match="reproducible=False"):
        ranks(2).run(body)
