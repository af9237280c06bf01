"""Compression of gradients while they travel."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.constants import Adasum

__all__ = ["Compression", "Compressor"]


class Compressor:
    """Turns a tensor into a smaller one before a collective, and back after it.

    Subclass it and pass the class wherever a `compression` argument is taken.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and what `decompress` needs to undo it."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Returns the received tensor as the caller expects it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor and None."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Returns the tensor."""
        return tensor


class _CastCompressor(Compressor):
    """Sends floating tensors that are wider than 16 bits in a 16-bit dtype.

    Allreduce does so itself: it rounds each input once, on its way to the other ranks, adds up
    in float32 and gives the result in the tensor's dtype, without a cast in TensorFlow. Between
    hosts, partial results are rounded to the 16-bit dtype, too. `compress` and `decompress` are
    for all else: Adasum, reducescatter, and the rows of `tf.IndexedSlices`.
    """

    wire: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor in the wire dtype, and its own dtype."""
        if tensor.dtype.is_floating and tensor.dtype.size > 2:
            return tf.cast(tensor, cls.wire), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Returns the tensor in its own dtype."""
        return tensor if context is None else tf.cast(tensor, context)


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16: 11 bits of precision, overflows beyond 65504."""

    wire = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16: 8 bits of precision, the range of float32."""

    wire = tf.bfloat16


class Compression:
    """The compressions to choose from.

    Example:
        >>> import tfring as hvd
        >>> hvd.init()
        >>> float(hvd.allreduce(0.5, compression=hvd.Compression.fp16))
        0.5
    """

    none: type[Compressor] = NoneCompressor
    fp16: type[Compressor] = FP16Compressor
    bf16: type[Compressor] = BF16Compressor


def wire_of(compression: type[Compressor], op: int) -> int:
    """Returns the dtype that allreduce lets wide floats travel in, as an enum; 0: their own.

    A class derived from one of `Compression` may do anything, so it is not asked.
    """
    if compression not in (FP16Compressor, BF16Compressor) or op == Adasum:
        return 0
    return int(compression.wire.as_datatype_enum)


def checked(compression: Any) -> type[Compressor]:
    """Returns the `compression` argument of a user, or raises TypeError."""
    methods = (getattr(compression, name, None) for name in ("compress", "decompress"))
    if not isinstance(compression, type) or not all(map(callable, methods)):
        instead = str(compression) if str(compression) in ("fp16", "bf16") else "none"
        raise TypeError(
            "`compression` must be a member of tfring.Compression (none, fp16 or bf16) or a class "
            f"like them. Received: compression={compression!r}. Write compression="
            f"tfring.Compression.{instead}."
        )
    return compression
