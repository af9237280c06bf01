"""The names of `tfring` where Horovod's scripts look for them.

`import horovod.tensorflow as hvd` becomes `import tfring.tensorflow as hvd`, and
`import horovod.tensorflow.keras as hvd` becomes `import tfring.tensorflow.keras as hvd`. There is
nothing else in here: `tfring` and `tfring.keras` are the same, and shorter.
"""

from __future__ import annotations

import importlib
from typing import Any

import tfring

__all__ = tfring.__all__


def __getattr__(name: str) -> Any:
    if name == "keras":
        return importlib.import_module("tfring.tensorflow.keras")
    return getattr(tfring, name)


def __dir__() -> list[str]:
    return dir(tfring)
