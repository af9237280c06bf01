"""Writes the StableHLO module that holds one collective as a custom call.

An example, an allreduce of a matrix whose number of rows is not known when it is traced:

    module attributes {jax.uses_shape_polymorphism = true} {
      func.func public @main(%0: tensor<?x4xf32>, %token: tensor<f32>) -> (...) {
        ... %dims holds the dimensions, found when XLA compiles
        %r:2 = stablehlo.custom_call @tfring_collective(%config, %0, %token, %dims, ...) {
          has_side_effect = true, api_version = 3 : i32,
          output_operand_aliases = [...]} : (...)
        return %r#0, %r#1

`has_side_effect` keeps XLA from folding, merging or dropping it. The aliases let it work in place.
The attribute of JAX makes TensorFlow's `XlaCallModule` work out shapes when it compiles; operands
that say what shape a result has go away then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

TARGET = "tfring_collective"
_TOKEN = "tensor<f32>"
_SIZE_DIGITS = 8
_LEAST_BYTES = 256  # kXlaLeastBytes: fetched from a GPU at once

_TYPES = {
    tf.float16: "f16",
    tf.bfloat16: "bf16",
    tf.float32: "f32",
    tf.float64: "f64",
    tf.int8: "i8",
    tf.int16: "i16",
    tf.int32: "i32",
    tf.int64: "i64",
    tf.uint8: "ui8",
    tf.uint16: "ui16",
    tf.bool: "i1",
}

Dims = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor as far as it is known when it is traced; None: a dimension that is not."""

    dtype: tf.DType
    dims: Dims


@dataclasses.dataclass(frozen=True)
class Result:
    """One result of a call.

    Args:
        tensor: What it is.
        source: Number of the operand that it has the shape of, but for the rows; None: the shape
            is known.
        times: Its rows are those of the operand times this.
        in_place: Whether it takes over the operand's memory.
    """

    tensor: Tensor
    source: int | None = None
    times: int = 1
    in_place: bool = False


def config(
    kind: int,
    tensors: Sequence[Tensor],
    name: str = "",
    *,
    process_set: int = 0,
    reduce_op: int = 0,
    root: int = 0,
    prescale_bits: int = 0,
    postscale_bits: int = 0,
    wire_dtype: int = 0,
    ranks: int = 0,
    place: int = 0,
) -> str:
    """Returns what the call is told; custom_ops/tensorflow/xla_call.h describes the form."""
    numbers = [kind, process_set, reduce_op, root, prescale_bits, postscale_bits, wire_dtype]
    numbers += [ranks, place, len(tensors)]
    for tensor in tensors:
        dims = [-1 if dim is None else dim for dim in tensor.dims]
        numbers += [tensor.dtype.as_datatype_enum, len(dims), *dims]
    line = " ".join(map(str, numbers)) + " " + name.encode().hex()
    return f"{len(line) + _SIZE_DIGITS + 1:0{_SIZE_DIGITS}} {line}"


def text(operands: Sequence[Tensor], results: Sequence[Result], line: str) -> str:
    """Returns the module; `line` is what `config` made. The last operand and result: the token."""
    names = [f"%a{i}" for i in range(len(operands))]
    types = [_type(tensor) for tensor in operands]
    returned = [*(_type(result.tensor) for result in results), _TOKEN]
    is_dynamic = any(None in tensor.dims for tensor in operands)
    lines, extra, attributes = _dimensions(operands, results) if is_dynamic else ([], [], [])
    attributes = [
        "has_side_effect = true",
        "api_version = 3 : i32",
        f"output_operand_aliases = [{', '.join(_aliases(results, len(operands)))}]",
        *attributes,
    ]
    told = f"{line}\0".encode().ljust(_LEAST_BYTES, b"\0")
    kind = f"tensor<{len(told)}xui8>"
    lines = [f'%config = stablehlo.constant dense<"0x{told.hex()}"> : {kind}', *lines]
    sent = ["%config", *names, "%token", *(name for name, _ in extra)]
    signature = [kind, *types, _TOKEN, *(of for _, of in extra)]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    arguments = f"{arguments}, %token: {_TOKEN}" if arguments else f"%token: {_TOKEN}"
    count = len(returned)
    given = [f"%r#{i}" for i in range(count)] if count > 1 else ["%r"]
    marked = " attributes {jax.uses_shape_polymorphism = true}" if is_dynamic else ""
    body = "\n".join(
        [
            *lines,
            f"%r{f':{count}' if count > 1 else ''} = stablehlo.custom_call @{TARGET}"
            f"({', '.join(sent)}) {{{', '.join(attributes)}}} : "
            f"({', '.join(signature)}) -> ({', '.join(returned)})",
            f"return {', '.join(given)} : {', '.join(returned)}",
        ]
    )
    return (
        f"module @tfring{marked} {{\n"
        f"func.func public @main({arguments}) -> ({', '.join(returned)}) {{\n{body}\n}}\n}}\n"
    )


