"""Sparse gradients: a recommender whose big tables change in a few rows per batch.

What it shows:
  * gradients of `keras.layers.Embedding` are `tf.IndexedSlices`: rows, not tables. Rows that occur
    more than once in a batch are merged before they travel, and only those rows travel;
  * the same numbers as with whole tables (`--dense`), at a fraction of the bytes;
  * the ranks' parts of each batch together are the batch of one process, so any number of ranks
    learns the same;
  * how many rows and bytes a rank gives per update, beside those of the whole tables.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfring as hvd

EXAMPLES = """examples:
  tfringrun -np 2 python embedding.py
  python embedding.py                                     one process
  tfringrun -np 2 python embedding.py --dense             whole tables travel
"""
USERS, ITEMS, WIDTH, RATINGS = 4000, 1000, 8, 8192


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Factorize a table of ratings with one or more processes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=6, help="passes over the data (6)")
    parser.add_argument("--batch", type=int, default=256, help="ratings per update (256)")
    parser.add_argument("--seed", type=int, default=1, help="weights and order of ratings (1)")
    parser.add_argument("--dense", action="store_true", help="send whole tables")
    return parser.parse_args()


def make_ratings() -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs of user and item, some much more frequent than others, and their ratings."""
    random = np.random.default_rng(0)
    tastes, traits = (random.normal(size=(n, 3)) / 3**0.5 for n in (USERS, ITEMS))
    users = (USERS * random.uniform(size=RATINGS) ** 3).astype("int64")
    items = (ITEMS * random.uniform(size=RATINGS) ** 3).astype("int64")
    ratings = np.sum(tastes[users] * traits[items], axis=1).astype("float32")
    return np.stack([users, items], axis=1), ratings


def my_part_of_each_batch(batch: int, seed: int) -> tf.data.Dataset:
    """Shuffles alike on all ranks; batch k of all ranks together is batch k of one process."""
    pairs, ratings = make_ratings()
    share = batch // hvd.size()
    data = tf.data.Dataset.from_tensor_slices((pairs, ratings)).shuffle(len(pairs), seed=seed)
    data = data.batch(share, drop_remainder=True)
    return data.take(len(pairs) // batch * hvd.size()).shard(hvd.size(), hvd.rank())


class Factors(keras.Model):
    """A vector for each user and item; a rating is the product of two."""

    def __init__(self) -> None:
        super().__init__()
        self.users = keras.layers.Embedding(USERS, WIDTH, "random_normal")
        self.items = keras.layers.Embedding(ITEMS, WIDTH, "random_normal")

    def call(self, pairs: Any) -> Any:
        """Returns the ratings of `pairs`, an integer tensor of shape (batch, 2)."""
        product = self.users(pairs[:, 0]) * self.items(pairs[:, 1])
        return keras.ops.sum(product, axis=1)


def make_step(model: Any, optimizer: Any) -> Any:
    """Returns a compiled function of one batch: its loss, and the distinct rows of both tables."""

    @tf.function
    def step(pairs: tf.Tensor, ratings: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(pairs) - ratings) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        optimizer.apply(gradients, model.trainable_variables)
        rows = sum(tf.size(tf.unique(gradient.indices).y) for gradient in gradients)
        return hvd.allreduce(loss, name="loss"), rows

    return step


def train(args: argparse.Namespace, model: Any) -> tuple[float, float]:
    """Trains; returns what this rank gave per update: distinct rows, and bytes."""
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(2.0, momentum=0.9), sparse_as_dense=args.dense, name="factors"
    )
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    step = make_step(model, optimizer)
    all_rows = []
    before = hvd.stats().payload_bytes
    for epoch in range(args.epochs):
        losses = []
        for batch in my_part_of_each_batch(args.batch, args.seed + epoch):
            loss, rows = step(*batch)
            losses.append(float(loss))
            all_rows.append(int(rows))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.6f} over {hvd.size()} ranks")
    return np.mean(all_rows), (hvd.stats().payload_bytes - before) / len(all_rows)


def main() -> None:
    """Trains, then says what came out and what travelled."""
    args = parse_arguments()
    hvd.init()
    if args.batch % hvd.size():
        raise ValueError(
            f"`--batch` must be a multiple of the number of ranks, {hvd.size()}. "
            f"Received: --batch {args.batch}"
        )
    keras.utils.set_random_seed(args.seed)  # all ranks shuffle alike
    model = Factors()
    model(tf.zeros([1, 2], tf.int64))
    rows, sent = train(args, model)
    if hvd.rank() == 0:
        table = f"{USERS + ITEMS} rows, {(USERS + ITEMS) * WIDTH * 4} bytes"
        print(f"per update: {rows:.0f} distinct rows, {sent:.0f} bytes; whole tables: {table}")
    weights = b"".join(w.tobytes() for w in model.get_weights())
    print(f"rank {hvd.rank()}: weights {hashlib.sha256(weights).hexdigest()}")


if __name__ == "__main__":
    main()
