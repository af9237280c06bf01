"""What TensorFlow's users call: `tfring.allreduce`, eager and inside a `tf.function`."""

from __future__ import annotations

from functools import partial

import numpy as np
import tensorflow as tf

import tfring
from tfring.bench.contenders.base import Prepared


class TensorFlowOp:
    """One rank. Results are new tensors, because the input stays alive."""

    def __init__(self) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tfring.init()
        self.rank, self.size = tfring.rank(), tfring.size()
        self.title = f"tfring {tfring.__version__}, op (TensorFlow {tf.__version__})"

    def prepare(self, way: str, array: np.ndarray) -> Prepared:
        """Makes `way`, `eager` or `function`, ready."""
        tensor = tf.constant(array)

        # One argument only: TensorFlow looks at each argument of a function in every call.
        def reduce(tensor: tf.Tensor) -> tf.Tensor:
            return tfring.allreduce(tensor, op=tfring.Sum, name="bench")

        if way == "function":
            reduce = tf.function(reduce)
        # On a CPU both return when the result is there.
        return Prepared(partial(reduce, tensor), lambda: reduce(tensor).numpy())

    def close(self) -> None:
        """Leaves the world."""
        tfring.shutdown()