def _type(tensor: Tensor) -> str:
    dims = "".join(f"{'?' if dim is None else dim}x" for dim in tensor.dims)
    return f"tensor<{dims}{_TYPES[tensor.dtype]}>"


def _aliases(results: Sequence[Result], token: int) -> list[str]:
    """In place: the results that say so, and the token."""
    pairs = [(i, result.source or 0) for i, result in enumerate(results) if result.in_place]
    pairs.append((len(results), token))  # behind the line, which is operand 0
    # A single result is no tuple.
    return [
        "#stablehlo.output_operand_alias<output_tuple_indices = "
        f"[{i if results else ''}], operand_index = {operand + 1}, operand_tuple_indices = []>"
        for i, operand in pairs
    ]


def _dimensions(
    operands: Sequence[Tensor], results: Sequence[Result]
) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """Returns lines, operands after the token, and attributes of a call with unknown dimensions."""
    lines, extra = [], []
    for i, tensor in enumerate(operands):
        for d in range(len(tensor.dims)):
            lines.append(
                f"%d{i}_{d} = stablehlo.get_dimension_size %a{i}, dim = {d} : "
                f"({_type(tensor)}) -> tensor<i32>"
            )
            lines.append(
                f"%e{i}_{d} = stablehlo.reshape %d{i}_{d} : (tensor<i32>) -> tensor<1xi32>"
            )
    every = [f"%e{i}_{d}" for i, tensor in enumerate(operands) for d in range(len(tensor.dims))]
    lines.append(_joined("%dims", every))
    extra.append(("%dims", f"tensor<{len(every)}xi32>"))
    for j, result in enumerate(results):
        lines += _shape_lines(j, result)
        extra.append((f"%shape{j}", f"tensor<{len(result.tensor.dims)}xi32>"))
    lines.append("%scalar = stablehlo.constant dense<> : tensor<0xi32>")
    extra.append(("%scalar", "tensor<0xi32>"))
    first = len(operands) + 3
    places = list(range(first, first + len(results) + 1))
    attribute = f"indices_of_shape_operands = dense<{places}> : tensor<{len(places)}xi64>"
    return lines, extra, [attribute]


def _shape_lines(j: int, result: Result) -> list[str]:
    """Lines that make the operand %shape{j}, the shape of result j."""
    dims = result.tensor.dims
    if result.source is None or not dims:
        values = f"{list(dims)}" if dims else ""
        return [f"%shape{j} = stablehlo.constant dense<{values}> : tensor<{len(dims)}xi32>"]
    parts = [f"%e{result.source}_{d}" for d in range(len(dims))]
    lines = []
    if result.times != 1:
        lines.append(f"%t{j} = stablehlo.constant dense<{result.times}> : tensor<1xi32>")
        lines.append(f"%m{j} = stablehlo.multiply {parts[0]}, %t{j} : tensor<1xi32>")
        parts[0] = f"%m{j}"
    return [*lines, _joined(f"%shape{j}", parts)]


def _joined(name: str, parts: Sequence[str]) -> str:
    types = ", ".join(["tensor<1xi32>"] * len(parts))
    return (
        f"{name} = stablehlo.concatenate {', '.join(parts)}, dim = 0 : ({types}) -> "
        f"tensor<{len(parts)}xi32>"
    )


def describe(tensor: Any) -> Tensor:
    """Returns what is known of a tensor.

    Raises:
        ValueError: not even its number of dimensions.
    """
    if tensor.shape.rank is None:
        raise ValueError(
            "`tensor` must have a known number of dimensions where XLA compiles a collective. "
            f"Received: {tensor}. Use tf.ensure_shape."
        )
    return Tensor(tensor.dtype, tuple(tensor.shape.as_list()))
