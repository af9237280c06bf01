"""One chain for optimizer and tape: compress, predivide, reduce by plan."""

from __future__ import annotations

import collections
import dataclasses
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _plan, _sparse, collectives, objects, world
from tfring.compression import Compression, Compressor, checked
from tfring.constants import NAMES, Average, Sum

# A tensor, slices, or None where there is no gradient.
Gradient = Any

_Known = tuple[_plan.Plan, list["weakref.ref[Any] | None"]]

_MARK = "_tfring_reduced"


@dataclasses.dataclass(frozen=True)
class Options:
    """How gradients are reduced; checked when made.

    Args:
        op: `tfring.Average` or `tfring.Sum`.
        compression: How gradients travel, a member of `tfring.Compression`.
        sparse_as_dense: Make `tf.IndexedSlices` dense before the reduction.
        gradient_predivide_factor: Divide by it before the sum over ranks and multiply
            by it after; needs `op=Average`.
        num_groups: Deprecated spelling of an integer `groups`.
        groups: Number of buckets, or lists of variables, each reduced by one collective.
        strict: A gradient that is None on some ranks only is an error.

    Raises:
        ValueError: When a value or a combination makes no sense.
        TypeError: When `groups` is no integer and no list of lists, or `compression` no compressor.
    """

    op: int = Average
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    num_groups: int = 0
    groups: Any = None
    strict: bool = False

    def __post_init__(self) -> None:
        checked(self.compression)
        if self.op not in (Average, Sum):
            raise ValueError(
                "`op` must be tfring.Average or tfring.Sum for gradients. "
                f"Received: op={NAMES.get(self.op, self.op)}"
            )
        if not self.gradient_predivide_factor > 0:
            raise ValueError(
                "`gradient_predivide_factor` must be a positive number. Received: "
                f"gradient_predivide_factor={self.gradient_predivide_factor}"
            )
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError(
                "`gradient_predivide_factor` needs `op=tfring.Average`. Received: "
                f"gradient_predivide_factor={self.gradient_predivide_factor}, op=Sum"
            )
        self._check_groups()

    def _check_groups(self) -> None:
        if self.num_groups:
            warnings.warn(
                "`num_groups` is deprecated; use `groups`.", DeprecationWarning, stacklevel=4
            )
            if self.groups is not None:
                raise ValueError(
                    "Give either `groups` or `num_groups`, not both. Received: "
                    f"groups={self.groups}, num_groups={self.num_groups}"
                )
        if self.num_groups < 0:
            raise ValueError(
                "`num_groups` must be a positive integer, or 0 for buckets by size. "
                f"Received: num_groups={self.num_groups}"
            )
        groups = self.groups
        if groups is None:
            return
        if isinstance(groups, bool) or not isinstance(groups, (int, list, tuple)):
            raise TypeError(
                "`groups` must be a positive integer or a list of lists of variables. "
                f"Received: groups={groups!r}"
            )
        if isinstance(groups, int) and groups <= 0:
            raise ValueError(f"`groups` must be a positive integer. Received: groups={groups}")
        if not isinstance(groups, int):
            self._check_lists(groups)

    def _check_lists(self, groups: Sequence[Any]) -> None:
        seen: set[int] = set()
        for group in groups:
            if not isinstance(group, (list, tuple)):
                raise TypeError(
                    "`groups` must be a list of lists of variables. "
                    f"Received an element of type {type(group).__name__}: {group!r}"
                )
            for variable in group:
                if key(variable) in seen:
                    raise ValueError(
                        f"`groups` must name each variable once. Received twice: {label(variable)}"
                    )
                seen.add(key(variable))

    @property
    def chunks(self) -> int:
        """Number of buckets that the user asked for, or 0."""
        return self.groups if isinstance(self.groups, int) else self.num_groups

    def group_of(self) -> dict[int, int]:
        """Maps `key(variable)` to the number of its group."""
        lists = self.groups if isinstance(self.groups, (list, tuple)) else ()
        return {key(variable): g for g, group in enumerate(lists) for variable in group}

    def lines(self) -> list[str]:
        """What must be alike on all ranks, as text."""
        return [
            f"op={NAMES[self.op]}",
            f"compression={self.compression.__name__}",
            f"gradient_predivide_factor={self.gradient_predivide_factor!r}",
            f"groups={self.chunks or None}",
            f"strict={self.strict}",
        ]


