"""The trainable tensors of ResNet-50: what a training step of it reduces.

He et al., "Deep Residual Learning for Image Recognition", 2016 (arXiv:1512.03385), table 1, with a
batch normalization behind each convolution, which therefore has no bias, and 1,000 classes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

# Width, number of blocks; a block's output is four times as wide.
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
_CLASSES = 1000


@functools.cache
def counts() -> tuple[int, ...]:
    """Returns the number of elements of each tensor."""
    return tuple(math.prod(shape) for shape in shapes())


def shapes() -> list[tuple[int, ...]]:
    """Returns the 161 shapes, from the input to the output."""
    found = list(_convolution(7, 3, 64))
    inputs = 64
    for width, blocks in _STAGES:
        for block in range(blocks):
            if block == 0:
                found += _convolution(1, inputs, 4 * width)
            found += _convolution(1, inputs, width)
            found += _convolution(3, width, width)
            found += _convolution(1, width, 4 * width)
            inputs = 4 * width
    return [*found, (inputs, _CLASSES), (_CLASSES,)]


def _convolution(side: int, inputs: int, outputs: int) -> Iterator[tuple[int, ...]]:
    yield (side, side, inputs, outputs)
    # The normalization's scale and offset.
    yield (outputs,)
    yield (outputs,)
