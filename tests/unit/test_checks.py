"""Bad input is refused in Python, before anything is sent."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

pytestmark = pytest.mark.usefixtures("world")

COLLECTIVES = {
    "allreduce": lambda tensor: hvd.allreduce(tensor, op=hvd.Max),
    "grouped_allreduce": lambda tensor: hvd.grouped_allreduce([1.0, tensor], op=hvd.Max),
    "allgather": hvd.allgather,
    "broadcast": lambda tensor: hvd.broadcast(tensor, 0),
}
REFUSED = {
    "ragged": (lambda: tf.ragged.constant([[1], [2, 3]]), "must be a dense tensor.*RaggedTensor"),
    "sparse": (lambda: tf.sparse.eye(2), "must be a dense tensor.*SparseTensor"),
    "text": (lambda: tf.constant(["a"]), "must have one of the dtypes.*dtype=string"),
    "complex64": (lambda: tf.zeros([2], tf.complex64), "dtype=complex64"),
    "complex128": (lambda: np.zeros(2, np.complex128), "dtype=complex128"),
    "uint32": (lambda: tf.zeros([2], tf.uint32), "dtype=uint32"),
    "qint8": (lambda: tf.zeros([2], tf.qint8), "dtype=qint8"),
}


def nothing_was_sent(before: hvd.Stats) -> bool:
    return hvd.stats().collectives == before.collectives


@pytest.mark.parametrize("collective", COLLECTIVES.values(), ids=COLLECTIVES.keys())
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_unsuitable_tensor(collective, make, message: str) -> None:
    before = hvd.stats()
    with pytest.raises(TypeError, match=message):
        collective(make())
    assert nothing_was_sent(before)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_bool_cannot_be_summed(op: int) -> None:
    with pytest.raises(ValueError, match="must be Min .*, Max .* or Product for a bool tensor"):
        hvd.allreduce(tf.constant(True), op=op)


@pytest.mark.parametrize("op", [6, -1, "Sum"])
def test_unknown_op(op: object) -> None:
    with pytest.raises(ValueError, match=f"`op` must be one of .*Received: op={op!r}"):
        hvd.allreduce(1.0, op=op)


def test_average_and_op_together() -> None:
    with pytest.raises(ValueError, match="give only one.*average=True, op=1"):
        hvd.allreduce(1.0, average=True, op=hvd.Sum)


@pytest.mark.parametrize("name", ["", 3, b"x"])
@pytest.mark.parametrize(
    "collective",
    [
        lambda name: hvd.allreduce(1.0, name=name),
        lambda name: hvd.allgather([1.0], name=name),
        lambda name: hvd.broadcast(1.0, 0, name=name),
        lambda name: hvd.barrier(name=name),
        lambda name: hvd.broadcast_object(1, name=name),
        lambda name: hvd.allgather_object(1, name=name),
    ],
)
def test_bad_name(collective, name: object) -> None:
    with pytest.raises(ValueError, match="`name` must be a non-empty text or None"):
        collective(name)


@pytest.mark.parametrize("argument", ["prescale_factor", "postscale_factor"])
def test_factor_must_be_finite(argument: str) -> None:
    with pytest.raises(ValueError, match=f"`{argument}` must be a finite number.*=inf"):
        hvd.allreduce(1.0, **{argument: float("inf")})


@pytest.mark.parametrize(("value", "kind"), [("x", ValueError), (None, TypeError)])
def test_factor_must_be_a_number(value: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"`prescale_factor` must be a finite number.*={value!r}"):
        hvd.allreduce(1.0, prescale_factor=value)


def test_tensor_of_unknown_shape_is_named() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), [0])
    with pytest.raises(TypeError, match="must be a dense tensor.*shape=unknown dtype=float32"):
        hvd.broadcast(slices, 0)


@pytest.mark.parametrize("root_rank", [-1, 1, 0.5, True])
@pytest.mark.parametrize(
    "collective",
    [
        lambda root: hvd.broadcast(1.0, root),
        lambda root: hvd.broadcast_object(1, root),
        lambda root: hvd.broadcast_variables([tf.Variable(1.0)], root),
        lambda root: hvd.broadcast_([tf.Variable(1.0)], root),
    ],
)
def test_root_must_be_a_rank(collective, root_rank: object) -> None:
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"`root_rank` must be a rank .*={root_rank!r}"
    ):
        collective(root_rank)


def test_group_must_be_a_list() -> None:
    with pytest.raises(TypeError, match="`tensors` must be a list or tuple"):
        hvd.grouped_allreduce(tf.ones([2]))


def test_scalar_cannot_be_gathered() -> None:
    before = hvd.stats()
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one dimension"):
        hvd.allgather(1.0)
    assert nothing_was_sent(before)


def test_scalar_cannot_be_gathered_in_a_graph() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one dimension"):
        tf.function(hvd.allgather)(tf.constant(1.0))


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_slices_can_only_be_added(op: int) -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
    before = hvd.stats()
    with pytest.raises(NotImplementedError, match="must be Average or Sum for tf.IndexedSlices"):
        hvd.grouped_allreduce([1.0, slices], op=op)
    assert nothing_was_sent(before)


@pytest.mark.parametrize("function", [hvd.broadcast_object, hvd.allgather_object])
def test_objects_need_eager_mode(function) -> None:
    with pytest.raises(RuntimeError, match=f"`{function.__name__}` exchanges Python objects"):
        tf.function(lambda: function(1), autograph=False)()
