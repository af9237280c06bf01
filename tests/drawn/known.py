"""Cases that once found a fault, as they were drawn; a comment says what was wrong."""

from __future__ import annotations

from .case import Case

# What a seed draws may change, so these are whole. Paste what a failure prints.
KNOWN: tuple[Case, ...] = (
    # The broadcast of a second `fit` replaced what ranks had added up in the first.
    Case(
        seed=186,
        ranks=2,
        model="embedding",
        users=(0, 1),
        bias=True,
        optimizer="nadam",
        ema="",
        weight_decay=None,
        clip="",
        passes=1,
        average_passes=False,
        accumulation=2,
        precision="mixed_float16",
        wrapping="scale(dist)",
        overflows=((2, 0),),
        schedule="warmup",
        broadcast=True,
        compression="none",
        groups=0,
        bucket_bytes=33554432,
        sparse_as_dense=False,
        predivide=2.0,
        op="Average",
        loop="fit",
        per_execution=1,
        calls=6,
        sample_weighted=False,
        batches=(3, 3),
    ),
)
