"""Several ranks as threads of one process: right numbers without an engine."""

from __future__ import annotations

import collections
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring import _reducer, collectives, objects, tape, world
from tfring.constants import Average

TIMEOUT_S = 60.0


class _Here(threading.local):
    """What each thread has of its own; the main thread is rank 0."""

    def __init__(self) -> None:
        self.rank = 0
        self.numbers: dict[str, int] = collections.defaultdict(int)


class PerRank(dict[Any, Any]):
    """Lets each rank have its own process-wide dictionary."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def __contains__(self, key: object) -> bool:
        return super().__contains__((self._simulation.rank, key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__((self._simulation.rank, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__((self._simulation.rank, key), value)


class Simulation:
    """Runs a function once per rank and stands in for the collectives it calls."""

    def __init__(self, size: int, bucket_bytes: int) -> None:
        self.size = size
        self.bucket_bytes = bucket_bytes
        self.calls: list[tuple[int, str, int]] = []  # (rank, name, tensors or rows)
        self._here = _Here()
        self._meeting = threading.Condition()
        self._slots: dict[tuple[str, int], dict[int, Any]] = collections.defaultdict(dict)
        self._uses: dict[tuple[str, int], int] = collections.defaultdict(int)
        self._failed = False

    @property
    def rank(self) -> int:
        return self._here.rank

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self.size
        errors: list[BaseException | None] = [None] * self.size

        def body(rank: int) -> None:
            self._here.rank = rank
            try:
                results[rank] = function(rank)
            except BaseException as error:
                errors[rank] = error
                with self._meeting:
                    self._failed = True
                    self._meeting.notify_all()

        threads = [threading.Thread(target=body, args=(r,), daemon=True) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), f"a rank hangs; calls: {self.calls}"
        first = [error for error in errors if error is not None]
        if first:
            own = [e for e in first if not isinstance(e, threading.BrokenBarrierError)]
            raise (own or first)[0]
        return results

    def number(self, kind: str, generation: int) -> int:
        number = self._here.numbers[kind]
        self._here.numbers[kind] += 1
        return number

    def meet(self, rank: int, name: str, item: Any) -> list[Any]:
        """Returns the items of all ranks once all have called it with `name`."""
        with self._meeting:
            use = self._uses[name, rank]
            self._uses[name, rank] += 1
            slot = self._slots[name, use]
            slot[rank] = item
            self._meeting.notify_all()
            complete = self._meeting.wait_for(
                lambda: len(slot) == self.size or self._failed, TIMEOUT_S
            )
            if not complete or len(slot) < self.size:
                raise threading.BrokenBarrierError(f"{name}: only ranks {sorted(slot)} came")
            return [slot[r] for r in range(self.size)]

    def names(self, rank: int = 0) -> list[str]:
        return [name for r, name, _ in self.calls if r == rank]

    def grouped_allreduce(
        self,
        tensors: list[Any],
        *,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: Any,
        name: str,
    ) -> list[Any]:
        rank = self.rank
        packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]

        def reduce(*arrays: Any) -> list[np.ndarray]:
            self.calls.append((rank, name, len(arrays)))
            result = []
            for column in zip(*self.meet(rank, name, arrays), strict=True):
                total = sum(a.astype(np.float64) * prescale_factor for a in column)
                total = total / self.size if op == Average else total
                result.append(np.asarray(total * postscale_factor).astype(column[0].dtype))
            return result

        reduced = self._call(reduce, [t for t, _ in packed], [t.shape for t, _ in packed])
        return [
            compression.decompress(t, context)
            for t, (_, context) in zip(reduced, packed, strict=True)
        ]

    def gather_with_counts(self, tensors: list[Any], name: str) -> tuple[list[Any], Any]:
        rank = self.rank

        def gather(*arrays: Any) -> list[np.ndarray]:
            self.calls.append((rank, name, len(arrays[0])))
            return [np.concatenate(c) for c in zip(*self.meet(rank, name, arrays), strict=True)]

        return self._call(gather, tensors, [[None, *t.shape[1:]] for t in tensors]), None

    def _call(self, function: Any, tensors: list[Any], shapes: list[Any]) -> list[Any]:
        outputs = tf.numpy_function(function, tensors, [t.dtype for t in tensors])
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        for output, shape in zip(outputs, shapes, strict=True):
            output.set_shape(shape)
        return outputs

    def allgather_object(self, item: Any, name: str) -> list[Any]:
        assert tf.executing_eagerly()
        return self.meet(self.rank, name, item)

    def broadcast_variables(self, variables: list[Any], root_rank: int) -> None:
        mine = [v.numpy() for v in variables]
        received = self.meet(self.rank, "broadcast", mine)[root_rank]
        for variable, value in zip(variables, received, strict=True):
            variable.assign(value)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Simulation]:
    """Gives `ranks(size, bucket_bytes=...)`, a Simulation that is in place from then on."""

    def make(size: int, bucket_bytes: int = 1 << 25) -> Simulation:
        simulation = Simulation(size, bucket_bytes)
        settings = types.SimpleNamespace(bucket_bytes=bucket_bytes)
        monkeypatch.setattr(world, "size", lambda: size)
        monkeypatch.setattr(world, "rank", lambda: simulation.rank)
        monkeypatch.setattr(world, "generation", lambda: 1)
        monkeypatch.setattr(world, "settings", lambda: settings)
        monkeypatch.setattr(world, "require_usable", lambda: None)
        monkeypatch.setattr(tape, "_reducers", PerRank(simulation))
        monkeypatch.setattr(_reducer, "_number", simulation.number)
        monkeypatch.setattr(collectives, "grouped_allreduce", simulation.grouped_allreduce)
        monkeypatch.setattr(collectives, "gather_with_counts", simulation.gather_with_counts)
        monkeypatch.setattr(objects, "allgather_object", simulation.allgather_object)
        monkeypatch.setattr(objects, "broadcast_variables", simulation.broadcast_variables)
        return simulation

    return make
