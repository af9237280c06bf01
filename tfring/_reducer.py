"""One chain for optimizer and tape: compress, predivide, reduce by plan."""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _plan, _reproducible, _slices, _sparse, _xla, collectives, objects, world
from tfring._options import Options, key, label, owner, unwrapped
from tfring.compression import Compression, Compressor, wire_of
from tfring.constants import Adasum
from tfring.process_sets import ProcessSet, global_process_set

# A tensor, slices, or None where there is no gradient.
Gradient = Any

_Known = tuple[_plan.Plan, list["weakref.ref[Any] | None"]]

_MARK = "_tfring_reduced"


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
    """Reduces lists of gradients over a set of ranks, by plans made on first use.

    On a rank outside of the set it changes nothing and exchanges nothing.

    Args:
        kind: "optimizer" or "tape"; together with a number, that of first use in this
            world and set, it names the collectives.
        options: How to reduce.
        densify: Plan every gradient as dense, whatever form it has now.
    """

    def __init__(self, kind: str, options: Options, *, densify: bool = False) -> None:
        self._kind = kind
        self._options = options
        self._densify = densify or options.sparse_as_dense or options.reproducible
        self._groups = options.group_of()
        self._name = ""
        self._generation = -1
        self._set: int | None = None  # handle of the process set when the plans were made
        self._count = 0  # plans made in this world
        self._plans: dict[tuple[Any, ...], list[_Known]] = collections.defaultdict(list)
        self._sums: dict[str, _sparse.SparseSum] = {}  # by name of the plan

    def plan_for(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        positions: Sequence[int],
        remark: str = "",
    ) -> _plan.Plan:
        """Returns the plan for these gradients; agrees on one with all ranks if needed.

        A plan is kept as long as the gradients here fit into it. The exchange runs
        eagerly, also while a `tf.function` is traced.

        Args:
            gradients: Tensors, slices or None.
            variables: What they are the gradients of.
            positions: Number of each variable, alike on all ranks.
            remark: What else must be alike on all ranks.

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
        owners = [owner(variable) for variable in variables]
        signature = tuple((e.position, e.shape, e.group) for e in entries) + tuple(map(id, owners))
        for plan, references in self._plans[signature]:
            # By reference, not by id alone: whether a dead variable's id is used again
            # differs between ranks, and they must agree on what is new.
            alive = all(r is None or r() is o for r, o in zip(references, owners, strict=True))
            if alive and plan.covers(entries):
                return plan
        plan = self._make(entries, remark)
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
        return self.reduce_with(plan, gradients, None)[0]

    def reduce_with(
        self, plan: _plan.Plan, gradients: Sequence[Gradient], numbers: Any
    ) -> tuple[list[Gradient], Any]:
        """As `reduce`; some numbers, or None, travel along, uncompressed.

        They are in the first bucket; where all gradients are sparse, there is none, and
        they are a collective of their own, as with a compression that narrows all of a bucket.

        Returns:
            The gradients, and the numbers, reduced.
        """
        result = list(gradients)
        if self._options.reproducible:
            return _reproducible.reduce(plan, result, self._options), numbers
        if not self._options.takes_part():
            return result, numbers
        # What it raises comes before anything is sent.
        sum_sparse = self._sparse_sum(plan) if plan.sparse else None
        rest = None if numbers is None else [numbers]
        for bucket in plan.buckets:
            tensors = [result[i] for i in bucket.members]
            if rest is not None and bucket is plan.buckets[0]:
                reduced, rest = self._together(tensors, rest, bucket.name)
            else:
                reduced = self._reduced(tensors, bucket.name, self._options.compression)
            for i, tensor in zip(bucket.members, reduced, strict=True):
                result[i] = tensor
        if rest is not None and not plan.buckets:
            rest = self._reduced(rest, f"{plan.name}/samples", Compression.none)
        if sum_sparse is not None:
            total = sum_sparse([result[i] for i in plan.sparse])
            for i, slices in zip(plan.sparse, total, strict=True):
                result[i] = slices
        return result, None if rest is None else rest[0]

    def _together(
        self, tensors: list[Any], rest: list[Any], name: str
    ) -> tuple[list[Any], list[Any]]:
        """One collective for what is compressed and what is not, unless it narrows all."""
        compression = self._options.compression
        if wire_of(compression, self._options.op):
            reduced = self._reduced(tensors, name, compression)
            return reduced, self._reduced(rest, f"{name}/samples", Compression.none)
        sent = [compression.compress(tensor) for tensor in tensors]
        reduced = self._reduced([*(t for t, _ in sent), *rest], name, Compression.none)
        pairs = zip(reduced, sent, strict=False)
        whole = [compression.decompress(tensor, context) for tensor, (_, context) in pairs]
        return whole, reduced[len(sent) :]

    def _reduced(self, tensors: list[Any], name: str, compression: type[Compressor]) -> list[Any]:
        prescale, postscale = self._scaling()
        return collectives.grouped_allreduce(
            tensors,
            op=self._options.op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            compression=compression,
            name=name,
            process_set=self._options.process_set,
        )

    def _sparse_sum(self, plan: _plan.Plan) -> _sparse.SparseSum:
        if self._options.op == Adasum:
            raise NotImplementedError(
                "`op=tfring.Adasum` needs dense gradients. Received a sparse one of "
                f"`{plan.entries[plan.sparse[0]].label}`. Use sparse_as_dense=True."
            )
        if plan.name not in self._sums:
            tables = [
                _sparse.Table(entry.shape, tf.as_dtype(entry.dtype))
                for entry in (plan.entries[i] for i in plan.sparse)
            ]
            self._sums[plan.name] = _sparse.SparseSum(
                f"{plan.name}/sparse", tables, self._options, self._scaling()
            )
        return self._sums[plan.name]

    def _scaling(self) -> tuple[float, float]:
        """The factors before and after the collective.

        The division by the number of ranks stays with the engine, which knows how many
        of them take part.
        """
        predivide = self._options.gradient_predivide_factor
        return 1.0 / predivide, predivide

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
        # How many rows there are is not known when XLA compiles.
        is_dense = self._densify or _xla.context() is not None
        if isinstance(gradient, tf.IndexedSlices) and not is_dense:
            return _plan.Kind.SPARSE
        return _plan.Kind.DENSE

    def _renew(self) -> None:
        generation, members = world.generation(), self._options.process_set
        if (generation, members.handle) == (self._generation, self._set):
            return
        self._generation, self._set = generation, members.handle
        self._count = 0
        self._plans.clear()
        self._sums.clear()
        self._name = f"{self._kind}{_number(self._kind, generation, members)}"

    def _forget_dead(self) -> None:
        for signature, known in list(self._plans.items()):
            self._plans[signature] = [
                (plan, references)
                for plan, references in known
                if all(r is None or r() is not None for r in references)
            ]
            if not self._plans[signature]:
                del self._plans[signature]
        names = {plan.name for known in self._plans.values() for plan, _ in known}
        self._sums = {name: total for name, total in self._sums.items() if name in names}

    def _make(self, entries: Sequence[_plan.Entry], remark: str) -> _plan.Plan:
        name = f"{self._name}/plan{self._count}" if self._count else self._name
        self._count += 1
        bucket_bytes, options = world.settings().bucket_bytes, self._options
        agreed = tuple(entries)
        if options.takes_part():
            with tf.init_scope():
                agreed = _plan.agree(
                    name,
                    entries,
                    [*options.lines(), f"bucket bytes={bucket_bytes}", remark],
                    functools.partial(exchange, process_set=options.process_set),
                    strict=options.strict,
                    ranks=options.ranks(),
                )
        return _plan.make_plan(name, agreed, bucket_bytes=bucket_bytes, chunks=options.chunks)


def exchange(item: Any, name: str, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gathers one object per rank of a set."""
    return list(objects.allgather_object(item, name=name, process_set=process_set))


# By set and kind: (generation, next number). Ranks outside of a set do not use it, and so
# must not count its reducers.
_numbers: weakref.WeakKeyDictionary[ProcessSet, dict[str, tuple[int, int]]] = (
    weakref.WeakKeyDictionary()
)


def _number(kind: str, generation: int, members: ProcessSet) -> int:
    numbers = _numbers.setdefault(members, {})
    of, number = numbers.get(kind, (generation, 0))
    number = number if of == generation else 0
    numbers[kind] = (generation, number + 1)
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
        return _slices.empty_like(shape, dtype)
    if shape.is_fully_defined():
        return tf.zeros(shape, dtype)
    return tf.cast(tf.zeros_like(unwrapped(variable)), dtype)
