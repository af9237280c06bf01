"""Sums of gradients that do not depend on who computes which part: `reproducible=True`.

Floating-point addition is not associative, so one process that adds up four micro-batches, and four
ranks that reduce one each, get sums that differ in their last bits. Integer addition is
associative. Each gradient of one micro-batch is therefore turned into fixed point, all sums over
passes, ranks and hosts are sums of integers, and the total becomes floating point, and is divided,
once. (Demmel and Nguyen, "Parallel Reproducible Summation", doi:10.1109/TC.2014.2345391, and
Collange et al., doi:10.1016/j.parco.2015.09.001, have general methods for numbers of any size;
here there is one fixed window, as gradients allow.)

An element x is held in limbs of `bits` bits, int64 each, the most significant first:

    x = limb[0] * 2^(TOP - bits) + limb[1] * 2^(TOP - 2 bits) (+ limb[2] * 2^(TOP - 3 bits))

and what is below is cut off. There are three limbs for float64, else two. With `addends`
micro-batches in a global batch, `bits` is 62 - log2(addends), so that no sum overflows: for 4 of
them the window is 2^40 to 2^-80, for 1024 it is 2^40 to 2^-64. A float32 keeps all its bits down to
2^-56, or 2^-40.

Every step of the conversion is exact (powers of two, truncation, what truncation left), so no
rewriting of the graph, no fused multiply-add and no vector width can change a bit. An element that
is not finite, or not below 2^TOP, makes the whole gradient NaN on all ranks.

Cost, with two limbs: 16 bytes per element travel, and are kept between passes, where 4 do
otherwise. docs/training.md has measurements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _plan, collectives
from tfring._aggregation import Aggregation
from tfring._options import Options, is_overwritten, label
from tfring.constants import Average, Sum

TOP = 40

_WIDE = tf.float64
_MAX_ADDENDS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A gradient, or a sum of some, in fixed point.

    Args:
        limbs: int64, each of the gradient's shape.
        bad: int64 scalar, how many of the addends had an element outside of the window.
        bits: Of a limb.
        dtype: The gradient's.
        divisor: What the total is divided by, beside the number of ranks.
    """

    limbs: list[Any]
    bad: Any
    bits: int
    dtype: tf.DType
    divisor: int = 1


def limb_bits(addends: int) -> int:
    """Bits of a limb when up to `addends` gradients are added up.

    Raises:
        ValueError: When there are too many.
    """
    if addends > _MAX_ADDENDS:
        raise ValueError(
            f"`reproducible=True` adds up at most {_MAX_ADDENDS} gradients. Received: {addends}, "
            "the number of ranks times backward_passes_per_step"
        )
    return 62 - (addends - 1).bit_length()


def limb_count(dtype: tf.DType) -> int:
    """Number of limbs for a gradient's dtype."""
    return 3 if dtype == tf.float64 else 2


def encoded(gradient: Any, bits: int) -> Fixed:
    """Turns a dense floating gradient into fixed point."""
    # NaN compares false.
    inside = tf.abs(gradient) < tf.cast(2.0**TOP, gradient.dtype)
    bad = tf.cast(tf.logical_not(tf.reduce_all(inside)), tf.int64)
    rest = tf.cast(gradient, _WIDE) * tf.constant(2.0 ** (bits - TOP), _WIDE)
    limbs: list[Any] = []
    for i in range(limb_count(gradient.dtype)):
        if i:
            # Exact: the part of a number behind its point, times a power of two.
            rest = (rest - tf.cast(limbs[-1], _WIDE)) * tf.constant(2.0**bits, _WIDE)
        limbs.append(tf.cast(rest, tf.int64))
    return Fixed(limbs, bad, bits, gradient.dtype)


