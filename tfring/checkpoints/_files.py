"""Files of checkpoints in a folder: written whole, read whole or not at all.

A file is a zip archive of NumPy arrays (`.npz`), which `numpy.load` opens: "manifest", a JSON
text, and the arrays "0", "1"... that it tells about. The archive's directory is at its end and
each array has a checksum, so a torn or damaged file is noticed. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import warnings
import weakref
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import tensorflow as tf

from tfring import _root

FORMAT = 1  # of the files; a change that older versions cannot read makes it one more
_NAME = re.compile(r"checkpoint-(\d+)(-[\w.-]+)?\.npz")
_DAMAGE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, IndexError)


class Folder:
    """The checkpoints of one training, on rank 0.

    Args:
        path: where they are; made when the first one is written.
        keep: how many of them stay.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ValueError(f"`folder` must name a folder. Received: folder={path!r}")
        self.path = Path(path)
        self._keep = keep
        self._unlock: Callable[[], object] | None = None

    def files(self) -> list[Path]:
        """Returns the files, the newest first."""
        found = [(m, p) for p in self.path.glob("*.npz") if (m := _NAME.fullmatch(p.name))]
        return [p for _, p in sorted(found, key=lambda each: int(each[0][1]), reverse=True)]

    def lock(self) -> None:
        """Makes the folder this process' own until `unlock`, or until the process ends.

        Raises:
            RuntimeError: another job uses it.
        """
        if self._unlock is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Unlike flock, not inherited by processes that outlive this one.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            user = os.read(lock, 200).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise RuntimeError(
                f"The folder of checkpoints is in use by another job ({user}). Wait until it has "
                f"ended, or give this job a folder of its own. Received: folder={str(self.path)!r}"
            ) from None
        except OSError:  # a file system without locks
            os.close(lock)
            return
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        self._unlock = weakref.finalize(self, os.close, lock)
        for path in self.path.glob(f"{_root.TEMPORARY}*"):  # of jobs that were killed
            path.unlink(missing_ok=True)

    def unlock(self) -> None:
        """Lets other jobs use the folder."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def write(self, manifest: dict[str, Any], arrays: Sequence[np.ndarray], note: str) -> str:
        """Writes a checkpoint, then removes those that are too old; returns its path."""
        self.lock()
        files = self.files()
        last = int(_NAME.fullmatch(files[0].name)[1]) if files else 0  # type: ignore[index]
        path = self.path / f"checkpoint-{last + 1:06d}{note}.npz"
        with _root.whole_file(path) as temporary, open(temporary, "wb") as file:
            _write(file, {"format": FORMAT, **manifest}, arrays)
        for old in self.files()[self._keep :]:
            old.unlink(missing_ok=True)
        return str(path)

    def read(self) -> tuple[str, dict[str, Any], list[np.ndarray]] | None:
        """Returns path, manifest and arrays of the newest file that is whole; None: there is none.

        Raises:
            ValueError: it was written by a newer version of tfring.
        """
        for path in self.files():
            try:
                manifest, arrays = read(path)
            except _DAMAGE as error:
                warnings.warn(
                    f"The checkpoint {path} is damaged ({type(error).__name__}: {error}); the one "
                    "before it is taken instead.",
                    stacklevel=2,
                )
                continue
            if manifest["format"] > FORMAT:
                raise ValueError(
                    f"The checkpoint {path} was written by a newer tfring ({manifest['tfring']}): "
                    f"its format is {manifest['format']}, and this version reads up to {FORMAT}. "
                    "Upgrade tfring, or remove the file."
                )
            return str(path), manifest, arrays
        return None


def read(path: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Returns manifest and arrays of one file; of a newer format, the manifest only."""
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(_array(archive, "manifest").tobytes())
        if manifest["format"] > FORMAT:
            return manifest, []
        return manifest, [
            _array(archive, str(i)).view(_dtype(name)) for i, name in enumerate(manifest["dtypes"])
        ]


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read()  # at its end the checksum is compared
        return array


def _write(file: IO[bytes], manifest: dict[str, Any], arrays: Sequence[np.ndarray]) -> None:
    text = json.dumps({**manifest, "dtypes": [dtype_name(a) for a in arrays]}).encode()
    parts = {"manifest": np.frombuffer(text, np.uint8)}
    parts.update((str(i), _plain(array)) for i, array in enumerate(arrays))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in parts.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _plain(array: np.ndarray) -> np.ndarray:
    # NumPy's format knows no bfloat16.
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array


def dtype_name(array: np.ndarray) -> str:
    """Returns how files call the dtype of an array.

    Raises:
        TypeError: files cannot hold it.
    """
    if array.dtype.kind in "OUSM":
        raise TypeError(f"Checkpoints hold numbers only. Received: an array of {array.dtype}")
    return array.dtype.name


def _dtype(name: str) -> np.dtype:
    with contextlib.suppress(TypeError):
        return np.dtype(name)
    return np.dtype(tf.as_dtype(name).as_numpy_dtype)
