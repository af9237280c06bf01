"""Training that a seed draws, on real ranks: the numbers of one process.

More of it: TFRING_PROPERTY_CASES=100, from TFRING_PROPERTY_SEED=1000 on, say.
"""

from __future__ import annotations

import keras
import pytest

import tfring as hvd

from ..drawn.case import draw
from ..drawn.compare import check, seeds
from ..drawn.training import in_one_process, on_rank


@pytest.mark.parametrize("seed", seeds(4))
def test_drawn_training_is_that_of_one_process(seed: int, rank: int, size: int) -> None:
    case = draw(seed, size)
    results = hvd.allgather_object(on_rank(case, rank))
    again = f"tfringrun -np {size} pytest {__name__.replace('.', '/')}.py"
    check(case, results, in_one_process(case), f"TFRING_PROPERTY_SEED={seed} {again}")
    keras.backend.clear_session()
