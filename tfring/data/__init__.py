"""Who sees which data: parts of data sets for each rank, and readers of folders.

    from tfring import data

    mine = data.shard(dataset, batch_size=32)

Importing it loads no TensorFlow; the first use of a name does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfring import _absent

if TYPE_CHECKING:
    from tfring.data._csv import read_csv
    from tfring.data._parquet import read_parquet
    from tfring.data._shard import ShardReport, last_shard, shard
    from tfring.data._shortest import shortest
    from tfring.data._tfrecord import read_tfrecord

__all__ = [
    "ShardReport",
    "last_shard",
    "read_csv",
    "read_parquet",
    "read_tfrecord",
    "shard",
    "shortest",
]

# Names and the modules that hold them. Private modules: one called as a function in it would
# take that name away.
_LAZY = {
    "ShardReport": "tfring.data._shard",
    "last_shard": "tfring.data._shard",
    "read_csv": "tfring.data._csv",
    "read_parquet": "tfring.data._parquet",
    "read_tfrecord": "tfring.data._tfrecord",
    "shard": "tfring.data._shard",
    "shortest": "tfring.data._shortest",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise _absent.error("tfring.data", name)
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
