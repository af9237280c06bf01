"""What each process of `tfring.run` executes: `python -m tfring.launch.function_worker`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import Any

import cloudpickle

from tfring.launch.function import ERROR_KEY, FUNCTION_KEY, RESULT_KEY
from tfring.launch.rendezvous import StoreClient


def _send(key: str, value: bytes) -> None:
    # A connection of its own: the function may run for days, fork, or close descriptors.
    env = os.environ
    with StoreClient(env["TFRING_RENDEZVOUS"], env["TFRING_SECRET"]) as client:
        client.set(key.format(env["TFRING_RANK"]), value)


def _fetch() -> tuple[Any, Any, Any]:
    with StoreClient(os.environ["TFRING_RENDEZVOUS"], os.environ["TFRING_SECRET"]) as client:
        packed = client.get(FUNCTION_KEY)
    if packed is None:
        raise RuntimeError("this process was not started by tfring.run: there is no function")
    outer = pickle.loads(packed)
    sys.path += [entry for entry in outer["path"] if entry not in sys.path]
    call: tuple[Any, Any, Any] = cloudpickle.loads(outer["call"])
    return call


def main() -> None:
    """Fetches the function, calls it, and sends back its result or its traceback.

    An exception is raised again, so that the process fails as any other script would.
    """
    try:
        func, args, kwargs = _fetch()
        result = cloudpickle.dumps(func(*args, **kwargs))
    except Exception:
        _send(ERROR_KEY, traceback.format_exc().encode("utf-8", "replace"))
        raise
    _send(RESULT_KEY, result)


if __name__ == "__main__":
    main()