def key(variable: Any) -> int:
    """Identity of a variable, whether wrapped by Keras or not."""
    return id(_unwrapped(variable))


def _owner(source: Any) -> Any:
    """The variable behind a source; None for a tensor, which is new in every step."""
    variable = _unwrapped(source)
    return variable if isinstance(variable, tf.Variable) else None


def label(variable: Any) -> str:
    """How error messages call a variable."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "tensor"))


def _unwrapped(variable: Any) -> Any:
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def mark_reduced(gradient: Gradient) -> Gradient:
    """Marks a gradient as reduced already, and returns it.

    The mark is on the object: a tensor computed from it, or the same value inside
    another `tf.function`, does not carry it.
    """
    if gradient is not None:
        setattr(gradient, _MARK, True)
    return gradient


def is_reduced(gradient: Gradient) -> bool:
    """Whether `mark_reduced` was called on this very object."""
    return getattr(gradient, _MARK, False)


class Reducer:
    """Reduces lists of gradients over all ranks, by plans made on first use.

    Args:
        kind: "optimizer" or "tape"; together with a number, that of first use in this
            world, it names the collectives.
        options: How to reduce.
        densify: Plan every gradient as dense, whatever form it has now.
    """

    def __init__(self, kind: str, options: Options, *, densify: bool = False) -> None:
        self._kind = kind
        self._options = options
        self._densify = densify or options.sparse_as_dense
        self._groups = options.group_of()
        self._name = ""
        self._generation = -1
        self._count = 0  # plans made in this world
        self._plans: dict[tuple[Any, ...], list[_Known]] = collections.defaultdict(list)

    def plan_for(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        positions: Sequence[int],
    ) -> _plan.Plan:
        """Returns the plan for these gradients; agrees on one with all ranks if needed.

        A plan is kept as long as the gradients here fit into it. The exchange runs
        eagerly, also while a `tf.function` is traced.

        Raises:
            tf.errors.FailedPreconditionError: When ranks do not fit together.
            tf.errors.AbortedError: When a peer is lost.
        """
        world.require_usable()
        entries = [
            self._entry(gradient, variable, position)
            for gradient, variable, position in zip(gradients, variables, positions, strict=True)
        ]
        self._renew()
        owners = [_owner(variable) for variable in variables]
        signature = tuple((e.position, e.shape, e.group) for e in entries) + tuple(map(id, owners))
        for plan, references in self._plans[signature]:
            # By reference, not by id alone: whether a dead variable's id is used again
            # differs between ranks, and they must agree on what is new.
            alive = all(r is None or r() is o for r, o in zip(references, owners, strict=True))
            if alive and plan.covers(entries):
                return plan
        plan = self._make(entries)
        self._forget_dead()
        self._plans[signature].append(
            (plan, [None if o is None else weakref.ref(o) for o in owners])
        )
        return plan

    def fill(
        self, plan: _plan.Plan, gradients: Sequence[Gradient], variables: Sequence[Any]
    ) -> list[Gradient]:
        """Gives each gradient the form that the plan says, zeros where it is missing."""
        return [
            _fill(entry, gradient, variable)
            for entry, gradient, variable in zip(plan.entries, gradients, variables, strict=True)
        ]

    def reduce(self, plan: _plan.Plan, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Reduces gradients that `fill` has prepared; every rank must call it.

        Returns:
            The gradients in their order; those that were reduced before, and None,
            come back as they are.

        Raises:
            tf.errors.AbortedError: When a peer is lost.
        """
        result = list(gradients)
        if world.size() == 1:
            return result
        options = self._options
        op, prescale, postscale = self._scaling()
        for bucket in plan.buckets:
            reduced = collectives.grouped_allreduce(
                [result[i] for i in bucket.members],
                op=op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                compression=options.compression,
                name=bucket.name,
            )
            for i, tensor in zip(bucket.members, reduced, strict=True):
                result[i] = tensor
        for j, i in enumerate(plan.sparse):
            result[i] = self._reduce_sparse(result[i], f"{plan.name}/sparse{j}")
        return result

    def _reduce_sparse(self, slices: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
        op, prescale, postscale = self._scaling()
        return _sparse.reduce_sparse(
            slices,
            name=name,
            prescale=prescale,
            postscale=postscale / world.size() if op == Average else postscale,
            compression=self._options.compression,
        )

    def _scaling(self) -> tuple[int, float, float]:
        """The operation of the collective and the factors before and after it."""
        predivide = self._options.gradient_predivide_factor
        if predivide == 1.0:
            return self._options.op, 1.0, 1.0
        return Sum, 1.0 / predivide, predivide / world.size()

    def _entry(self, gradient: Gradient, variable: Any, position: int) -> _plan.Entry:
        kind = self._kind_of(gradient)
        source = variable if kind is _plan.Kind.ABSENT else gradient
        return _plan.Entry(
            label=label(variable),
            shape=tuple(tf.TensorShape(variable.shape).as_list()),
            dtype=tf.as_dtype(source.dtype).name,
            kind=kind,
            group=self._groups.get(key(variable)),
            position=position,
        )

    def _kind_of(self, gradient: Gradient) -> _plan.Kind:
        if gradient is None:
            return _plan.Kind.ABSENT
        if is_reduced(gradient):
            return _plan.Kind.REDUCED
        if isinstance(gradient, tf.IndexedSlices) and not self._densify:
            return _plan.Kind.SPARSE
        return _plan.Kind.DENSE

    def _renew(self) -> None:
        generation = world.generation()
        if generation != self._generation:
            self._generation = generation
            self._count = 0
            self._plans.clear()
            self._name = f"{self._kind}{_number(self._kind, generation)}"

    def _forget_dead(self) -> None:
        for signature, known in list(self._plans.items()):
            self._plans[signature] = [
                (plan, references)
                for plan, references in known
                if all(r is None or r() is not None for r in references)
            ]
            if not self._plans[signature]:
                del self._plans[signature]

    def _make(self, entries: Sequence[_plan.Entry]) -> _plan.Plan:
        name = f"{self._name}/plan{self._count}" if self._count else self._name
        self._count += 1
        bucket_bytes = world.settings().bucket_bytes
        agreed = tuple(entries)
        if world.size() > 1:
            with tf.init_scope():
                agreed = _plan.agree(
                    name,
                    entries,
                    [*self._options.lines(), f"bucket bytes={bucket_bytes}"],
                    exchange,
                    strict=self._options.strict,
                )
        return _plan.make_plan(name, agreed, bucket_bytes=bucket_bytes, chunks=self._options.chunks)


def exchange(item: Any, name: str) -> list[Any]:
    """Gathers one object per rank."""
    return list(objects.allgather_object(item, name=name))


_numbers: dict[str, tuple[int, int]] = {}  # kind -> (generation, next number)


def _number(kind: str, generation: int) -> int:
    of, number = _numbers.get(kind, (generation, 0))
    number = number if of == generation else 0
    _numbers[kind] = (generation, number + 1)
    return number


def _fill(entry: _plan.Entry, gradient: Gradient, variable: Any) -> Gradient:
    if gradient is None:
        return _zeros(entry, variable)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient) if entry.kind is _plan.Kind.DENSE else gradient
    return gradient if entry.kind is _plan.Kind.REDUCED else tf.convert_to_tensor(gradient)


def _zeros(entry: _plan.Entry, variable: Any) -> Gradient:
    if entry.kind is _plan.Kind.ABSENT:
        return None
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(entry.dtype)
    if entry.kind is _plan.Kind.SPARSE:
        return _sparse.empty_like(shape, dtype)
    if shape.is_fully_defined():
        return tf.zeros(shape, dtype)
    return tf.cast(tf.zeros_like(_unwrapped(variable)), dtype)
