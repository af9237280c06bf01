"""The collectives as XLA gets them: functions with the face of the op library.

`_calls` takes them in place of TensorFlow's ops while a function is traced for
`jit_compile=True`. Each is one custom call, which blocks until its collective is done.

Order. XLA runs what does not depend on each other in any order, and so two ranks might wait for
each other in different calls. So every call takes a token and gives it back, and the token lives
in a resource variable of the compiled function: TensorFlow threads it through loops, branches,
nested functions and gradients as it does with any variable, and XLA sees one chain of data, in
program order. One token per compiled function, since XLA locks a variable while a program runs that
changes it: functions that run at the same time, on threads of the user's, must not wait for each
other. Within one `tf.function` that is not compiled, compiled functions with collectives run in
program order: all on a device touch one more resource, which no program changes, so that TensorFlow
orders them and XLA does not lock it. Both resources are on the device that the function is first
called for: XLA takes no others, and TensorFlow does not trace again for another device.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring import _calls, _gradients, _xla, _xla_module, process_sets, world
from tfring._checks import EagerTensor
from tfring._xla_module import Result, Tensor
from tfring.constants import Adasum, Average, Sum

_PROBE, _PROBE_FAILS, _CHECK, _FIRST_QUERY = 1000, 1001, 1002, 1100

# Attributes that TensorFlow lets Python objects carry along.
_TOKEN = "_tfring_token"
_ORDERED = "_tfring_ordered"
_LAST = "_tfring_last"
_KEPT = "_tfring_xla_context"

# What may be read but not written: an output in its place would cost a copy.
_NOT_OURS = ("Placeholder", "ReadVariableOp", "Const")

_numbers = itertools.count()


class _Op:
    """Looks to a gradient function like the op that was called."""

    def __init__(self, inputs: Any, outputs: Any, attributes: dict[str, Any]) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self._attributes = attributes

    def get_attr(self, name: str) -> Any:
        return self._attributes[name]


def tfring_allreduce(
    tensors: Sequence[Any], tensor_name: str, *, eager: bool = False, **attributes: Any
) -> list[Any]:
    """As the op `TfringAllreduce`."""
    del eager
    attributes = {"wire_dtype": 0, **attributes}
    results = functools.partial(_like, in_place=attributes["reduce_op"] in (Average, Sum, Adasum))
    gradient = _gradients._allreduce_gradient
    return _as_op(_calls.ALLREDUCE, tensors, tensor_name, attributes, results, gradient)


def tfring_broadcast(
    tensors: Sequence[Any], tensor_name: str, *, eager: bool = False, **attributes: Any
) -> list[Any]:
    """As the op `TfringBroadcast`."""
    del eager
    results = functools.partial(_like, in_place=True)
    gradient = _gradients._broadcast_gradient
    return _as_op(_calls.BROADCAST, tensors, tensor_name, attributes, results, gradient)


def tfring_allgather(
    tensors: Sequence[Any], tensor_name: str, process_set: int = 0, eager: bool = False
) -> list[Any]:
    """As the op `TfringAllgather`, for equal first dimensions; the last tensor holds them."""
    del eager
    size = len(process_sets.ranks_of(process_set))

    def results(inputs: Sequence[Any]) -> list[Result]:
        return [Result(_with_rows(x, size), i, size) for i, x in enumerate(inputs)]

    attributes = {"process_set": process_set}
    return _as_op(_calls.ALLGATHER, tensors, tensor_name, attributes, results, _allgather_gradient)


def tfring_reducescatter(
    tensors: Sequence[Any], tensor_name: str, *, eager: bool = False, **attributes: Any
) -> list[Any]:
    """As the op `TfringReducescatter`; the first dimension must be known when it is traced."""
    del eager

    def results(inputs: Sequence[Any]) -> list[Result]:
        return [Result(_own_part(x, attributes["process_set"])) for x in inputs]

    gradient = _gradients._reducescatter_gradient
    return _as_op(_calls.REDUCESCATTER, tensors, tensor_name, attributes, results, gradient)


def tfring_alltoall(
    tensors: Sequence[Any], splits: Any, tensor_name: str, process_set: int = 0, eager: bool = False
) -> tuple[list[Any], Any]:
    """As the op `TfringAlltoall`, for equal parts and equal first dimensions."""
    del eager
    size = len(process_sets.ranks_of(process_set))
    _check_even(tensors, splits, size)
    kind, attributes = _calls.ALLTOALL, {"process_set": process_set}
    results = functools.partial(_like, in_place=False)
    received = _as_op(kind, tensors, tensor_name, attributes, results, _alltoall_gradient)
    rows = [tf.fill([size], tf.shape(x, tf.int64)[0] // size) for x in tensors]
    return received, tf.stack(rows)


def tfring_barrier(tensor_name: str, process_set: int = 0, eager: bool = False) -> Any:
    """As the op `TfringBarrier`."""
    del eager
    _call(_calls.BARRIER, [], [], tensor_name, {"process_set": process_set})
    return getattr(tf.compat.v1.get_default_graph(), _LAST)


def tfring_join(tensor_name: str) -> Any:
    """Raises NotImplementedError: ranks that have joined cannot run a compiled program."""
    raise NotImplementedError(
        "`join` cannot be compiled by XLA. Call it outside of functions with jit_compile=True. "
        f"Received: a call inside one ({tensor_name})"
    )


def tfring_query(question: int, process_set: int = 0, name: str | None = None) -> Any:
    """As the op `TfringQuery`."""
    del name
    results = [Result(Tensor(tf.int32, ()))]
    return _call(_FIRST_QUERY + question, [], results, "", {"process_set": process_set})[0]


def probe(fails: bool) -> None:
    """Calls the target, without any other rank."""
    _emit(_PROBE_FAILS if fails else _PROBE, [], [], "", {})


def checked(values: Any, text: str) -> Any:
    """Hands on a float32 vector; the program fails where its last element is above 0.

    XLA compiles assertions to nothing.

    Raises:
        tf.errors.InvalidArgumentError: With `text`, when the compiled function runs.
    """
    results = [Result(_xla_module.describe(values), 0)]
    # It has no gradient.
    return tf.stop_gradient(_call(_CHECK, [values], results, text, {})[0])


def _call(
    kind: int,
    inputs: Sequence[Any],
    results: Sequence[Result],
    name: str,
    attributes: dict[str, Any],
) -> list[Any]:
    _xla.require()
    return _emit(kind, inputs, results, name, {**attributes, **_compiled_for(kind, attributes)})


def _compiled_for(kind: int, attributes: dict[str, Any]) -> dict[str, int]:
    """Says for which ranks results are, where their shapes depend on it."""
    if kind not in (_calls.ALLGATHER, _calls.REDUCESCATTER, _calls.ALLTOALL):
        return {}
    ranks, rank = process_sets.ranks_of(attributes["process_set"]), world.rank()
    # Who is no member is told so when it runs.
    return {"ranks": len(ranks), "place": ranks.index(rank)} if rank in ranks else {}


def _emit(
    kind: int,
    inputs: Sequence[Any],
    results: Sequence[Result],
    name: str,
    attributes: dict[str, Any],
) -> list[Any]:
    """Creates the custom call as the next link of the chain; returns its results."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    operands = [_xla_module.describe(x) for x in inputs]
    config = _xla_module.config(kind, operands, name, **attributes)
    graph, token = _chain()
    last = getattr(graph, _LAST, None)
    # TensorFlow orders reads and writes of a variable by itself, but not in gradients.
    with tf.control_dependencies([] if last is None else [last]):
        before = tf.raw_ops.ReadVariableOp(resource=token, dtype=tf.float32)
        before = tf.ensure_shape(before, [])
    *values, after = gen_xla_ops.xla_call_module(
        args=[*inputs, before],
        version=9,
        module=_xla_module.text(operands, results, config),
        Sout=[*(list(result.tensor.dims) for result in results), []],
        Tout=[*(result.tensor.dtype for result in results), tf.float32],
        platforms=["CPU"],
        # The same call is for all: the target is registered for each.
        disabled_checks=["platform"],
    )
    assigned = tf.raw_ops.AssignVariableOp(resource=token, value=after)
    setattr(graph, _LAST, assigned)
    with tf.control_dependencies([assigned]):
        # Whoever uses a result keeps the chain whole.
        return [tf.identity(value) for value in values]


