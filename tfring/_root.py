"""What rank 0 does while the others wait, and files that appear whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tfring import errors, objects, world

TEMPORARY = ".tmp-"


def on_root(function: Callable[[], Any], what: str) -> Any:
    """Calls a function on rank 0; the other ranks wait, and get what it returned.

    Every rank must call it. The wait ends, at the latest, when collectives fail (`fail_after`).

    Args:
        function: called on rank 0 only; what it returns must be picklable.
        what: what it does, for errors: "write the checkpoint".

    Returns:
        What `function` returned.

    Raises:
        Exception: on rank 0, what `function` raised.
        RuntimeError: on the other ranks, when it raised something; the text says what.
        tf.errors.AbortedError: when a peer is lost.
    """
    if world.size() == 1:
        return function()
    result, error = None, None
    if world.rank() == 0:
        try:
            result = function()
        except Exception as caught:  # goes on below, on every rank
            error = caught
    reason = None if error is None else f"{type(error).__name__}: {error}"
    result, reason = objects.broadcast_object((result, reason), name=f"rank 0: {what}")
    if error is not None:
        raise error
    if reason is not None:
        text = f"Rank 0 could not {what}: {reason}"
        # Not the one to blame.
        raise RuntimeError(text) from errors.CommunicationError("rank 0 failed")
    return result


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[str]:
    """Gives the name of a temporary file, which takes the place of `path` when it is written.

    Readers, and a process killed at any moment, see the former file or the new one, never a part.

    Args:
        path: where the file is to appear; the temporary one lies beside it, with the same ending.
    """
    target = Path(path)
    temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{target.name}")
    try:
        yield str(temporary)
        sync(temporary)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error counts
            temporary.unlink(missing_ok=True)
        raise
    sync(target.parent)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # file systems that cannot sync folders do it by themselves
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_saves(model: Any) -> Iterator[None]:
    """Lets `model.save` and `model.save_weights` write files that appear whole.

    Left as they are: addresses such as "gs://...", folders, and weights in several files.
    """
    # Not once more around: a callback may train or evaluate the model in its turn.
    own = vars(model)
    names = [n for n in ("save", "save_weights") if hasattr(model, n) and n not in own]
    for name in names:
        # Past Keras' attribute tracking.
        object.__setattr__(model, name, _whole(getattr(model, name)))
    try:
        yield
    finally:
        for name in names:
            object.__delattr__(model, name)


def _whole(stock: Callable[..., Any]) -> Callable[..., Any]:
    def save(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_one_file(filepath, kwargs):
            return stock(filepath, *args, **kwargs)
        with whole_file(filepath) as temporary:
            return stock(temporary, *args, **kwargs)

    return save


def _is_one_file(filepath: Any, options: dict[str, Any]) -> bool:
    path = os.fspath(filepath)
    asks = not options.get("overwrite", True) and os.path.exists(path)
    return (
        "://" not in path
        and path.endswith((".keras", ".h5"))
        and options.get("max_shard_size") is None
        and not asks
    )
