"""Which files a reader reads: the same ones, in the same order, on all ranks."""

from __future__ import annotations

import collections
import dataclasses
import gzip
import os
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

GLOB = frozenset("*?[")
DAMAGES = (EOFError, OSError, zlib.error)
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class File:
    """One file to read.

    Attributes:
        path: where this rank finds it.
        name: what it is called on every rank, which may have its folder at another place: the
            last part of the path, or all of it where two files have the same last part.
        size: in bytes.
    """

    path: str
    name: str
    size: int


def find(files: Any) -> list[File]:
    """Returns the files of a folder, of a glob, or of a list, sorted by path.

    Hidden files of a folder or glob, whose names begin with `.` or `_` (`_SUCCESS`, `.part-0.crc`),
    are left out. Any file system that TensorFlow knows will do.

    Raises:
        TypeError: `files` is none of the three.
        ValueError: the folder holds further folders, the list names a file twice, or none is left.
        FileNotFoundError: the folder, or a file of the list, does not exist.
    """
    if isinstance(files, (str, os.PathLike)):
        paths = _in_folder_or_glob(os.fspath(files))
        shown = repr(os.fspath(files))
    else:
        paths = _in_list(files)
        shown = f"{len(paths)} paths"
    paths = sorted(paths)
    if not paths:
        raise ValueError(
            "`files` must lead to at least one file that is not hidden (whose name begins with "
            f"neither '.' nor '_'). Received: files={shown}"
        )
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) < len(names):
        names = paths
    sizes = [tf.io.gfile.stat(path).length for path in paths]
    return [File(*each) for each in zip(paths, names, sizes, strict=True)]


def is_hidden(path: str) -> bool:
    """Says whether a file is none of the data, by the custom of Hadoop and Spark."""
    return os.path.basename(path).startswith((".", "_"))


def _in_folder_or_glob(path: str) -> list[str]:
    if tf.io.gfile.isdir(path):
        return _in_folder(path)
    if tf.io.gfile.exists(path):
        return [path]
    if not GLOB.intersection(path):
        raise FileNotFoundError(
            "`files` must be a folder, a file, a glob or a list of files, and exist on every "
            f"rank. Received: files={path!r}"
        )
    found = [each for each in tf.io.gfile.glob(path) if not tf.io.gfile.isdir(each)]
    # A pattern that begins so asks for them.
    return found if is_hidden(path) else [each for each in found if not is_hidden(each)]


def _in_folder(folder: str) -> list[str]:
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
    paths = [os.path.join(folder, name) for name in names if not is_hidden(name)]
    below = sorted(path for path in paths if tf.io.gfile.isdir(path))
    if below:
        raise ValueError(
            "`files` must be a folder of files only, so that none is left out unseen. Received: "
            f"files={folder!r}, which holds the folder {below[0]!r}. Give a glob, such as "
            f"{os.path.join(folder, '*', '*')!r}."
        )
    return paths


def _in_list(files: Any) -> list[str]:
    if not isinstance(files, Sequence) or isinstance(files, (bytes, bytearray)):
        raise TypeError(
            "`files` must be a folder, a glob or a list of files. "
            f"Received: files={files!r} of type {type(files).__name__}"
        )
    paths = [os.fspath(path) for path in files]
    twice = [path for path, times in collections.Counter(paths).items() if times > 1]
    if twice:
        raise ValueError(
            "`files` must name each file once, as each row is read once. "
            f"Received: {twice[0]!r} more than once"
        )
    for path in paths:
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(f"`files` must name files that exist. Received: {path!r}")
    return paths


def unpacked_size(file: File, compression: str) -> int:
    """Unpacks a whole file, and returns how many bytes it holds.

    TensorFlow takes a packed file that was cut off for one that ends there.

    Args:
        file: which one.
        compression: "GZIP", "ZLIB", or "" for none.

    Raises:
        DAMAGES: it is cut off, or damaged.
    """
    if not compression:
        return file.size
    with tf.io.gfile.GFile(file.path, "rb") as opened:
        if compression == "ZLIB":
            return _unpacked_by_zlib(opened)
        unpacked = gzip.GzipFile(fileobj=opened)
        return sum(map(len, iter(lambda: unpacked.read(_CHUNK), b"")))


def _unpacked_by_zlib(opened: Any) -> int:
    stream = zlib.decompressobj()
    size = sum(len(stream.decompress(chunk)) for chunk in iter(lambda: opened.read(_CHUNK), b""))
    if not stream.eof:
        raise EOFError("Compressed file ended before the end of the stream was reached")
    return size


def same(listings: Sequence[Sequence[File]], ranks: Sequence[int]) -> None:
    """Raises ValueError where the ranks found different files."""
    for rank, found in zip(ranks, listings, strict=True):
        what = difference(listings[0], found)
        if what:
            raise ValueError(
                f"`files` must lead to the same files on all ranks. Rank {rank} finds others than "
                f"rank {ranks[0]}: {what}. Wait until all files are written, and see that all "
                "ranks read the same folder, or copies of it."
            )


def difference(mine: Sequence[File], theirs: Sequence[File]) -> str | None:
    """Returns what the second listing has otherwise than the first, or None."""
    first = {file.name: file.size for file in mine}
    second = {file.name: file.size for file in theirs}
    for name in sorted({*first, *second}):
        if name not in second:
            return f"{name!r} is missing there"
        if name not in first:
            return f"{name!r} is only there"
        if first[name] != second[name]:
            return f"{name!r} has {second[name]} bytes there, not {first[name]}"
    return None