def decoded(fixed: Fixed, ranks: Any = 1) -> Any:
    """Turns a sum into floating point.

    Args:
        fixed: The sum.
        ranks: int64 scalar, what to divide by beside `fixed.divisor`.
    """
    small = tf.constant(2.0**-fixed.bits, _WIDE)
    total = tf.cast(fixed.limbs[-1], _WIDE)
    for limb in reversed(fixed.limbs[:-1]):
        total = total * small + tf.cast(limb, _WIDE)
    divisor = tf.cast(ranks, _WIDE) * tf.constant(fixed.divisor * 2.0 ** (fixed.bits - TOP), _WIDE)
    divisor = tf.where(fixed.bad > 0, tf.constant(float("nan"), _WIDE), divisor)
    # Not `/`: graphs may divide by a constant as they multiply by its reciprocal.
    return tf.cast(tf.math.divide_no_nan(total, divisor), fixed.dtype)


def plain(gradient: Any) -> Any:
    """Returns a gradient that is not reduced in floating point; others as they are."""
    return decoded(gradient) if isinstance(gradient, Fixed) else gradient


def reduce(plan: _plan.Plan, gradients: Sequence[Any], options: Options) -> list[Any]:
    """Reduces gradients by a plan, one collective per bucket.

    Args:
        plan: For dense gradients.
        gradients: Tensors, or sums in fixed point.
        options: How to reduce.

    Returns:
        Tensors, alike whatever the number of ranks for the same micro-batches.

    Raises:
        tf.errors.AbortedError: When a peer is lost.
    """
    result = list(gradients)
    for bucket in plan.buckets:
        members = [result[i] for i in bucket.members]
        if options.takes_part():
            members = _over_ranks(members, bucket.name, options)
        for i, member in zip(bucket.members, members, strict=True):
            result[i] = plain(member)
    return result


def _over_ranks(gradients: Sequence[Any], name: str, options: Options) -> list[Any]:
    bits = limb_bits(options.size())
    sums = [g if isinstance(g, Fixed) else encoded(g, bits) for g in gradients]
    # How many ranks took part, which a rank that has joined did not, travels along.
    one = tf.constant(1, tf.int64)
    flags = tf.stack([one, *(fixed.bad for fixed in sums)])
    *limbs, flags = collectives.grouped_allreduce(
        [*(limb for fixed in sums for limb in fixed.limbs), flags],
        op=Sum,
        name=name,
        process_set=options.process_set,
    )
    ranks = flags[0] if options.op == Average else one
    result = []
    for i, fixed in enumerate(sums):
        count = len(fixed.limbs)
        total = dataclasses.replace(fixed, limbs=limbs[:count], bad=flags[i + 1])
        result.append(decoded(total, ranks))
        limbs = limbs[count:]
    return result


class FixedAggregation(Aggregation):
    """Adds up in fixed point: limbs, int64 of the variable's shape, and how many were bad.

    Args:
        passes: Number of calls whose gradients make one total.
        average: Divide the total by `passes`.
        options: How totals are reduced then.
    """

    def __init__(self, passes: int, average: bool, options: Options) -> None:
        super().__init__(passes, average)
        self._options = options
        self._bits = 0

    def build(self, variables: Sequence[Any], positions: Sequence[int]) -> None:
        """Makes the accumulators that are not there yet, eagerly also in a trace."""
        bits = limb_bits(self._options.size() * self._passes)
        if bits != self._bits:  # first use, or a world of another size
            self._bits = bits
            self._totals.clear()
        for variable in variables:
            if is_overwritten(variable):
                raise NotImplementedError(
                    "`reproducible=True` with backward_passes_per_step cannot train what "
                    f"float8 layers overwrite with a gradient. Received: `{label(variable)}`"
                )
        super().build(variables, positions)

    def _zeros(self, position: int, variable: Any) -> list[Any]:
        count = limb_count(tf.as_dtype(variable.dtype))
        return [*[tf.zeros(variable.shape, tf.int64)] * count, tf.constant(0, tf.int64)]

    def _add(self, position: int, gradient: Any) -> None:
        fixed = encoded(gradient, self._bits)
        *limbs, bad = self._totals[position]
        # A float16 variable may get a float32 gradient, not one of float64.
        for total, limb in zip(limbs, fixed.limbs, strict=True):
            total.assign_add(limb)
        bad.assign_add(fixed.bad)

    def _take(self, dtype: tf.DType, position: int) -> Any:
        *limbs, bad = self._taken(position)
        return Fixed(limbs, bad, self._bits, dtype, self._passes if self._average else 1)
