"""A peer leaves, fails or hangs while a compiled step goes on: one error, soon, that says who.

`tests/end_to_end/test_lost_peer.py` has peers that are killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import world

pytestmark = pytest.mark.ranks(2)

SOON_S = 5
FAIL_S = 1  # patience with a peer that hangs


@pytest.fixture
def begin() -> Iterator[Callable[..., None]]:
    """Begins a new world; the next test gets another one."""

    def again(**settings: Any) -> None:
        hvd.shutdown()
        hvd.init(**settings)

    hvd.barrier()
    yield again
    again()


def function() -> Callable[[], Any]:
    step = tf.function(lambda x: hvd.allreduce(2.0 * x, name="gradients"), jit_compile=True)
    x = tf.ones([1000])
    return lambda: step(x)


def fit() -> Callable[[], Any]:
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    model.compile(optimizer, "mse", jit_compile=True)
    data = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")
    return lambda: model.fit(*data, verbose=0)


def leave() -> None:
    hvd.shutdown()


def fail() -> None:
    """As an exception that nobody catches."""
    world.fail("ValueError: boom7")


def hang() -> None:
    time.sleep(FAIL_S + 1)


WAYS = {
    "shutdown": (leave, "rank 1.*shut down"),
    "exception": (fail, "rank 1.*boom7"),
    "hang": (hang, "rank 1"),
}


@pytest.mark.parametrize("make", [function, fit])
@pytest.mark.parametrize("way", WAYS)
def test_one_error_names_the_peer(
    make: Callable[[], Callable[[], Any]],
    way: str,
    begin: Callable[..., None],
    tmp_path: Path,
    rank: int,
) -> None:
    stamp = Path(hvd.broadcast_object(str(tmp_path), root_rank=0)) / "stamp"
    begin(warn_after=FAIL_S / 2, fail_after=FAIL_S)
    keras.utils.set_random_seed(1)
    step = make()
    for _ in range(3):
        step()
    act, text = WAYS[way]
    if rank == 1:
        stamp.write_text(str(time.monotonic()))
        act()
        return
    with pytest.raises(tf.errors.AbortedError, match=f"(?s){text}"):
        while True:
            step()
    assert time.monotonic() - float(stamp.read_text()) < SOON_S
