"""The same bits in every run, and with `reproducible=True` on every number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import tfring as hvd

hvd.init()
SIZE = hvd.size()
pytestmark = [pytest.mark.many_ranks, pytest.mark.timeout(90)]

MICRO = 12  # micro-batches in a global batch: as many for 1, 2, 3 and 4 ranks
SAMPLES = 2  # in a micro-batch


@pytest.fixture(scope="module")
def alone() -> Iterator[hvd.ProcessSet]:
    """A world with a set for each rank; this rank's."""
    hvd.shutdown()
    sets = [hvd.ProcessSet([rank]) for rank in range(SIZE)]
    hvd.init(process_sets=sets)
    yield sets[hvd.rank()]
    hvd.shutdown()
    hvd.init()


def _model() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(20, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(16, "tanh"),
            keras.layers.Dense(1),
        ]
    )


def _data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps, micro-batches, samples."""
    random = np.random.default_rng(3)
    x = random.integers(0, 20, (steps, MICRO, SAMPLES, 4))
    y = random.standard_normal((steps, MICRO, SAMPLES, 1)) * 2.0 ** random.integers(-9, 9)
    return x.astype("int32"), y.astype("float32")


def _trained(optimizer: Any, mine: slice) -> list[bytes]:
    """Weights after 3 steps with some of the micro-batches of each."""
    x, y = (array[:, mine] for array in _data(3))
    model = _model()
    model.compile(optimizer, "mse", jit_compile=False)
    x, y = x.reshape(-1, 4), y.reshape(-1, 1)
    model.fit(x, y, batch_size=SAMPLES, shuffle=False, verbose=0)
    return [weight.tobytes() for weight in model.get_weights()]


def _optimizer(passes: int, **options: Any) -> Any:
    return hvd.DistributedOptimizer(
        keras.optimizers.Adam(0.01, global_clipnorm=1.0),
        backward_passes_per_step=passes,
        average_aggregated_gradients=True,
        **options,
    )


def test_bits_of_one_process(alone: hvd.ProcessSet) -> None:
    passes = MICRO // SIZE
    mine = slice(hvd.rank() * passes, (hvd.rank() + 1) * passes)
    together = _trained(_optimizer(passes, reproducible=True), mine)
    whole = _trained(_optimizer(MICRO, reproducible=True, process_set=alone), slice(None))
    assert together == whole
    assert hvd.allgather_object(together) == [together] * SIZE


def test_bits_of_every_run_and_bucket_size(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = MICRO // SIZE
    mine = slice(hvd.rank() * passes, (hvd.rank() + 1) * passes)
    runs = []
    for threshold in (1 << 25, 512):
        hvd.shutdown()
        monkeypatch.setenv("TFRING_FUSION_THRESHOLD", str(threshold))
        hvd.init()
        # One pass: sparse gradients stay sparse.
        runs.append(_trained(_optimizer(1), mine))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("action", ["raise", "resync"])
def test_drift_is_found_and_mended(action: str) -> None:
    odd = hvd.size() - 1
    variables = [keras.Variable([1.0, 2.0]), keras.Variable([float(hvd.rank() == odd)])]
    if action == "raise":
        with pytest.raises(Exception, match=f"1 of 2 differ.*rank {odd} differs from"):
            hvd.check_drift(variables)
    else:
        assert hvd.check_drift(variables, action) == [variables[1].path]
        assert float(variables[1].numpy()[0]) == 0.0
    assert hvd.check_drift([keras.Variable(3)]) == []