def _chain() -> tuple[Any, Any]:
    """Returns the graph being made, and the token's variable."""
    context = _xla.context()
    graph = tf.compat.v1.get_default_graph()
    _refuse_condition(graph)
    token = getattr(context, _TOKEN, None)
    if token is None:
        token = _variable(_xla.device_of(context))
        setattr(context, _TOKEN, token)
    if not hasattr(graph, _ORDERED):
        # A resource that an op other than a read takes: to TensorFlow, written.
        order = tf.raw_ops.VarIsInitializedOp(resource=_captured(_order(token.device), graph))
        setattr(graph, _ORDERED, order)
        # Functions keep traces by the context's id, which must not be used again.
        setattr(graph, _KEPT, context)
    return graph, _captured(token, graph)


def _refuse_condition(graph: Any) -> None:
    """Raises NotImplementedError in the condition of a loop, which cannot give the token back."""
    while graph is not None:
        if type(graph).__name__ == "WhileCondFuncGraph":
            raise NotImplementedError(
                "XLA cannot compile a collective in the condition of a loop. Call it in the body, "
                "and let the condition look at a variable of the loop that holds its result; or "
                "use jit_compile=False."
            )
        graph = getattr(graph, "outer_graph", None)


def _captured(handle: Any, graph: Any) -> Any:
    """Returns an eager handle as a graph sees it.

    Branches and bodies get it from the graph around them: TensorFlow cannot make the gradient of a
    branch that has taken it from eager mode by itself.
    """
    if not hasattr(graph, "capture"):
        return handle
    is_branch_or_body = type(graph).__name__ != "FuncGraph"
    return graph.capture(_captured(handle, graph.outer_graph) if is_branch_or_body else handle)


