"""What must be the same on several ranks and in one process, and how nearly."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from .case import Case
from .training import Result

# Sums of float32 differ by their order in the last bits: 6e-8 of a weight, a few times in some
# updates; so distances are those of all weights together, where no single one that is nearly
# zero counts. Training moves the weights by some percent only: its error is held to the way, too.
# With 16 bits only to that. A rank left out, a factor missing or an update too many is some ten
# percent of it at least.
HALF = {"fp16": 0.01, "bf16": 0.05}


def tolerance_of(case: Case) -> tuple[float, float]:
    """The largest distance of the weights: relative to their norm, and to that of their way."""
    kinds = {"mixed_float16": "fp16", "mixed_bfloat16": "bf16"}
    half = {kinds.get(case.precision, "none"), case.compression} - {"none"}
    if half:
        return 1.0, max(HALF[kind] for kind in half)
    if case.precision == "float64":
        return 1e-13, 1e-11
    return 1e-6, 2e-5


def norm(arrays: Sequence[np.ndarray]) -> float:
    """The Euclidean norm of all numbers together."""
    return float(np.sqrt(sum(np.sum(np.square(a.astype("float64"))) for a in arrays)))


def distance(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> float:
    """The norm of the difference; NaN where one of them is no number."""
    return norm(
        [a.astype("float64") - b.astype("float64") for a, b in zip(these, those, strict=True)]
    )


def failures(case: Case, results: Sequence[Result], wanted: Result) -> list[str]:
    """What is wrong, in words."""
    wrong = []
    first = results[0]
    for rank, result in enumerate(results):
        for what in ("weights", "state"):
            pairs = zip(getattr(first, what), getattr(result, what), strict=True)
            if any(a.tobytes() != b.tobytes() for a, b in pairs):
                wrong.append(f"{what} of rank {rank} are not those of rank 0")
        if (result.iterations, result.scale) != (wanted.iterations, wanted.scale):
            wrong.append(
                f"rank {rank} has iterations={result.iterations}, scale={result.scale}; "
                f"one process has {wanted.iterations}, {wanted.scale}"
            )
    of_weights, of_way = tolerance_of(case)
    way = distance(wanted.weights, wanted.start)
    far = distance(first.weights, wanted.weights)
    # Ftrl's weights end far smaller than they began.
    size = max(norm(wanted.weights), norm(wanted.start))
    if not far <= min(of_weights * size, of_way * way + 1e-30):
        wrong.append(
            f"weights are {far:.3g} from those of one process: {far / size:.3g} "
            f"of their norm, {far / (way or 1):.3g} of the way of training"
        )
    far = distance(first.state, wanted.state)
    if not far <= of_way * norm(wanted.state) + 1e-30:
        wrong.append(
            f"the optimizer's state is {far / (norm(wanted.state) or 1):.3g} of its norm from "
            "that of one process"
        )
    return wrong


def check(case: Case, results: Sequence[Result], wanted: Result, how: str) -> None:
    """Fails with the case, and how to run it again, unless all is right."""
    wrong = failures(case, results, wanted)
    assert not wrong, "\n".join([*wrong, "", f"Again: {how}", "", str(case)])


def seeds(default: int) -> range:
    """The seeds to run: TFRING_PROPERTY_CASES of them, from TFRING_PROPERTY_SEED on."""
    first = os.environ.get("TFRING_PROPERTY_SEED")
    count = os.environ.get("TFRING_PROPERTY_CASES", "1" if first is not None else str(default))
    return range(int(first or 0), int(first or 0) + int(count))
