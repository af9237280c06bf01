"""SyncBatchNormalization over some of the ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

hvd.init()
pytestmark = [
    pytest.mark.skipif(hvd.size() < 2, reason="needs at least 2 ranks"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def dynamic() -> Iterator[None]:
    """A world that process sets can be added to."""
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()
    hvd.init()


def test_process_set_of_this_rank_alone(dynamic: None) -> None:
    alone = [hvd.add_process_set([r]) for r in range(hvd.size())]
    layer = hvd.SyncBatchNormalization(momentum=0.0, process_set=alone[hvd.rank()])
    again = hvd.SyncBatchNormalization.from_config(layer.get_config())
    assert again.process_set is layer.process_set
    layer(np.full((2, 1), hvd.rank(), "float32"), training=True)
    assert layer.moving_mean.numpy().tolist() == [float(hvd.rank())]
    other = hvd.SyncBatchNormalization(process_set=alone[(hvd.rank() + 1) % hvd.size()])
    with pytest.raises(tf.errors.InvalidArgumentError, match="must hold the rank that calls"):
        other(np.ones((2, 1), "float32"), training=True)
    assert all([hvd.remove_process_set(process_set) for process_set in alone])


@pytest.mark.skipif(hvd.size() < 3, reason="needs at least 3 ranks")
def test_process_set_of_some_ranks(dynamic: None) -> None:
    ends = hvd.add_process_set([0, hvd.size() - 1])
    if ends.included():
        layer = hvd.SyncBatchNormalization(momentum=0.0, process_set=ends)
        layer(np.full((2, 1), hvd.rank(), "float32"), training=True)
        assert layer.moving_mean.numpy().tolist() == [(hvd.size() - 1) / 2]
    assert hvd.remove_process_set(ends)


def test_a_rank_that_has_joined_has_no_samples() -> None:
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    if hvd.rank() != hvd.size() - 1:
        layer(np.full((2, 1), 1.0 + hvd.rank(), "float32"), training=True)
        assert layer.moving_mean.numpy().tolist() == [hvd.size() / 2]
    hvd.join()
