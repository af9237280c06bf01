"""Training that a seed draws, over simulated ranks: the numbers of one process.

More of it: TFRING_PROPERTY_CASES=500, from TFRING_PROPERTY_SEED=1000 on, say.
"""

from __future__ import annotations

from typing import Any

import keras
import pytest

from ...drawn.case import Case, draw
from ...drawn.compare import check, seeds
from ...drawn.known import KNOWN
from ...drawn.training import in_one_process, on_rank

CASES = 28


def check_on(ranks: Any, case: Case, how: str) -> None:
    results = ranks(case.ranks, case.bucket_bytes).run(lambda rank: on_rank(case, rank))
    check(case, results, in_one_process(case), how)
    keras.backend.clear_session()  # hundreds of models would fill the memory


@pytest.mark.parametrize("seed", seeds(CASES))
def test_drawn_training_is_that_of_one_process(ranks: Any, seed: int) -> None:
    file = f"{__name__.replace('.', '/')}.py"
    check_on(ranks, draw(seed), f"TFRING_PROPERTY_SEED={seed} pytest {file}")


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: str(case.seed))
def test_what_once_failed(ranks: Any, case: Case) -> None:
    check_on(ranks, case, f"pytest -k {case.seed}")
