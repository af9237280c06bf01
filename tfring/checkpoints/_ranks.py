"""Between ranks and files: rank 0 writes and reads, the others send and get what is theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _keras, _root, objects, world
from tfring.checkpoints import _entries, _files
from tfring.version import __version__

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass
class Found:
    """A checkpoint that was read: on every rank what it holds, on rank 0 also the arrays."""

    path: str
    manifest: dict[str, Any]
    arrays: list[np.ndarray]

    @property
    def ranks(self) -> int:
        """Number of ranks that wrote it."""
        return int(self.manifest["ranks"])

    def state(self) -> dict[str, Any]:
        """Returns what JSON this rank, or in a larger job another one, gave to `save`."""
        return dict(self.manifest["states"][world.rank() % self.ranks])

    def of_group(self, group: str) -> list[str]:
        """Returns the keys of a group of entries."""
        return [key for key in self.manifest["entries"] if key.startswith(f"{group}/")]

    def value(self, key: str, rank: int) -> np.ndarray | None:
        """Returns what a rank of this job gets, on rank 0; None: nothing."""
        item, size = self.manifest["entries"][key], world.size()
        numbers = item["arrays"]
        if size != self.ranks and item["rule"] in (_entries.MEAN, _entries.TOTAL):
            return _combined([self.arrays[i] for i in numbers], item["rule"], self.ranks, size)
        if item["rule"] == _entries.SEED and len(numbers) > 1 and rank >= self.ranks:
            return None
        number = numbers[rank % self.ranks] if len(numbers) > 1 else numbers[0]
        return None if number < 0 else self.arrays[number]

    def is_alike(self, key: str) -> bool:
        """Whether all ranks of this job get the same."""
        item = self.manifest["entries"][key]
        resized = world.size() != self.ranks
        return len(item["arrays"]) == 1 or (resized and item["rule"] in ("mean", "sum"))


def save(
    folder: _files.Folder,
    entries: _entries.Entries,
    *,
    position: Mapping[str, Any],
    state: Mapping[str, Any],
    about: Mapping[str, Any],
    note: str,
    wanted: bool = True,
) -> str | None:
    """Writes a checkpoint of all ranks on rank 0; every rank must call it.

    Args:
        folder: counts on rank 0.
        entries: this rank's; equal ones are stored once.
        position: where the training is; must be the same on all ranks.
        state: JSON of this rank.
        about: JSON of rank 0.
        note: part of the file's name.
        wanted: whether this rank wants it; none is written unless all do.

    Returns:
        The path, on all ranks; None where nothing was written.
    """
    prints = {key: entry.fingerprint() for key, entry in entries.items()}
    mine = (wanted, dict(position), dict(state), prints)
    reports: list[Any] = objects.allgather_object(mine, name="checkpoint/state")
    if not all(report[0] for report in reports):
        return None
    _require_one_position([report[1] for report in reports])
    theirs: list[Arrays] = [{}]
    if any(report[3] != reports[0][3] for report in reports):
        other = [k for k, p in prints.items() if reports[0][3].get(k) != p]
        own = {key: entries[key].array() for key in other}
        theirs = objects.allgather_object(own, name="checkpoint/own")

    def write() -> str:
        described, arrays = _described(entries, [report[3] for report in reports], theirs)
        manifest = {
            "tfring": __version__,
            "keras": _keras.module().__version__,
            "tensorflow": tf.__version__,
            "ranks": len(reports),
            "position": dict(position),
            **about,
            "states": [report[2] for report in reports],
            "entries": described,
        }
        return folder.write(manifest, arrays, note)

    return str(_root.on_root(write, f"write a checkpoint into {folder.path}"))


def find(folder: _files.Folder) -> Found | None:
    """Returns the newest whole checkpoint of rank 0's folder, on all ranks."""
    arrays: list[np.ndarray] = []

    def read() -> tuple[str, dict[str, Any]] | None:
        folder.lock()
        found = folder.read()
        if found is None:
            return None
        arrays.extend(found[2])
        return found[:2]

    found = _root.on_root(read, f"read a checkpoint from {folder.path}")
    return None if found is None else Found(found[0], found[1], arrays)


def check(found: Found, entries: _entries.Entries) -> None:
    """Checks that variables are those of a checkpoint.

    Raises:
        ValueError: on all ranks, when those of any rank differ from it.
    """
    reason = _difference(found, entries)
    reasons = objects.allgather_object(reason, name="checkpoint/check")
    for rank, text in enumerate(reasons):
        if text is not None:
            where = "" if all(reasons) else f" on rank {rank}"
            raise ValueError(f"The checkpoint {found.path} does not fit{where}: {text}")


