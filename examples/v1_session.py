"""A script of TensorFlow 1 style, graph and session, on scikit-learn's handwritten digits.

What it shows:
  * `DistributedOptimizer` around an optimizer of `tf.compat.v1.train`: `minimize` reduces;
  * `backward_passes_per_step`: gradients of several batches add up for one update, and the global
    step counts the batches;
  * `BroadcastGlobalVariablesHook`: a monitored session starts from rank 0's weights, be they new
    or from its checkpoint; if a peer is lost, it ends instead of starting anew for ever;
  * only rank 0 writes checkpoints and logs; each rank reads its own rows of the data;
  * the learning rate grows, and the number of steps shrinks, with the number of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfring as hvd

v1 = tf.compat.v1

EXAMPLES = """examples:
  tfringrun -np 2 python v1_session.py
  python v1_session.py                                    one process
  tfringrun -np 2 python v1_session.py --passes 2 --checkpoints /tmp/digits
"""


def load_my_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns this rank's images and labels: as many on every rank, disjoint."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    rows = order[: len(order) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
    return (digits.data[rows] / 16.0).astype("float32"), digits.target[rows].astype("int32")


def batches(x: np.ndarray, y: np.ndarray, size: int, seed: int) -> Iterator[Any]:
    """Yields batches for ever, in a new order in each epoch."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(x))
        for start in range(0, len(x) - size + 1, size):
            rows = order[start : start + size]
            yield x[rows], y[rows]


def build_model(images: Any, labels: Any) -> tuple[Any, Any]:
    """Returns the loss and the accuracy of a small network, as tensors."""
    w1 = v1.get_variable("w1", [64, 64], initializer=v1.glorot_uniform_initializer())
    b1 = v1.get_variable("b1", [64], initializer=v1.zeros_initializer())
    w2 = v1.get_variable("w2", [64, 10], initializer=v1.glorot_uniform_initializer())
    b2 = v1.get_variable("b2", [10], initializer=v1.zeros_initializer())
    logits = tf.nn.relu(images @ w1 + b1) @ w2 + b2
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    hits = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(hits, tf.float32))


class AtTheEnd(v1.train.SessionRunHook):
    """Fetches something once, when training has stopped; every rank does, so it may reduce."""

    def __init__(self, fetches: Any, feed: dict[Any, Any]) -> None:
        self._fetches = fetches
        self._feed = feed
        self.values: Any = None

    def end(self, session: Any) -> None:
        """Fetches."""
        self.values = session.run(self._fetches, self._feed)


def main() -> None:
    """Trains, then says what came out."""
    parser = argparse.ArgumentParser(
        description="Train on handwritten digits with a v1 graph and session.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=600, help="batches of all ranks (600)")
    parser.add_argument("--batch", type=int, default=32, help="samples per rank and batch (32)")
    parser.add_argument("--passes", type=int, default=1, help="batches per update (1)")
    parser.add_argument("--seed", type=int, default=1, help="weights and order of samples (1)")
    parser.add_argument("--checkpoints", help="folder where rank 0 keeps checkpoints (none)")
    args = parser.parse_args()

    v1.disable_eager_execution()
    hvd.init()
    v1.set_random_seed(args.seed + hvd.rank())  # differs: the hook makes weights alike
    x, y = load_my_rows(args.seed)
    images, labels = v1.placeholder(tf.float32, [None, 64]), v1.placeholder(tf.int32, [None])
    loss, accuracy = build_model(images, labels)
    # One number of all ranks, as part of the graph.
    mean_accuracy = hvd.allreduce(accuracy, name="accuracy")

    step = v1.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(
        v1.train.MomentumOptimizer(0.02 * hvd.size(), momentum=0.9),
        backward_passes_per_step=args.passes,
        average_aggregated_gradients=True,
    )
    train = optimizer.minimize(loss, global_step=step)
    result = AtTheEnd([mean_accuracy, v1.trainable_variables()], {images: x, labels: y})
    hooks = [
        hvd.BroadcastGlobalVariablesHook(root_rank=0),
        v1.train.StopAtStepHook(last_step=args.steps // hvd.size()),
        result,
    ]
    if hvd.rank() == 0:
        hooks.append(v1.train.LoggingTensorHook({"step": step, "loss": loss}, every_n_iter=50))

    feed = batches(x, y, args.batch, args.seed)
    is_writer = hvd.rank() == 0 and args.checkpoints
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=args.checkpoints if is_writer else None, hooks=hooks
    ) as session:
        while not session.should_stop():
            inputs = dict(zip((images, labels), next(feed), strict=True))
            session.run(train, inputs)
    reached, weights = result.values
    if hvd.rank() == 0:
        print(f"accuracy {reached:.3f} over {hvd.size()} ranks")
    digest = hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()
    print(f"rank {hvd.rank()}: weights {digest}")


if __name__ == "__main__":
    main()
