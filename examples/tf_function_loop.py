"""A training loop of one's own, under `tf.function`, on scikit-learn's handwritten digits.

What it shows:
  * `DistributedGradientTape`: `gradient` reduces over all ranks, the optimizer is a stock one;
  * every rank trains on its own rows of the data, shuffled on its own;
  * `broadcast_variables` gives all ranks the first weights, and the optimizer's state;
  * `allreduce` of a number inside the compiled step: the loss that is printed is that of all ranks;
  * only rank 0 prints progress; every rank prints the digest of its weights, which are equal.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfring as hvd

EXAMPLES = """examples:
  tfringrun -np 2 python tf_function_loop.py
  python tf_function_loop.py                              one process
  tfringrun -np 4 python tf_function_loop.py --batch 16 --epochs 10
"""


def load_my_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns this rank's images and labels: as many on every rank, disjoint."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    rows = order[: len(order) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
    return (digits.data[rows] / 16.0).astype("float32"), digits.target[rows].astype("int32")


def make_step(model: Any, optimizer: Any) -> Any:
    """Returns a compiled function of one batch that updates the model."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return hvd.allreduce(loss, name="loss")

    return step


def main() -> None:
    """Trains, then says what came out."""
    parser = argparse.ArgumentParser(
        description="Train on handwritten digits with a loop of one's own.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (5)")
    parser.add_argument("--batch", type=int, default=32, help="samples per rank and update (32)")
    parser.add_argument("--seed", type=int, default=1, help="weights and order of samples (1)")
    args = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(args.seed + hvd.rank())  # differs: weights are broadcast
    x, y = load_my_rows(args.seed)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam(0.002)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)

    step = make_step(model, optimizer)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=args.seed)
    data = data.batch(args.batch, drop_remainder=True)
    for epoch in range(args.epochs):
        losses = [float(step(*batch)) for batch in data]
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f} over {hvd.size()} ranks")
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    print(f"rank {hvd.rank()}: weights {digest}")


if __name__ == "__main__":
    main()
