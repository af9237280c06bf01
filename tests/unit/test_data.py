"""`tfring.data` in a world of one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import data, world


@pytest.mark.parametrize("name", data.__all__)
def test_name_resolves(name: str) -> None:
    assert callable(getattr(data, name))
    assert name in dir(data)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tfring.data' has no attribute 'shards'"):
        data.shards  # noqa: B018


@pytest.mark.parametrize("function", [data.shard, data.shortest])
def test_init_comes_first(function) -> None:
    with pytest.raises(hvd.NotInitializedError):
        function(tf.data.Dataset.range(3))


@pytest.mark.usefixtures("world")
def test_one_rank_has_all() -> None:
    shuffled = tf.data.Dataset.range(6).shuffle(6)  # no seed needed: there is no one to agree with
    assert sorted(map(int, data.shard(shuffled))) == list(range(6))
    x, y, weights = data.shard((np.arange(5), np.arange(5)), remainder="pad", batch_size=2)
    assert (len(x), len(y), weights.tolist()) == (5, 5, [1.0] * 5)
    unknown = tf.data.Dataset.range(4).filter(lambda i: i > 0)
    assert data.shortest(unknown) is unknown


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("function", [data.shard, data.shortest])
def test_not_inside_of_a_function(function) -> None:
    with pytest.raises(RuntimeError, match=f"`{function.__name__}` exchanges Python objects"):
        tf.function(lambda: function(tf.data.Dataset.range(3)))()


def test_shutdown_calls_what_was_to_be_called_once() -> None:
    calls = []
    hvd.init()
    world.at_shutdown(lambda: calls.append(hvd.is_initialized()))
    hvd.shutdown()
    hvd.init()
    hvd.shutdown()
    assert calls == [True]
