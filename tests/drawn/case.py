"""What a seed draws: a model, an optimizer, and a way to train them on several ranks."""

from __future__ import annotations

import dataclasses
import random

MODELS = ("linear", "mlp", "conv", "embedding", "shared", "partial")
OPTIMIZERS = (
    "sgd",
    "momentum",
    "nesterov",
    "adam",
    "amsgrad",
    "adamw",
    "adamax",
    "nadam",
    "adagrad",
    "adadelta",
    "rmsprop",
    "centered",
    "ftrl",
    "lion",
)
LOOPS = ("eager", "graph", "tape", "graph tape", "both", "fit", "eager fit")
PRECISIONS = ("float32", "float64", "mixed_float16", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True)
class Case:
    """One training; every rank sees the same.

    Attributes:
        seed: It was drawn from; also of weights and data.
        ranks: Their number.
        model: One of `MODELS`; "partial" has a variable that some ranks do not use.
        users: The ranks that use it.
        bias: Layers have one.
        optimizer: One of `OPTIMIZERS`.
        ema: "" for none, "average" or "overwrite".
        weight_decay: Of the optimizer, or None.
        clip: Name of the optimizer's argument, "" for none.
        passes: `backward_passes_per_step`.
        average_passes: `average_aggregated_gradients`.
        accumulation: Keras' own `gradient_accumulation_steps`, 1 for none.
        precision: Policy of the layers.
        wrapping: Who scales the loss in float16: "compile", "dist(scale)", "scale(dist)".
        overflows: (call, rank) whose loss is infinite.
        schedule: "constant", "exponential", "cosine" or "warmup".
        broadcast: Ranks begin with weights of their own, and get those of rank 0.
        compression: Name of the compressor.
        groups: 0 for buckets by size, -1 for lists of variables, else a number of buckets.
        bucket_bytes: Their size.
        sparse_as_dense: As the argument.
        predivide: `gradient_predivide_factor`.
        op: "Average" or "Sum".
        loop: One of `LOOPS`.
        per_execution: `steps_per_execution` of `fit`.
        calls: Backward passes of each rank.
        sample_weighted: As the argument.
        batches: Samples of each of them, by rank; alike unless weighted by their numbers.
        reproducible: As the argument.
    """

    seed: int
    ranks: int
    model: str
    users: tuple[int, ...]
    bias: bool
    optimizer: str
    ema: str
    weight_decay: float | None
    clip: str
    passes: int
    average_passes: bool
    accumulation: int
    precision: str
    wrapping: str
    overflows: tuple[tuple[int, int], ...]
    schedule: str
    broadcast: bool
    compression: str
    groups: int
    bucket_bytes: int
    sparse_as_dense: bool
    predivide: float
    op: str
    loop: str
    per_execution: int
    calls: int
    sample_weighted: bool
    batches: tuple[int, ...]
    reproducible: bool = False

    @property
    def fits(self) -> bool:
        """Whether `fit` trains it."""
        return self.loop.endswith("fit")

    @property
    def tapes(self) -> bool:
        """Whether a `DistributedGradientTape` reduces."""
        return self.loop in ("tape", "graph tape", "both")

    @property
    def graph(self) -> bool:
        """Whether the steps are compiled."""
        return self.loop in ("graph", "graph tape", "fit", "both")

    @property
    def every(self) -> int:
        """Calls of one update."""
        return self.passes * self.accumulation

    @property
    def factor(self) -> float:
        """What the sums make of the mean loss over all samples."""
        ranks = self.ranks if self.op == "Sum" else 1
        return ranks * (1 if self.average_passes else self.passes)

    @property
    def merges(self) -> bool:
        """Whether rows of a sparse gradient that name one place are added up before the update.

        Keras alone leaves them apart, and clips each by itself.
        """
        return self.ranks > 1 or self.sparse_as_dense or self.every > 1 or self.reproducible

    def uses(self, rank: int) -> bool:
        """Whether the rank uses the variable of "partial" models."""
        return rank in self.users

    def __str__(self) -> str:
        values = [f"    {f.name}={getattr(self, f.name)!r}," for f in dataclasses.fields(self)]
        return "\n".join(["Case(", *values, ")"])


def draw(seed: int, ranks: int | None = None) -> Case:
    """Draws a case.

    Args:
        seed: Of everything.
        ranks: Their number, where it is given; else 1 to 4.
    """
    dice = random.Random(seed)
    drawn_ranks = dice.choice((1, 2, 2, 3, 4))
    ranks = drawn_ranks if ranks is None else ranks
    loop = dice.choice(LOOPS)
    fits, tapes = loop.endswith("fit"), loop in ("tape", "graph tape", "both")
    model = dice.choice([m for m in MODELS if not (fits and m == "partial")])
    precision = dice.choice(("float32", "float32", *PRECISIONS))
    accumulating = dice.choice(("", "", "passes", "native"))
    passes = dice.randint(2, 4) if accumulating == "passes" and not tapes else 1
    accumulation = dice.randint(2, 4) if accumulating == "native" else 1
    every = passes * accumulation
    calls = every * dice.randint(2, 4) + dice.choice((0, dice.randrange(every)))
    optimizers = [o for o in OPTIMIZERS if not (o == "lion" and precision.startswith("mixed"))]
    wrappings = ["dist(scale)", "scale(dist)", *(["compile"] if fits else [])]
    scaled = precision == "mixed_float16"
    op = dice.choice(("Average", "Average", "Sum"))
    weighted = op == "Average" and not tapes and model != "partial" and dice.random() < 0.3
    batches = [dice.randint(1, 3) for _ in range(ranks)]
    schedule = dice.choice(("constant", "exponential", "cosine", *(["warmup"] if fits else [])))
    case = Case(
        seed=seed,
        ranks=ranks,
        model=model,
        users=tuple(r for r in range(ranks) if dice.random() < 0.6),
        bias=dice.random() < 0.5,
        optimizer=dice.choice(optimizers),
        # A warm-up here has several calls of `fit`, each of which ends with the averages.
        ema=dice.choice(("", "", "average", "overwrite")) if schedule != "warmup" else "",
        weight_decay=dice.choice((None, None, 0.05)),
        clip=dice.choice(("", "clipnorm", "clipvalue", "global_clipnorm")),
        passes=passes,
        average_passes=dice.random() < 0.5,
        accumulation=accumulation,
        precision=precision,
        wrapping=dice.choice(wrappings) if scaled else "",
        overflows=tuple(
            (call, dice.randrange(ranks)) for call in range(calls) if dice.random() < 0.2
        )
        if scaled
        else (),
        schedule=schedule,
        broadcast=dice.random() < 0.3,
        compression=dice.choice(("none", "none", "none", "fp16", "bf16")),
        groups=dice.choice((0, 0, 1, 2, -1)),
        bucket_bytes=dice.choice((0, 64, 1 << 25)),
        sparse_as_dense=dice.random() < 0.3,
        predivide=dice.choice((1.0, 2.0, 0.5)) if op == "Average" else 1.0,
        op=op,
        loop=loop,
        per_execution=dice.choice((1, 2, 3)) if fits and schedule != "warmup" else 1,
        calls=calls,
        sample_weighted=weighted,
        batches=tuple(batches if weighted else batches[:1] * ranks),
    )
    if accumulation > 1 and not tapes and dice.random() < 0.3:
        case = dataclasses.replace(case, passes=2)
    refuses = tapes or weighted or accumulation > 1 or case.compression != "none"
    return dataclasses.replace(case, reproducible=not refuses and dice.random() < 0.4)