def _variable(device: str | None) -> Any:
    """Returns the handle of a new variable, a scalar 0.

    No `tf.Variable`: a `tf.function` allows new ones in its first trace only.

    Args:
        device: where; None: as TensorFlow chooses.
    """
    with tf.init_scope(), tf.device(device):
        name = f"tfring_token_{next(_numbers)}"
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(0.0))
    return handle


@functools.cache
def _order(device: str) -> Any:
    return _variable(device)


def _as_op(
    kind: int,
    tensors: Sequence[Any],
    name: str,
    attributes: dict[str, Any],
    results: Callable[[Sequence[Any]], list[Result]],
    gradient: Callable[..., list[Any]],
) -> list[Any]:
    """Creates a call whose gradient is that of the op it stands for.

    Args:
        kind: Of the collective.
        tensors: What it takes.
        name: Of the collective.
        attributes: Of the op.
        results: Says what comes out, from the tensors.
        gradient: The op's.
    """
    context = _xla.context()

    @tf.custom_gradient
    def call(*inputs: Any) -> Any:
        made = _call(kind, inputs, results(inputs), name, attributes)
        op = _Op(inputs, made, {**attributes, "tensor_name": name})

        def gradients(*cotangents: Any) -> Any:
            with _xla.inside(context):
                return gradient(op, *cotangents)

        return made, gradients

    # What is eager is in no graph yet.
    return list(call(*(tf.identity(x) if isinstance(x, EagerTensor) else x for x in tensors)))


def _like(inputs: Sequence[Any], in_place: bool) -> list[Result]:
    """Results that are like the inputs."""
    return [
        Result(_xla_module.describe(x), i, in_place=in_place and x.op.type not in _NOT_OURS)
        for i, x in enumerate(inputs)
    ]


def _with_rows(tensor: Any, times: int) -> Tensor:
    dtype, dims = tensor.dtype, _xla_module.describe(tensor).dims
    rows = dims[0]
    return Tensor(dtype, (None if rows is None else rows * times, *dims[1:]))


def _own_part(tensor: Any, process_set: int) -> Tensor:
    dims = _xla_module.describe(tensor).dims
    if None in dims:
        raise ValueError(
            "`tensor` must have a known shape where XLA compiles a reducescatter. "
            f"Received: shape {tuple(tensor.shape)}. Use tf.ensure_shape, or an input_signature."
        )
    return Tensor(tensor.dtype, (_calls.own_rows(tensor, process_set), *dims[1:]))


def _check_even(tensors: Sequence[Any], splits: Any, size: int) -> None:
    given = tf.get_static_value(splits)
    if splits.shape.num_elements() == 0:
        return
    rows = [tensor.shape[0] for tensor in tensors]
    even = [[None if n is None else n // size] * size for n in rows]
    if given is None or given.tolist() != even or any(n % size for n in rows):
        raise NotImplementedError(
            "`splits` must be equal, and known when the function is traced, where XLA compiles an "
            f"alltoall of {rows[0]} rows over {size} ranks. Received: splits="
            f"{splits if given is None else given[0].tolist()}. Leave them out, or use "
            "jit_compile=False."
        )


def _allgather_gradient(op: _Op, *cotangents: Any) -> list[Any]:
    positions, tensors = _gradients._floating(cotangents[:-1])
    if not tensors:
        return [None] * len(cotangents)
    group = _gradients._group(op)
    place = process_sets.ranks_of(group).index(world.rank())
    averages = _calls.allreduce(tensors, Average, name=_gradients._name(op), process_set=group)
    results = []
    for i, average in zip(positions, averages, strict=True):
        rows = tf.shape(op.inputs[i])[0]
        own = average[place * rows : (place + 1) * rows]
        own.set_shape(op.inputs[i].shape)
        results.append(own)
    return _gradients._spread(results, positions, len(cotangents))


def _alltoall_gradient(op: _Op, *cotangents: Any) -> list[Any]:
    positions, tensors = _gradients._floating(cotangents)
    if not tensors:
        return [None] * len(cotangents)
    parts = tf.zeros([0], tf.int64)
    results, _ = _calls.alltoall(tensors, parts, _gradients._name(op), _gradients._group(op))
    return _gradients._spread(results, positions, len(cotangents))