def assign(found: Found, entries: _entries.Entries) -> None:
    """Gives variables the values of a checkpoint; every rank must call it with the same ones."""
    alike = [key for key in entries if found.is_alike(key)]
    own = [key for key in entries if key not in set(alike)]
    if world.rank() == 0:
        _assign(entries, {key: found.value(key, 0) for key in alike})
    if world.size() > 1 and alike:
        objects.broadcast_variables([entries[key].value for key in alike], 0)
    if own:
        _assign(entries, arrays(found, own))


def arrays(found: Found, keys: list[str]) -> dict[str, Any]:
    """Returns this rank's arrays of a checkpoint, by key; every rank must call it."""

    def read() -> list[dict[str, Any]]:
        return [{key: found.value(key, rank) for key in keys} for rank in range(world.size())]

    by_rank = _root.on_root(read, "send what differs between ranks")
    return dict(by_rank[world.rank()])


def _assign(entries: _entries.Entries, values: Mapping[str, np.ndarray | None]) -> None:
    for key, value in values.items():
        if value is not None:
            entries[key].value.assign(value)


def _combined(parts: list[np.ndarray], rule: str, ranks: int, size: int) -> np.ndarray:
    every = parts if len(parts) > 1 else parts * ranks
    total = np.sum([part.astype(np.float64) for part in every], axis=0)
    return np.asarray(total / (size if rule == _entries.TOTAL else ranks)).astype(parts[0].dtype)


def _require_one_position(positions: list[dict[str, Any]]) -> None:
    other = next((i for i, each in enumerate(positions) if each != positions[0]), None)
    if other is not None:
        raise RuntimeError(
            "All ranks must save at the same position of the training. Received: "
            f"{positions[0]} on rank 0, {positions[other]} on rank {other}"
        )


def _described(
    entries: _entries.Entries, prints: list[dict[str, bytes]], theirs: list[Arrays]
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Returns what the manifest says about each entry, and the arrays of the file."""
    described: dict[str, Any] = {}
    stored: list[np.ndarray] = []
    for key in dict.fromkeys(key for of_rank in prints for key in of_rank):
        numbers: dict[bytes | None, int] = {None: -1}
        by_rank = [of_rank.get(key) for of_rank in prints]
        for rank, mark in enumerate(by_rank):
            if mark not in numbers:
                numbers[mark] = len(stored)
                stored.append(entries[key].array() if rank == 0 else theirs[rank][key])
        entry, first = entries.get(key), stored[max(numbers.values())]
        described[key] = {
            "name": key if entry is None else entry.label,
            "rule": _entries.RANK if entry is None else entry.rule,
            "dtype": first.dtype.name,
            "shape": list(first.shape),
            "arrays": [numbers[m] for m in (by_rank if len(set(by_rank)) > 1 else by_rank[:1])],
        }
    return described, stored


def _difference(found: Found, entries: _entries.Entries) -> str | None:
    """Returns how variables differ from those of a checkpoint; None: not at all."""
    there = found.manifest["entries"]
    groups = dict.fromkeys(key.split("/")[0] for key in [*there, *entries])
    for group in groups:
        if group in ("metric", "callback"):
            continue
        mine = [key for key in entries if key.startswith(f"{group}/")]
        saved = found.of_group(group)
        for key in sorted({*mine, *saved}, key=lambda name: int(name.split("/")[1])):
            if key not in there:
                label, (dtype, shape) = entries[key].label, entries[key].kind()
                return _missing(group, label, dtype, shape, "is not in it", len(mine), len(saved))
            item = there[key]
            if key not in entries:
                told = item["name"], item["dtype"], item["shape"]
                return _missing(group, *told, "is in it only", len(mine), len(saved))
            label, (dtype, shape) = entries[key].label, entries[key].kind()
            if (dtype, shape) != (item["dtype"], item["shape"]):
                return (
                    f"`{label}` has shape {tuple(shape)} and dtype {dtype}, and in the checkpoint "
                    f"`{item['name']}` has shape {tuple(item['shape'])} and dtype {item['dtype']}. "
                    "Make the same model, or give another folder."
                )
    return None


def _missing(
    group: str, label: str, dtype: str, shape: list[int], how: str, mine: int, saved: int
) -> str:
    return (
        f"`{label}` of shape {tuple(shape)} and dtype {dtype} {how}; the {group} here has {mine} "
        f"variables and had {saved}. Make the same model and optimizer, or give another folder."
    )
