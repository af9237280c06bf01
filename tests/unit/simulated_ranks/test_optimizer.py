"""DistributedOptimizer over simulated ranks; every number is worked out by hand."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import optimizer as optimizer_module
from tfring.compression import Compression
from tfring.constants import Min, Sum
from tfring.optimizer import DistributedOptimizer
from tfring.tape import DistributedGradientTape

MODES = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def variable(value: Any, name: str = "w") -> keras.Variable:
    return keras.Variable(np.asarray(value, "float32"), name=name)


def stepper(optimizer: Any, variables: list[Any], graph: bool) -> Any:
    """Returns a function that applies one list of gradients."""

    def step(*gradients: tf.Tensor) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return tf.function(step) if graph else step


def train(
    sim: Any, make: Any, gradients: list[list[float]], graph: bool, start: float = 0.0
) -> Any:
    """gradients[rank][step] -> (values of w after each step, optimizer) per rank."""

    def body(rank: int) -> tuple[list[float], Any]:
        w = variable(start)
        optimizer = make()
        optimizer.build([w])
        step = stepper(optimizer, [w], graph)
        values = []
        for gradient in gradients[rank]:
            step(tf.constant(gradient))
            values.append(float(w.numpy()))
        return values, optimizer

    return sim.run(body)


@MODES
@pytest.mark.parametrize(("op", "expected"), [(None, -4.0), (Sum, -8.0)])
def test_reduces(ranks: Any, graph: bool, op: Any, expected: float) -> None:
    kwargs = {} if op is None else {"op": op}
    make = lambda: DistributedOptimizer(keras.optimizers.SGD(1.0), **kwargs)  # noqa: E731
    for values, _ in train(ranks(2), make, [[2.0], [6.0]], graph):
        assert values == [expected]


def test_returns_the_same_object_with_its_state(ranks: Any) -> None:
    ranks(1)
    stock = keras.optimizers.Adam(0.01)
    w = variable(1.0)
    stock.apply([tf.constant(1.0)], [w])
    wrapped = DistributedOptimizer(stock)
    assert wrapped is stock
    assert type(wrapped) is keras.optimizers.Adam
    assert int(wrapped.iterations) == 1


def test_wrapping_twice_is_an_error(ranks: Any) -> None:
    ranks(1)
    wrapped = DistributedOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match="distributed already"):
        DistributedOptimizer(wrapped)
    with pytest.raises(ValueError, match="distributed already"):
        DistributedOptimizer(keras.optimizers.LossScaleOptimizer(wrapped))


@MODES
@pytest.mark.parametrize(
    ("average", "expected"), [(True, [0.0, -4.0]), (False, [0.0, -8.0])], ids=["mean", "sum"]
)
def test_backward_passes(ranks: Any, graph: bool, average: bool, expected: list[float]) -> None:
    sim = ranks(2)

    def make() -> Any:
        return DistributedOptimizer(
            keras.optimizers.SGD(1.0),
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )

    for values, optimizer in train(sim, make, [[1.0, 3.0], [5.0, 7.0]], graph):
        assert values == expected
        assert int(optimizer.iterations) == 1
    assert sim.names() == ["optimizer0/bucket0"]


@MODES
def test_backward_passes_start_over(ranks: Any, graph: bool) -> None:
    make = lambda: DistributedOptimizer(  # noqa: E731
        keras.optimizers.SGD(1.0), backward_passes_per_step=2
    )
    for values, optimizer in train(ranks(2), make, [[1.0] * 5, [3.0] * 5], graph):
        assert values == [0.0, -4.0, -4.0, -8.0, -8.0]
        assert int(optimizer.iterations) == 2


@MODES
def test_clips_what_all_ranks_made(ranks: Any, graph: bool) -> None:
    make = lambda: DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=1.0))  # noqa: E731
    for values, _ in train(ranks(2), make, [[5.0], [-1.0]], graph):
        assert values == [-1.0]


@MODES
def test_native_accumulation_reduces_once_per_update(ranks: Any, graph: bool) -> None:
    sim = ranks(2)
    make = lambda: DistributedOptimizer(  # noqa: E731
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    )
    for values, optimizer in train(sim, make, [[1.0, 3.0, 1.0], [5.0, 7.0, 1.0]], graph):
        assert values == [0.0, -4.0, -4.0]
        assert int(optimizer.iterations) == 1
    assert sim.names() == ["optimizer0/bucket0"]


@MODES
def test_native_accumulation_clips_and_decays_once(ranks: Any, graph: bool) -> None:
    make = lambda: DistributedOptimizer(  # noqa: E731
        keras.optimizers.SGD(
            1.0, gradient_accumulation_steps=2, weight_decay=0.1, global_clipnorm=1.0
        )
    )
    for values, _ in train(ranks(2), make, [[3.0, 5.0], [3.0, 5.0]], graph, start=1.0):
        assert values == pytest.approx([1.0, -0.1])


@MODES
@pytest.mark.parametrize("inside", [True, False], ids=["scale(dist)", "dist(scale)"])
def test_one_rank_alone_overflows(ranks: Any, graph: bool, inside: bool) -> None:
    def make() -> Any:
        if inside:
            return keras.optimizers.LossScaleOptimizer(
                DistributedOptimizer(keras.optimizers.SGD(1.0)), initial_scale=4.0
            )
        return DistributedOptimizer(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
        )

    inf = float("inf")
    for values, optimizer in train(ranks(2), make, [[4.0, 4.0, 4.0], [12.0, inf, 4.0]], graph):
        assert values == [-2.0, -2.0, -4.0]  # the last with scale 2
        assert float(optimizer.dynamic_scale.numpy()) == 2.0
        assert int(optimizer.iterations) == 2


@MODES
def test_loss_scale_with_native_accumulation(ranks: Any, graph: bool) -> None:
    def make() -> Any:
        sgd = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        scaled = keras.optimizers.LossScaleOptimizer(sgd, 4.0, dynamic_growth_steps=3)
        return DistributedOptimizer(scaled)

    scaled = [4.0, float("inf"), 8.0, 8.0, 8.0]
    for values, optimizer in train(ranks(2), make, [scaled, scaled], graph):
        assert values == [0.0, 0.0, -2.5, -2.5, -6.5]
        assert float(optimizer.dynamic_scale.numpy()) == 4.0
        assert int(optimizer.iterations) == 2


@MODES
@pytest.mark.parametrize("inside", [True, False], ids=["scale(dist)", "dist(scale)"])
def test_overflow_in_one_pass_drops_the_total_only(ranks: Any, graph: bool, inside: bool) -> None:
    def make() -> Any:
        scale = keras.optimizers.LossScaleOptimizer
        sgd = keras.optimizers.SGD(1.0)
        if inside:
            return scale(DistributedOptimizer(sgd, backward_passes_per_step=2), 4.0)
        return DistributedOptimizer(scale(sgd, 4.0), backward_passes_per_step=2)

    gradients = [[4.0, float("inf"), 2.0, 2.0], [4.0, 4.0, 2.0, 2.0]]
    for values, optimizer in train(ranks(2), make, gradients, graph):
        assert values == [0.0, 0.0, 0.0, -2.0]
        assert float(optimizer.dynamic_scale.numpy()) == 2.0


@MODES
def test_missing_on_one_rank_counts_as_zero(ranks: Any, graph: bool) -> None:
    def body(rank: int) -> tuple[float, float, float]:
        a, b, unused = variable(0.0), variable(0.0), variable(7.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        gradients = [tf.constant(2.0), tf.constant(4.0) if rank == 0 else None, None]

        def step() -> None:
            optimizer.apply(gradients, [a, b, unused])

        (tf.function(step) if graph else step)()
        return tuple(float(v.numpy()) for v in (a, b, unused))

    assert ranks(2).run(body) == [(-2.0, -2.0, 7.0)] * 2


def test_strict_names_variable_and_ranks(ranks: Any) -> None:
    def body(rank: int) -> None:
        v = variable(0.0, name="lonely")
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), strict=True)
        optimizer.apply([tf.constant(4.0) if rank == 0 else None], [v])

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"lonely.*ranks \[1\]"):
        ranks(2).run(body)


def test_a_gradient_may_come_and_go(ranks: Any) -> None:
    def body(rank: int) -> float:
        v, w = variable(0.0), variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        for step in range(4):
            mine = tf.constant(2.0) if (step + rank) % 2 or step == 0 else None
            optimizer.apply([mine, tf.constant(1.0)], [v, w])
        return float(v.numpy())

    assert ranks(2).run(body) == [-5.0, -5.0]


def test_different_shapes_are_an_error_that_shows_both(ranks: Any) -> None:
    def body(rank: int) -> None:
        a, b = variable(0.0), variable(np.zeros(3 + rank))
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        optimizer.apply([tf.constant(1.0), tf.zeros(3 + rank)], [a, b])

    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"rank 0 has \[#1: float32 \(3,\).*\(4,\)"
    ):
        ranks(2).run(body)


def test_different_options_are_an_error(ranks: Any) -> None:
    def body(rank: int) -> None:
        w = variable(0.0)
        kwargs = {"compression": Compression.fp16} if rank else {}
        DistributedOptimizer(keras.optimizers.SGD(1.0), **kwargs).apply([tf.constant(1.0)], [w])

    with pytest.raises(tf.errors.FailedPreconditionError, match="compression"):
        ranks(2).run(body)


@MODES
@pytest.mark.parametrize("as_dense", [False, True], ids=["sparse", "as dense"])
def test_sparse_gradients(ranks: Any, graph: bool, as_dense: bool) -> None:
    sim = ranks(2)

    def body(rank: int) -> Any:
        table = variable(np.zeros((4, 2)))
        rows = [[0, 1, 1], [1, 3]][rank]
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=as_dense)
        optimizer.build([table])

        def step() -> None:
            slices = tf.IndexedSlices(tf.ones((len(rows), 2)), tf.constant(rows), [4, 2])
            optimizer.apply([slices], [table])

        (tf.function(step) if graph else step)()
        return table.numpy()

    for table in sim.run(body):
        np.testing.assert_array_equal(table, -np.outer([0.5, 1.5, 0.0, 0.5], [1.0, 1.0]))
    if not as_dense:
        assert sorted(sim.calls) == [(r, "optimizer0/sparse/rows", 2) for r in (0, 1)]


def test_sparse_on_one_rank_dense_on_the_other(ranks: Any) -> None:
    def body(rank: int) -> Any:
        table = variable(np.zeros((2, 1)))
        slices = tf.IndexedSlices(tf.ones((1, 1)), tf.constant([1]), [2, 1])
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        optimizer.apply([tf.ones((2, 1)) if rank else slices], [table])
        return table.numpy().ravel().tolist()

    assert ranks(2).run(body) == [[-0.5, -1.0]] * 2


def test_sparse_missing_on_one_rank(ranks: Any) -> None:
    def body(rank: int) -> Any:
        table = variable(np.zeros((2, 1)))
        slices = tf.IndexedSlices(tf.ones((1, 1)), tf.constant([1]), [2, 1])
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
        optimizer.apply([None if rank else slices, tf.ones(())], [table, variable(0.0)])
        return table.numpy().ravel().tolist()

    assert ranks(2).run(body) == [[0.0, -0.5]] * 2


def test_predivide_and_compression(ranks: Any) -> None:
    def body(rank: int) -> Any:
        w = variable(0.0)
        optimizer = DistributedOptimizer(
            keras.optimizers.SGD(1.0),
            gradient_predivide_factor=4.0,
            compression=Compression.fp16,
        )
        optimizer.apply([tf.constant([1.0, 2.0][rank])], [w])
        return float(w.numpy()), w.dtype

    assert ranks(2).run(body) == [(-1.5, "float32")] * 2


def test_buckets_honour_the_limit_and_the_groups(ranks: Any) -> None:
    sim = ranks(2, bucket_bytes=8)

    def body(rank: int) -> None:
        variables = [variable(np.zeros(1)) for _ in range(5)]
        gradients = [tf.ones(1)] * 5
        DistributedOptimizer(keras.optimizers.SGD(1.0)).apply(gradients, variables)
        DistributedOptimizer(keras.optimizers.SGD(1.0), groups=2).apply(gradients, variables)
        DistributedOptimizer(
            keras.optimizers.SGD(1.0), groups=[[variables[0], variables[4]], [variables[2]]]
        ).apply(gradients, variables)

    sim.run(body)
    assert [(name, count) for rank, name, count in sim.calls if rank == 0] == [
        ("optimizer0/bucket0", 2),
        ("optimizer0/bucket1", 2),
        ("optimizer0/bucket2", 1),
        ("optimizer1/bucket0", 3),
        ("optimizer1/bucket1", 2),
        ("optimizer2/bucket0", 2),
        ("optimizer2/bucket1", 2),
        ("optimizer2/bucket2", 1),
    ]


@MODES
@pytest.mark.parametrize("op", ["average", "sum"])
def test_gradients_of_the_tape_are_not_reduced_again(ranks: Any, graph: bool, op: str) -> None:
    sim = ranks(2)
    kwargs = {"op": Sum} if op == "sum" else {}

    def body(rank: int) -> float:
        w = variable(0.0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), **kwargs)
        optimizer.build([w])

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = w * [2.0, 6.0][rank]
            tape = DistributedGradientTape(tape, **kwargs)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        (tf.function(step) if graph else step)()
        return float(w.numpy())

    assert sim.run(body) == [-8.0 if op == "sum" else -4.0] * 2
    assert sim.names() == ["tape0/bucket0"]


def test_two_optimizers_do_not_mix(ranks: Any) -> None:
    def body(rank: int) -> tuple[float, float]:
        a, b = variable(0.0, "same"), variable(0.0, "same")
        first = DistributedOptimizer(keras.optimizers.SGD(1.0))
        second = DistributedOptimizer(keras.optimizers.SGD(1.0))

        @tf.function
        def step() -> None:
            first.apply([tf.constant([1.0, 3.0][rank])], [a])
            second.apply([tf.constant([2.0, 4.0][rank])], [b])

        step()
        return float(a.numpy()), float(b.numpy())

    assert ranks(2).run(body) == [(-2.0, -3.0)] * 2


def test_saves_and_loads_as_stock(ranks: Any, tmp_path: Any) -> None:
    ranks(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    x = np.ones((4, 2), "float32")
    model.fit(x, x[:, :1], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert not optimizer_module.is_distributed(loaded.optimizer)
    assert int(loaded.optimizer.iterations) == 1
    for mine, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.parametrize(
    ("kwargs", "kind", "text"),
    [
        ({"backward_passes_per_step": 0}, ValueError, "Received: backward_passes_per_step=0"),
        ({"op": Min}, ValueError, "Received: op=Min"),
        ({"gradient_predivide_factor": 0.0}, ValueError, "gradient_predivide_factor=0.0"),
        ({"gradient_predivide_factor": 2.0, "op": Sum}, ValueError, "needs `op=tfring.Average`"),
        ({"groups": 0}, ValueError, "groups=0"),
        ({"groups": "all"}, TypeError, "groups='all'"),
        ({"groups": [1]}, TypeError, "element of type int"),
        ({"num_groups": -1}, ValueError, "num_groups=-1"),
        ({"num_groups": 1, "groups": 1}, ValueError, "not both"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bad_arguments(ranks: Any, kwargs: Any, kind: type[Exception], text: str) -> None:
    ranks(1)
    with pytest.raises(kind, match=text):
        DistributedOptimizer(keras.optimizers.SGD(), **kwargs)


def test_not_an_optimizer(ranks: Any) -> None:
    ranks(1)
    with pytest.raises(TypeError, match="'sgd' of type str"):
        DistributedOptimizer("sgd")


def test_as_many_gradients_as_variables(ranks: Any) -> None:
    ranks(1)
    optimizer = DistributedOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match="1 gradients for 2 variables"):
        optimizer.apply([tf.constant(1.0)], [variable(0.0), variable(0.0)])
