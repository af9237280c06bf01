"""Several ranks as threads of one process: right numbers without an engine."""

from __future__ import annotations

import collections
import faulthandler
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring import _reducer, collectives, objects, tape, world
from tfring.compression import Compression
from tfring.constants import Adasum, Average, Max, Sum
from tfring.process_sets import ProcessSet, global_process_set

TIMEOUT_S = 100.0  # less than pytest allows a test, and far more than a busy machine needs


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
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)  # where
            assert not thread.is_alive(), f"a rank hangs; calls: {self.calls}"
        first = [error for error in errors if error is not None]
        if first:
            own = [e for e in first if not isinstance(e, threading.BrokenBarrierError)]
            raise (own or first)[0]
        return results

    def number(self, kind: str, generation: int, members: ProcessSet) -> int:
        key = f"{id(members)}/{kind}"
        number = self._here.numbers[key]
        self._here.numbers[key] += 1
        return number

    def process_set(self, ranks: list[int], process_set_id: int = 1) -> ProcessSet:
        """Returns a registered set, the same object for all ranks."""
        members = ProcessSet(ranks)
        members.process_set_id = process_set_id
        return members

    def members(self, process_set: ProcessSet) -> list[int]:
        if process_set is global_process_set:
            return list(range(self.size))
        assert process_set.ranks is not None
        assert self.rank in process_set.ranks, "a rank outside of the set takes part"
        return process_set.ranks

    def meet(self, rank: int, name: str, item: Any, members: Sequence[int]) -> list[Any]:
        """Returns the items of all members once all have called it with `name`."""
        with self._meeting:
            key = f"{name} {list(members)}"
            use = self._uses[key, rank]
            self._uses[key, rank] += 1
            slot = self._slots[key, use]
            slot[rank] = item
            self._meeting.notify_all()
            complete = self._meeting.wait_for(
                lambda: len(slot) == len(members) or self._failed, TIMEOUT_S
            )
            if not complete or len(slot) < len(members):
                raise threading.BrokenBarrierError(f"{name}: only ranks {sorted(slot)} came")
            return [slot[r] for r in members]

    def names(self, rank: int = 0) -> list[str]:
        return [name for r, name, _ in self.calls if r == rank]

    def grouped_allreduce(
        self,
        tensors: list[Any],
        *,
        op: int,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        compression: Any = Compression.none,
        name: str,
        process_set: ProcessSet = global_process_set,
    ) -> list[Any]:
        rank, members = self.rank, self.members(process_set)
        packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]

        def reduce(*arrays: Any) -> list[np.ndarray]:
            self.calls.append((rank, name, len(arrays)))
            result = []
            for column in zip(*self.meet(rank, name, arrays, members), strict=True):
                if column[0].dtype.kind == "i":
                    assert (op, prescale_factor, postscale_factor) == (Sum, 1.0, 1.0)
                    result.append(np.sum(np.stack(column), axis=0, dtype=column[0].dtype))
                    continue
                wide = [a.astype(np.float64) * prescale_factor for a in column]
                total = _COMBINE.get(op, sum)(wide)
                total = total / len(members) if op == Average else total
                result.append(np.asarray(total * postscale_factor).astype(column[0].dtype))
            return result

        reduced = self._call(reduce, [t for t, _ in packed], [t.shape for t, _ in packed])
        return [
            compression.decompress(t, context)
            for t, (_, context) in zip(reduced, packed, strict=True)
        ]

    def allreduce(self, tensor: Any, **kwargs: Any) -> Any:
        return self.grouped_allreduce([tensor], **kwargs)[0]

    def gather_with_counts(
        self, tensors: list[Any], name: str, process_set: ProcessSet = global_process_set
    ) -> tuple[list[Any], Any]:
        rank, members = self.rank, self.members(process_set)

        def gather(*arrays: Any) -> list[np.ndarray]:
            self.calls.append((rank, name, len(arrays[0])))
            columns = list(zip(*self.meet(rank, name, arrays, members), strict=True))
            counts = np.array([[len(a) for a in column] for column in columns], np.int64).T
            return [*(np.concatenate(column) for column in columns), counts]

        shapes = [[None, *t.shape[1:]] for t in tensors]
        dtypes = [t.dtype for t in tensors]
        shapes.append([len(members), len(tensors)])
        results = self._call(gather, tensors, shapes, [*dtypes, tf.int64])
        return results[:-1], results[-1]

    def _call(
        self, function: Any, tensors: list[Any], shapes: list[Any], dtypes: Any = None
    ) -> list[Any]:
        dtypes = dtypes or [t.dtype for t in tensors]
        outputs = tf.numpy_function(function, tensors, dtypes)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        for output, shape in zip(outputs, shapes, strict=True):
            output.set_shape(shape)
        return outputs

    def allgather_object(
        self, item: Any, name: str, process_set: ProcessSet = global_process_set
    ) -> list[Any]:
        assert tf.executing_eagerly()
        return self.meet(self.rank, name, item, self.members(process_set))

    def broadcast_object(self, item: Any, root_rank: int = 0, name: str = "object") -> Any:
        assert tf.executing_eagerly()
        return self.meet(self.rank, name, item, range(self.size))[root_rank]

    def broadcast_variables(
        self,
        variables: list[Any],
        root_rank: int,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        mine = [v.numpy() for v in variables]
        members = self.members(process_set)
        received = self.meet(self.rank, "broadcast", mine, members)[members.index(root_rank)]
        for variable, value in zip(variables, received, strict=True):
            variable.assign(value)


def _adasum(values: list[np.ndarray]) -> np.ndarray:
    """Adasum over a tree of pairs, as the paper (arXiv:2006.02924) has it."""
    while len(values) > 1:
        values = [_combined(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _combined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot, of_a, of_b = np.sum(a * b), np.sum(a * a), np.sum(b * b)
    scale_a = 1.0 - (dot / (2.0 * of_a) if of_a else 0.0)
    scale_b = 1.0 - (dot / (2.0 * of_b) if of_b else 0.0)
    return scale_a * a + scale_b * b


_COMBINE: dict[int, Callable[[list[Any]], Any]] = {
    Adasum: _adasum,
    Max: lambda arrays: np.max(arrays, axis=0),
}


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Simulation]:
    """Gives `ranks(size, bucket_bytes=...)`, a Simulation that is in place from then on."""

    def make(size: int, bucket_bytes: int = 1 << 25) -> Simulation:
        simulation = Simulation(size, bucket_bytes)
        settings = types.SimpleNamespace(
            bucket_bytes=bucket_bytes, check_batches=False, drift="raise"
        )
        monkeypatch.setattr(world, "size", lambda: size)
        monkeypatch.setattr(world, "rank", lambda: simulation.rank)
        monkeypatch.setattr(world, "is_initialized", lambda: True)
        monkeypatch.setattr(world, "generation", lambda: 1)
        monkeypatch.setattr(world, "settings", lambda: settings)
        monkeypatch.setattr(world, "require_usable", lambda: None)
        monkeypatch.setattr(tape, "_reducers", PerRank(simulation))
        monkeypatch.setattr(_reducer, "_number", simulation.number)
        monkeypatch.setattr(collectives, "grouped_allreduce", simulation.grouped_allreduce)
        monkeypatch.setattr(collectives, "allreduce", simulation.allreduce)
        monkeypatch.setattr(collectives, "gather_with_counts", simulation.gather_with_counts)
        monkeypatch.setattr(objects, "allgather_object", simulation.allgather_object)
        monkeypatch.setattr(objects, "broadcast_object", simulation.broadcast_object)
        monkeypatch.setattr(objects, "broadcast_variables", simulation.broadcast_variables)
        return simulation

    return make
