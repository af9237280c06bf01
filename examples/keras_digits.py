"""Trains a small convolutional network on scikit-learn's handwritten digits.

What it shows:
  * the three lines that make a Keras script run on several processes;
  * that the training is the same: every batch is cut into one disjoint part per rank, so the loss
    curve with any number of ranks is that of one process on whole batches;
  * broadcast of the first weights, metrics over all ranks' samples, progress on rank 0 only;
  * `--weak`: whole batches on every rank, a learning rate that grows with them, and its warm-up;
  * that all ranks end with the same weights, bit for bit, again and again for one seed;
  * loss curves as a picture, one line per number of ranks, where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfring.keras as hvd

EXAMPLES = """examples:
  tfringrun -np 2 python keras_digits.py
  python keras_digits.py                                  one process, the same curve
  tfringrun -np 4 python keras_digits.py --weak           four times the batch, warm-up
  tfringrun -np 4 --pretend-hosts -H a:2,b:2 python keras_digits.py
"""


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Train on handwritten digits with one or more processes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=48, help="samples per update (48)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (0.05)")
    parser.add_argument("--momentum", type=float, default=0.9, help="of SGD (0.9)")
    parser.add_argument("--seed", type=int, default=1, help="weights and order of samples (1)")
    parser.add_argument(
        "--weak", action="store_true", help="a whole batch and the full rate for each rank"
    )
    parser.add_argument(
        "--plot", default="digits_loss.png", help="picture of loss curves; '' for none"
    )
    return parser.parse_args()


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns training images and labels, then test images and labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images = (digits.images[order, :, :, None] / 16.0).astype("float32")
    labels = digits.target[order].astype("int32")
    return images[360:], labels[360:], images[:360], labels[:360]


def my_part_of_each_batch(x: np.ndarray, y: np.ndarray, batch: int, seed: int) -> tf.data.Dataset:
    """Shuffles alike on all ranks; batch k of all ranks together is batch k of one process."""
    share = batch // hvd.size()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=seed).batch(share)
    return data.take(len(x) // batch * hvd.size()).shard(hvd.size(), hvd.rank())


def make_model() -> Any:
    """Returns an untrained model."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def train(args: argparse.Namespace) -> tuple[Any, list[float]]:
    """Returns the model and its loss after each epoch, over the samples of all ranks."""
    x, y, x_test, y_test = load_data()
    model = make_model()
    rate = args.rate * hvd.size() if args.weak else args.rate
    batch = args.batch * hvd.size() if args.weak else args.batch
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=args.momentum)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    if args.weak:
        callbacks.append(hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=3))
    history = model.fit(
        my_part_of_each_batch(x, y, batch, args.seed),
        validation_data=(x_test[hvd.rank() :: hvd.size()], y_test[hvd.rank() :: hvd.size()]),
        validation_batch_size=360,
        epochs=args.epochs,
        shuffle=False,  # the dataset does it
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        accuracy = model.evaluate(x_test, y_test, batch_size=360, verbose=0)[1]
        print(f"test accuracy {accuracy:.4f}, np={hvd.size()}")
    return model, history.history["loss"]


def save_curves(args: argparse.Namespace, curve: list[float]) -> None:
    """Adds this run's curve to those of earlier runs with the same settings, and draws all."""
    picture = pathlib.Path(args.plot)
    notes = picture.with_suffix(".json")
    settings = {name: value for name, value in vars(args).items() if name != "plot"}
    kept = json.loads(notes.read_text()) if notes.exists() else {}
    if kept.get("settings") != settings:
        kept = {"settings": settings, "curves": {}}
    kept["curves"][str(hvd.size())] = curve
    notes.write_text(json.dumps(kept, indent=1))
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"loss curves are in {notes}; install matplotlib for a picture")
        return
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for i, (ranks, losses) in enumerate(sorted(kept["curves"].items(), key=lambda c: int(c[0]))):
        # Curves lie on each other: later ones are thinner.
        axes.plot(
            range(1, len(losses) + 1), losses, linewidth=max(1, 7 - 3 * i), label=f"np={ranks}"
        )
    axes.set(xlabel="epoch", ylabel="training loss", yscale="log", title="Digits")
    axes.legend()
    figure.savefig(picture, dpi=120, bbox_inches="tight")
    print(f"loss curves are in {picture}")


def main() -> None:
    """Trains, then says what came out."""
    args = parse_arguments()
    hvd.init()
    if args.batch % hvd.size():
        raise ValueError(
            f"`--batch` must be a multiple of the number of ranks, {hvd.size()}. "
            f"Received: --batch {args.batch}"
        )
    # Alike on all ranks; the same bits again for the same seed.
    keras.utils.set_random_seed(args.seed)
    tf.config.experimental.enable_op_determinism()
    model, curve = train(args)
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    print(f"rank {hvd.rank()}: weights {digest}")
    if hvd.rank() == 0 and args.plot:
        save_curves(args, curve)


if __name__ == "__main__":
    main()
