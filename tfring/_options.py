"""What users say about the reduction of gradients, checked when they say it."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring import _staged, world
from tfring.compression import Compression, Compressor, checked
from tfring.constants import NAMES, Adasum, Average, Sum
from tfring.process_sets import ProcessSet, global_process_set

OPERATIONS = {Average: "Average", Sum: "Sum", Adasum: "Adasum"}


@dataclasses.dataclass(frozen=True)
class Options:
    """How gradients are reduced; checked when made.

    Args:
        op: `tfring.Average`, `Sum` or `Adasum`.
        compression: How gradients travel, a member of `tfring.Compression`.
        sparse_as_dense: Make `tf.IndexedSlices` dense before the reduction.
        gradient_predivide_factor: Divide by it before the sum over ranks and multiply
            by it after; needs `op=Average`.
        num_groups: Deprecated spelling of an integer `groups`.
        groups: Number of buckets, or lists of variables, each reduced by one collective.
        strict: A gradient that is None on some ranks only is an error.
        process_set: The ranks that reduce together.
        scale_local_gradients: Divide the gradients of local variables by the number of
            ranks.
        sample_weighted: Average over samples instead of over ranks; needs `op=Average`.
        reproducible: Sum so that the bits do not depend on the number of ranks.

    Raises:
        ValueError: When a value or a combination makes no sense.
        TypeError: When `groups` is no integer and no list of lists of variables, or
            `compression` no compressor, or `process_set` no process set.
    """

    op: int = Average
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    num_groups: int = 0
    groups: Any = None
    strict: bool = False
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    sample_weighted: bool = False
    reproducible: bool = False

    def __post_init__(self) -> None:
        checked(self.compression)
        if not isinstance(self.process_set, ProcessSet):
            raise TypeError(
                "`process_set` must be a tfring.ProcessSet. "
                f"Received: process_set={self.process_set!r}. Register it with "
                "tfring.add_process_set and pass what that returns."
            )
        if self.op not in OPERATIONS:
            raise ValueError(
                "`op` must be tfring.Average, tfring.Sum or tfring.Adasum for gradients. "
                f"Received: op={NAMES.get(self.op, repr(self.op))}"
            )
        self._check_flags()
        self._check_predivide()
        self._check_sample_weighted()
        self._check_groups()
        self._check_reproducible()
        _staged.tell(self.compression, self.op)
        if self.op == Adasum and self.is_ready():
            self.require_power_of_two()

    def _check_flags(self) -> None:
        for name in ("strict", "sample_weighted", "reproducible"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}")

    def _check_predivide(self) -> None:
        factor = self.gradient_predivide_factor
        if not (factor > 0 and math.isfinite(factor)):
            raise ValueError(
                "`gradient_predivide_factor` must be a positive number. Received: "
                f"gradient_predivide_factor={factor}"
            )
        if factor != 1.0 and self.op != Average:
            raise ValueError(
                "`gradient_predivide_factor` needs `op=tfring.Average`. Received: "
                f"gradient_predivide_factor={factor}, op={OPERATIONS[self.op]}"
            )

    def _check_sample_weighted(self) -> None:
        if self.sample_weighted and self.op != Average:
            raise ValueError(
                "`sample_weighted` needs `op=tfring.Average`: a sum needs no weights, and Adasum "
                "has none. Received: "
                f"sample_weighted={self.sample_weighted}, op={OPERATIONS[self.op]}"
            )

    def _check_reproducible(self) -> None:
        if not self.reproducible:
            return
        if self.op == Adasum:
            raise ValueError(
                "`reproducible=True` needs a sum of gradients, which Adasum is not. Received: "
                "op=Adasum. Use op=tfring.Average or tfring.Sum."
            )
        if self.sample_weighted:
            raise ValueError(
                "`reproducible=True` gives every micro-batch the same weight. Received: "
                "sample_weighted=True. Use one of the two, and batches of one size."
            )
        if self.compression is not Compression.none:
            raise ValueError(
                "`reproducible=True` sends gradients in a form of its own. Received: "
                f"compression={self.compression.__name__}. Use Compression.none."
            )

    def _check_groups(self) -> None:
        if self.num_groups:
            warnings.warn(
                "`num_groups` is deprecated; use `groups`.", DeprecationWarning, stacklevel=5
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
            _check_lists(groups)

    @property
    def chunks(self) -> int:
        """Number of buckets that the user asked for, or 0."""
        return self.groups if isinstance(self.groups, int) else self.num_groups

    @property
    def grouped(self) -> list[Any]:
        """The variables that are in a list of `groups`."""
        lists = self.groups if isinstance(self.groups, (list, tuple)) else ()
        return [variable for group in lists for variable in group]

    def group_of(self) -> dict[int, int]:
        """Maps `key(variable)` to the number of its group."""
        lists = self.groups if isinstance(self.groups, (list, tuple)) else ()
        return {key(variable): g for g, group in enumerate(lists) for variable in group}

    def check_known(self, variables: Sequence[Any], where: str) -> None:
        """Raises ValueError when a variable of `groups` is not among `variables`."""
        known = set(map(key, variables))
        for variable in self.grouped:
            if key(variable) not in known:
                raise ValueError(
                    f"`groups` must hold variables of {where} only; they are matched by "
                    f"identity. Received an unknown one: {label(variable)}"
                )

    def lines(self) -> list[str]:
        """What must be alike on all ranks, as text."""
        return [
            f"op={OPERATIONS[self.op]}",
            f"compression={self.compression.__name__}",
            f"gradient_predivide_factor={self.gradient_predivide_factor!r}",
            f"groups={self.chunks or None}",
            f"strict={self.strict}",
            f"sample_weighted={self.sample_weighted}",
            f"reproducible={self.reproducible}",
        ]

    def is_ready(self) -> bool:
        """Whether the number of ranks is known by now."""
        if self.process_set is global_process_set:
            return world.is_initialized()
        return self.process_set.size() is not None

    def size(self) -> int:
        """Number of ranks that reduce together.

        Raises:
            ValueError: When the process set is not registered.
        """
        if self.process_set is global_process_set:
            return world.size()
        size = self.process_set.size()
        if size is None:
            raise ValueError(
                "`process_set` must be registered: pass it to tfring.init(process_sets=...) or "
                f"tfring.add_process_set. Received: process_set={self.process_set}"
            )
        return size

    def takes_part(self) -> bool:
        """Whether this rank reduces anything with others.

        Raises:
            ValueError: When the process set is not registered.
        """
        if self.size() == 1:
            return False
        return self.process_set is global_process_set or bool(self.process_set.included())

    def ranks(self) -> list[int]:
        """The ranks that reduce together, in the order of what they gather."""
        if self.process_set is global_process_set or self.process_set.ranks is None:
            return list(range(world.size()))
        return list(self.process_set.ranks)

    def require_power_of_two(self) -> None:
        """Raises ValueError where Adasum cannot pair the ranks."""
        size = self.size()
        if size & (size - 1):
            raise ValueError(
                "`op=tfring.Adasum` needs a number of ranks that is a power of two, because it "
                f"combines them in pairs. Received: {size} ranks. Use op=tfring.Average."
            )


def key(variable: Any) -> int:
    """Identity of a variable, whether wrapped by Keras or not."""
    return id(unwrapped(variable))


def owner(source: Any) -> Any:
    """The variable behind a source; None for a tensor, which is new in every step."""
    variable = unwrapped(source)
    return variable if isinstance(variable, tf.Variable) else None


def is_overwritten(variable: Any) -> bool:
    """Whether Keras assigns a variable its gradient, as in float8 training."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def label(variable: Any) -> str:
    """How error messages call a variable."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "tensor"))


def unwrapped(variable: Any) -> Any:
    """The `tf.Variable` of a Keras variable; anything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def _check_lists(groups: Sequence[Any]) -> None:
    seen: set[int] = set()
    for group in groups:
        if not isinstance(group, (list, tuple)):
            raise TypeError(
                "`groups` must be a list of lists of variables. "
                f"Received an element of type {type(group).__name__}: {group!r}"
            )
        if not group:
            raise ValueError(
                "`groups` must not hold an empty list. Leave it out. "
                f"Received: groups={[[label(v) for v in g] for g in groups]}"
            )
        for variable in group:
            if owner(variable) is None and not tf.is_tensor(variable):
                raise TypeError(
                    "`groups` must be a list of lists of variables. Received a list with an "
                    f"element of type {type(variable).__name__}: {variable!r}"
                )
            if key(variable) in seen:
                raise ValueError(
                    f"`groups` must name each variable once. Received twice: {label(variable)}"
                )
            seen.add(key(variable))
