"""Optimizers of tf.compat.v1 between real ranks: sessions train as one process does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

v1 = tf.compat.v1

MEAN_RANK = (hvd.size() - 1) / 2
ROWS = 4  # of each rank and step
STEPS = 6

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
}
KINDS = pytest.mark.parametrize("resource", [True, False], ids=["resource", "ref"])


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def initialize(session: v1.Session) -> None:
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])


def sgd(rate: float = 1.0, **arguments: Any) -> Any:
    return hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(rate), **arguments)


def variable(value: Any, name: str = "w") -> Any:
    return v1.get_variable(name, initializer=np.asarray(value, np.float32))


def after(train: Any, fetches: Any, steps: int = 1) -> Any:
    with v1.Session() as session:
        initialize(session)
        for _ in range(steps):
            session.run(train)
        return session.run(fetches)


def regression(optimizer: Any, resource: bool, feeds: Sequence[tuple[Any, Any]]) -> Any:
    """Trains a linear model in a graph of its own; returns its weights and the global step."""
    with tf.Graph().as_default(), v1.variable_scope("model", use_resource=resource):
        x, y = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.float32, [None, 1])
        w, b = variable(np.full((3, 1), 0.5)), variable(np.zeros(1), "b")
        variable(np.zeros(2), "unused")
        loss = tf.reduce_mean((x @ w + b - y) ** 2)
        step = v1.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=step)
        with v1.Session() as session:
            initialize(session)
            for rows, targets in feeds:
                session.run(train, {x: rows, y: targets})
            return session.run([w, b, step])


def data(size: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    x = random.normal(size=(STEPS, ROWS * size, 3)).astype(np.float32)
    return x, x @ np.float32([[1], [-2], [3]]) + 0.5


@KINDS
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_same_as_one_process(rank: int, size: int, name: str, passes: int, resource: bool) -> None:
    x, y = data(size)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    distributed = hvd.DistributedOptimizer(
        OPTIMIZERS[name](), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    w, b, step = regression(distributed, resource, list(zip(x[:, mine], y[:, mine], strict=True)))
    whole = [part.reshape(STEPS // passes, passes * ROWS * size, -1) for part in (x, y)]
    expected = regression(OPTIMIZERS[name](), resource, list(zip(*whole, strict=True)))
    np.testing.assert_allclose(w, expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(b, expected[1], rtol=1e-4, atol=1e-6)
    assert (step, expected[2]) == (STEPS, STEPS // passes)


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [
        ({}, MEAN_RANK),
        ({"op": hvd.Sum}, MEAN_RANK * hvd.size()),
        ({"gradient_predivide_factor": 2.0}, MEAN_RANK),
        ({"compression": hvd.Compression.fp16}, MEAN_RANK),
        ({"compression": hvd.Compression.bf16}, MEAN_RANK),
    ],
    ids=["average", "sum", "predivide", "fp16", "bf16"],
)
def test_gradients_are_reduced(rank: int, arguments: dict[str, Any], factor: float) -> None:
    w = variable([1.0, 2.0])
    train = sgd(**arguments).minimize(tf.reduce_sum(w * float(rank)), var_list=[w])
    np.testing.assert_array_equal(after(train, w), np.float32([1, 2]) - factor)


def test_gradients_between_compute_and_apply(rank: int) -> None:
    """Clipping sees the reduced gradient."""
    w = variable(0.0)
    optimizer = sgd()
    pairs = optimizer.compute_gradients(w * float(rank + 1))
    clipped = [(tf.clip_by_value(g, 0.0, 1.0), v) for g, v in pairs]
    with v1.Session() as session:
        train = optimizer.apply_gradients(clipped)
        initialize(session)
        assert session.run(pairs[0][0]) == MEAN_RANK + 1
        session.run(train)
        assert session.run(w) == -1.0


def test_a_gradient_of_one_rank_only(rank: int, size: int) -> None:
    w, u, nowhere = variable(0.0), variable(0.0, "u"), variable(1.0, "nowhere")
    loss = w * 1.0 + (u * 2.0 if rank == size - 1 else 0.0)
    optimizer = sgd()
    pairs = optimizer.compute_gradients(loss, var_list=[w, u, nowhere])
    assert pairs[2][0] is None
    train = optimizer.apply_gradients(pairs)
    assert after(train, [w, u, nowhere]) == [-1.0, np.float32(-2.0 / size), 1.0]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("as_dense", [False, True], ids=["sparse", "dense"])
def test_sparse_gradients(rank: int, size: int, passes: int, as_dense: bool) -> None:
    """Rank 0 looks up rows 0, 1, 1 of the table, the others rows 1 and 3."""
    table = variable(np.zeros((4, 2)))
    rows = tf.gather(table, [0, 1, 1] if rank == 0 else [1, 3])
    optimizer = sgd(sparse_as_dense=as_dense, backward_passes_per_step=passes)
    pairs = optimizer.compute_gradients(tf.reduce_sum(rows))
    is_sparse = passes == 1 and not as_dense
    assert isinstance(pairs[0][0], tf.IndexedSlices) == is_sparse or not is_sparse
    result = after(optimizer.apply_gradients(pairs), table, steps=passes)
    counts = np.float32([1, 2 + size - 1, 0, size - 1])
    np.testing.assert_allclose(result, -passes / size * np.stack([counts, counts], 1), rtol=1e-6)


@pytest.mark.parametrize("how", ["number", "lists"])
def test_groups(rank: int, how: str) -> None:
    variables = [variable(0.0, f"v{i}") for i in range(5)]
    groups = 2 if how == "number" else [variables[:2], variables[3:]]
    optimizer = sgd(groups=groups)
    loss = tf.add_n([(i + 1.0) * rank * v for i, v in enumerate(variables)])
    train = optimizer.minimize(loss)
    with v1.Session() as session:
        initialize(session)
        before = hvd.stats().collectives
        session.run(train)
        if hvd.size() > 1:
            assert hvd.stats().collectives - before == (2 if how == "number" else 3)
        assert session.run(variables) == [-MEAN_RANK * (i + 1) for i in range(5)]


@pytest.mark.many_ranks
def test_process_set(rank: int, size: int) -> None:
    """Ranks outside apply their own gradients."""
    ranks = [1] if size == 2 else [0, size - 1]
    members = hvd.add_process_set(ranks)
    w = variable(0.0)
    train = sgd(process_set=members).minimize(w * float(rank))
    assert after(train, w) == -(np.mean(ranks) if rank in ranks else rank)
    hvd.remove_process_set(members)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_local_variable(rank: int, size: int, scale: bool, passes: int) -> None:
    shared, own = variable(0.0), variable(0.0, "own")
    optimizer = sgd(scale_local_gradients=scale, backward_passes_per_step=passes)
    optimizer.register_local_var(own)
    train = optimizer.minimize((shared + own) * float(rank))
    results = after(train, [shared, own], steps=passes)
    assert results[0] == -MEAN_RANK * passes
    assert results[1] == pytest.approx(-passes * rank / (size if scale else 1))


@pytest.mark.parametrize("average", [False, True])
def test_passes_without_a_global_step(rank: int, average: bool) -> None:
    w, scale = variable(0.0), v1.placeholder(tf.float32, [])
    optimizer = sgd(backward_passes_per_step=3, average_aggregated_gradients=average)
    train = optimizer.minimize(w * scale * float(rank + 1))
    seen = []
    with v1.Session() as session:
        initialize(session)
        for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0):
            session.run(train, {scale: value})
            seen.append(float(session.run(w)))
    first, second = (v * (MEAN_RANK + 1) / (3 if average else 1) for v in (-6.0, -21.0))
    assert seen == pytest.approx([0, 0, first, first, first, second, second], rel=1e-6)


def test_one_reduction_per_update(size: int) -> None:
    w = variable([1.0, 2.0])
    train = sgd(backward_passes_per_step=4).minimize(tf.reduce_sum(w))
    with v1.Session() as session:
        initialize(session)
        before = hvd.stats().collectives
        for _ in range(8):
            session.run(train)
        assert hvd.stats().collectives - before == (2 if size > 1 else 0)


def test_two_losses_of_one_optimizer_stand_alone(rank: int) -> None:
    """As in a GAN: a session may run either update, and feed only that one."""
    w, x, y = variable(0.0), v1.placeholder(tf.float32, []), v1.placeholder(tf.float32, [])
    optimizer = sgd()
    one, other = optimizer.minimize(w * x), optimizer.minimize(w * y)
    with v1.Session() as session:
        initialize(session)
        session.run(other, {y: float(rank)})
        session.run(one, {x: 2.0 * rank})
        assert session.run(w) == -3 * MEAN_RANK


def test_monitored_session(rank: int) -> None:
    w = v1.get_variable("w", initializer=float(rank))
    step = v1.train.get_or_create_global_step()
    train = sgd(0.5, backward_passes_per_step=2).minimize(w * float(rank), global_step=step)
    hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=4)]
    values = []
    with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        while not session.should_stop():
            values.append(session.run([train, w, step])[1:])
    assert [int(s) for _, s in values][-1] in (3, 4)
    assert len(values) == 4


def test_the_rest_is_the_inner_optimizers(rank: int) -> None:
    inner = v1.train.MomentumOptimizer(0.1, 0.9)
    optimizer = hvd.DistributedOptimizer(inner)
    w = variable(1.0)
    optimizer.minimize(w * float(rank))
    assert isinstance(optimizer, v1.train.Optimizer)
    assert optimizer.get_slot_names() == ["momentum"]
    assert optimizer.get_slot(w, "momentum") is inner.get_slot(w, "momentum")
    assert optimizer.variables() == inner.variables()
    assert optimizer.get_name() == "DistributedMomentumOptimizer"
    assert optimizer._momentum == 0.9
    assert not hasattr(optimizer, "no_such_name")


def test_gradients_of_another_graph_are_no_pass(rank: int) -> None:
    w = variable(0.0)
    with pytest.raises(ValueError, match="compute_gradients"):
        sgd(backward_passes_per_step=2).apply_gradients([(tf.constant(1.0), w)])


def test_distributed_twice() -> None:
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(sgd())


@pytest.mark.many_ranks
def test_ranks_with_different_graphs_are_told(rank: int) -> None:
    w = variable(np.zeros(2 + rank))
    with pytest.raises(tf.errors.FailedPreconditionError, match="differs between ranks"):
        sgd().minimize(tf.reduce_sum(w))
    assert hvd.allgather_object(rank) == list(range(hvd.size()))


def adasum(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The tree of the paper, arXiv:2006.02924, in float64."""
    parts = [np.asarray(part, np.float64) for part in parts]
    while len(parts) > 1:
        parts = [_pair(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot = np.sum(a * b)
    aa, bb = np.sum(a * a), np.sum(b * b)
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b


POWER_OF_TWO = pytest.mark.skipif(
    hvd.size() & (hvd.size() - 1) != 0, reason="needs a power of two of ranks"
)


@POWER_OF_TWO
@KINDS
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("passes", [1, 2])
def test_adasum_of_the_changes(
    rank: int, size: int, name: str, passes: int, resource: bool
) -> None:
    """Two rounds; in each, every rank makes its own steps, whose changes are combined."""
    slopes = np.random.default_rng(3).normal(size=(size, 3)).astype(np.float32)
    start = np.float32([1.0, 2.0, 3.0])

    def train(optimizer: Any, slope: np.ndarray, steps: int) -> list[np.ndarray]:
        with tf.Graph().as_default(), v1.variable_scope("model", use_resource=resource):
            w = variable(start)
            step = v1.train.get_or_create_global_step()
            update = optimizer.minimize(tf.reduce_sum(w * slope), global_step=step)
            with v1.Session() as session:
                initialize(session)
                seen = []
                for i in range(steps):
                    session.run(update)
                    seen.append(session.run(w))
                    assert session.run(step) == i + 1
                return seen

    combined = hvd.DistributedOptimizer(
        OPTIMIZERS[name](), op=hvd.Adasum, backward_passes_per_step=passes
    )
    result = train(combined, slopes[rank], 2 * passes)
    # Constant gradients: the local changes do not depend on the weights.
    alone = [[start, *train(OPTIMIZERS[name](), slope, 2 * passes)] for slope in slopes]
    expected = start.astype(np.float64)
    for i in (0, 1):
        changes = [seen[(i + 1) * passes] - seen[i * passes] for seen in alone]
        expected = expected + adasum(changes)
        np.testing.assert_allclose(result[(i + 1) * passes - 1], expected, rtol=1e-5)


@POWER_OF_TWO
@pytest.mark.many_ranks
def test_adasum_leaves_a_local_variable_alone(rank: int, size: int) -> None:
    shared, own = variable([1.0, 0.0]), variable(0.0, "own")
    optimizer = sgd(op=hvd.Adasum, scale_local_gradients=False)
    optimizer.register_local_var(own)
    train = optimizer.minimize(tf.reduce_sum(shared) + own * float(rank))
    shared_after, own_after = after(train, [shared, own])
    # Equal changes: their Adasum is the change itself.
    np.testing.assert_allclose(shared_after, [0, -1])
    assert own_after == -rank


@POWER_OF_TWO
def test_adasum_has_no_average_over_passes() -> None:
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        sgd(op=hvd.Adasum, backward_passes_per_step=2, average_aggregated_gradients=True)


def test_passes_that_differ_are_an_error_on_all_ranks() -> None:
    optimizer = sgd(backward_passes_per_step=1 + hvd.rank())
    with pytest.raises(tf.errors.FailedPreconditionError, match="backward_passes_per_step=2"):
        optimizer.compute_gradients(variable(1.0) ** 2)
