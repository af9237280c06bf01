"""A generative adversarial network: two models, two optimizers, one compiled step.

What it shows:
  * two distributed optimizers in one `tf.function`: each reduces the gradients of its own model,
    and their collectives never mix, whatever order TensorFlow runs them in;
  * a plain `tf.GradientTape`, since the optimizers reduce;
  * every rank trains on its own digits and draws noise of its own;
  * one broadcast gives all ranks the first weights of both models and both optimizers' state;
  * losses of all ranks by one `grouped_allreduce`; equal digests of both models on all ranks.
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
  tfringrun -np 2 python gan.py
  python gan.py                                           one process
  tfringrun -np 2 python gan.py --epochs 60 --save digits.npy
"""
NOISE = 16


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Learn to draw digits of 8x8 pixels with one or more processes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (20)")
    parser.add_argument("--batch", type=int, default=32, help="images per rank and update (32)")
    parser.add_argument("--seed", type=int, default=1, help="weights, order and noise (1)")
    parser.add_argument("--save", default="", help="file for 64 drawn digits, as a NumPy array")
    return parser.parse_args()


def my_images(batch: int, seed: int) -> tf.data.Dataset:
    """Returns this rank's batches of images in -1 to 1; as many on every rank."""
    images = (load_digits().data / 8.0 - 1.0).astype("float32")
    images = images[: len(images) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
    data = tf.data.Dataset.from_tensor_slices(images).shuffle(len(images), seed=seed)
    return data.batch(batch, drop_remainder=True)


def make_models() -> tuple[Any, Any]:
    """Returns a generator, which draws, and a discriminator, which tells drawn from real."""
    generator = keras.Sequential(
        [
            keras.Input((NOISE,)),
            keras.layers.Dense(64, "leaky_relu"),
            keras.layers.Dense(64, "tanh"),
        ]
    )
    discriminator = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "leaky_relu"), keras.layers.Dense(1)]
    )
    return generator, discriminator


def make_step(models: tuple[Any, Any], optimizers: tuple[Any, Any]) -> Any:
    """Returns a compiled function of one batch that updates both models."""
    generator, discriminator = models
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor) -> list[tf.Tensor]:
        noise = tf.random.normal([tf.shape(images)[0], NOISE])
        with tf.GradientTape() as draw_tape, tf.GradientTape() as tell_tape:
            real, drawn = discriminator(images), discriminator(generator(noise))
            draw_loss = entropy(tf.ones_like(drawn), drawn)
            tell_loss = entropy(tf.ones_like(real), real) + entropy(tf.zeros_like(drawn), drawn)
        pairs = ((draw_tape, draw_loss), (tell_tape, tell_loss))
        for (tape, loss), model, optimizer in zip(pairs, models, optimizers, strict=True):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
        return hvd.grouped_allreduce([draw_loss, tell_loss], name="losses")

    return step


def main() -> None:
    """Trains, then says what came out."""
    args = parse_arguments()
    hvd.init()
    keras.utils.set_random_seed(args.seed + hvd.rank())  # noise differs; weights are broadcast
    models = make_models()
    optimizers = tuple(
        hvd.DistributedOptimizer(keras.optimizers.Adam(rate, beta_1=0.5), name=name)
        for rate, name in ((0.002, "generator"), (0.001, "discriminator"))
    )
    first = []
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.build(model.trainable_variables)
        first += [*model.variables, *optimizer.variables]
    hvd.broadcast_variables(first, root_rank=0)

    step = make_step(models, optimizers)
    data = my_images(args.batch, args.seed)
    for epoch in range(args.epochs):
        losses = np.mean([[float(loss) for loss in step(batch)] for batch in data], axis=0)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: generator {losses[0]:.4f}, discriminator {losses[1]:.4f}")
    for name, model in zip(("generator", "discriminator"), models, strict=True):
        weights = b"".join(w.tobytes() for w in model.get_weights())
        print(f"rank {hvd.rank()}: {name} {hashlib.sha256(weights).hexdigest()}")
    if args.save and hvd.rank() == 0:
        noise = np.random.default_rng(0).normal(size=(64, NOISE)).astype("float32")
        drawn = keras.ops.convert_to_numpy(models[0](noise))
        np.save(args.save, (drawn.reshape(-1, 8, 8) + 1.0) * 8.0)


if __name__ == "__main__":
    main()
