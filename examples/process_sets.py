"""Two models at the same time: even ranks train one, odd ranks the other.

What it shows:
  * process sets, added after `init` in the dynamic mode, when the number of ranks is known;
  * a distributed optimizer for one set only: gradients are averaged among its ranks, and the two
    sets never wait for each other, though they take different numbers of steps;
  * data are dealt out by a rank's place in its set, `process_set.rank()` of `process_set.size()`;
  * `root_rank` is a rank of the job, also with a process set;
  * collectives of all ranks at the end: both models' answers are averaged, which beats either.
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
  tfringrun -np 4 python process_sets.py
  tfringrun -np 2 python process_sets.py                  sets of one rank each
  python process_sets.py                                  one process, the first model only
"""
NAMES = ("wide", "deep")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Train two models on handwritten digits at the same time.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=8, help="of the wide model (8)")
    parser.add_argument("--batch", type=int, default=48, help="samples per update and set (48)")
    parser.add_argument("--seed", type=int, default=1, help="weights and order of samples (1)")
    return parser.parse_args()


def make_sets() -> list[hvd.ProcessSet]:
    """Registers even and odd ranks; every rank makes all sets, in the same order."""
    if hvd.size() == 1:
        return [hvd.global_process_set]
    return [hvd.add_process_set(range(first, hvd.size(), 2)) for first in (0, 1)]


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns training images and labels, then test images and labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16.0).astype("float32")
    labels = digits.target[order].astype("int32")
    return images[360:], labels[360:], images[:360], labels[:360]


def make_model(name: str) -> Any:
    """Returns an untrained model."""
    widths = {"wide": [128], "deep": [32, 32]}[name]
    hidden = [keras.layers.Dense(width, "relu") for width in widths]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10, "softmax")])


def train(args: argparse.Namespace, name: str, mine: hvd.ProcessSet) -> Any:
    """Returns this set's model, trained by the ranks of the set."""
    x, y, _, _ = load_data()
    rows = slice(mine.rank(), len(x) // mine.size() * mine.size(), mine.size())
    model = make_model(name)
    model.compile(
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), name=name, process_set=mine
        ),
        "sparse_categorical_crossentropy",
    )
    hvd.broadcast_variables(model.variables, root_rank=mine.ranks[0], process_set=mine)
    epochs = args.epochs if name == "wide" else args.epochs * 2
    history = model.fit(x[rows], y[rows], args.batch // mine.size(), epochs=epochs, verbose=0)
    loss = hvd.allreduce(history.history["loss"][-1], name="loss", process_set=mine)
    if mine.rank() == 0:
        print(f"ranks {mine.ranks} trained {name}: loss {float(loss):.4f}")
    return model


def main() -> None:
    """Trains, then says what came out."""
    args = parse_arguments()
    hvd.init(process_sets="dynamic")
    sets = make_sets()
    which = next(i for i, process_set in enumerate(sets) if process_set.included())
    keras.utils.set_random_seed(args.seed + hvd.rank())  # differs: weights are broadcast
    model = train(args, NAMES[which], sets[which])

    _, _, x, y = load_data()
    answers = keras.ops.convert_to_numpy(model(tf.constant(x)))
    # Each set's answers count alike, whatever its size.
    share = answers / (sets[which].size() * len(sets))
    together = hvd.allreduce(share, op=hvd.Sum, name="answers").numpy()
    right = hvd.allgather_object(float(np.mean(answers.argmax(1) == y)))
    if hvd.rank() == 0:
        for name, process_set in zip(NAMES, sets, strict=False):
            print(f"{name}: accuracy {right[process_set.ranks[0]]:.4f}")
        print(f"together: accuracy {np.mean(together.argmax(1) == y):.4f}")
    weights = b"".join(w.tobytes() for w in model.get_weights())
    digest = hashlib.sha256(weights).hexdigest()
    print(f"rank {hvd.rank()}: {NAMES[which]} {digest}")


if __name__ == "__main__":
    main()
