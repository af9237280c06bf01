"""The classic ImageNet training, as a Keras 3 script: ResNet-50 on folders of images.

What it shows:
  * image folders, one per class; every epoch deals all files out anew, a disjoint part per rank,
    and each rank decodes its own part only;
  * the rate grows with ranks and with batches per allreduce, warms up over 5 epochs, and drops to
    a tenth at epochs 30, 60 and 80 (Goyal et al., arXiv:1706.02677);
  * fp16 allreduce, several batches per allreduce, Adasum, a predivide factor;
  * checkpoints, TensorBoard and progress on rank 0 only; training goes on from rank 0's last
    checkpoint, whose epoch, weights and optimizer state all ranks get;
  * one GPU per rank, where there are any;
  * without `--train-dir` it makes a tiny folder itself, from two photographs of scikit-learn.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.resources
import importlib.util
import pathlib
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfring
import tfring.keras as hvd

EXAMPLES = """examples:
  tfringrun -np 2 python keras_imagenet_resnet50.py --model small --image-size 32 --epochs 2
  tfringrun -np 8 -H a:4,b:4 python keras_imagenet_resnet50.py \\
      --train-dir /data/imagenet/train --val-dir /data/imagenet/val --fp16-allreduce
"""
DROPS = (30, 60, 80)
SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp"}


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        usage="keras_imagenet_resnet50.py [options]",
        description="Train ResNet-50 on folders of images with one or more processes.",
        epilog=EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=32, width=88
        ),
    )
    add = parser.add_argument
    add("--train-dir", metavar="DIR", help="one folder of images per class (made from photos)")
    add("--val-dir", metavar="DIR", help="the same for validation (made from photos)")
    add("--log-dir", metavar="DIR", default="./logs", help="TensorBoard; '' for none (./logs)")
    add(
        "--checkpoint-format",
        metavar="PATH",
        default="./checkpoint-{epoch}.keras",
        help="where rank 0 saves (./checkpoint-{epoch}.keras)",
    )
    add("--fp16-allreduce", action="store_true", help="gradients travel in half precision")
    add("--batches-per-allreduce", metavar="N", type=int, default=1, help="per update (1)")
    add("--use-adasum", action="store_true", help="combine by Adasum instead of the average")
    add("--gradient-predivide-factor", metavar="F", type=float, default=1.0, help="(1.0)")
    add("--batch-size", metavar="N", type=int, default=32, help="images per rank and batch (32)")
    add("--val-batch-size", metavar="N", type=int, default=32, help="(32)")
    add("--epochs", metavar="N", type=int, default=90, help="(90)")
    add("--base-lr", metavar="RATE", type=float, default=0.0125, help="of one rank (0.0125)")
    add("--warmup-epochs", metavar="N", type=float, default=5, help="(5)")
    add("--momentum", metavar="M", type=float, default=0.9, help="(0.9)")
    add("--wd", metavar="W", type=float, default=0.00005, help="weight decay (0.00005)")
    add("--seed", metavar="N", type=int, default=42, help="(42)")
    add("--model", choices=["resnet50", "small"], default="resnet50", help="(resnet50)")
    add("--image-size", metavar="PIXELS", type=int, default=224, help="(224)")
    return parser


def make_sample_folders(folder: pathlib.Path) -> tuple[str, str]:
    """Cuts scikit-learn's two photographs into images of two classes; returns both folders."""
    images = importlib.resources.files("sklearn.datasets.images")
    random = np.random.default_rng(0)
    for label in ("china", "flower"):
        photo = tf.io.decode_jpeg((images / f"{label}.jpg").read_bytes()).numpy()
        for part, count in (("train", 32), ("val", 8)):
            (folder / part / label).mkdir(parents=True)
            for i in range(count):
                y, x = random.integers(0, photo.shape[0] - 96), random.integers(0, 544)
                crop = tf.io.encode_jpeg(photo[y : y + 96, x : x + 96]).numpy()
                (folder / part / label / f"{i}.jpg").write_bytes(crop)
    return str(folder / "train"), str(folder / "val")


def list_images(folder: str) -> tuple[list[str], list[int], int]:
    """Returns the images' paths and labels, in the same order on all ranks, and the classes."""
    classes = sorted(entry for entry in pathlib.Path(folder).iterdir() if entry.is_dir())
    found = [
        (str(path), label)
        for label, entry in enumerate(classes)
        for path in sorted(entry.iterdir())
        if path.suffix.lower() in SUFFIXES
    ]
    if len(found) < hvd.size():
        raise ValueError(
            f"{folder} must hold one folder per class, and at least one image per rank. "
            f"Received: {len(classes)} folders with {len(found)} images"
        )
    return [path for path, _ in found], [label for _, label in found], len(classes)


def read(path: tf.Tensor, label: tf.Tensor, size: int, training: bool) -> tuple[Any, tf.Tensor]:
    """Decodes an image; for training, a random part of it, at random mirrored."""
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    if training:
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros([1, 0, 4]),
            area_range=(0.25, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.image.random_flip_left_right(tf.slice(image, begin, extent))
    image = tf.ensure_shape(tf.image.resize(image, [size, size]), [size, size, 3])
    return keras.applications.resnet50.preprocess_input(image), label


def training_data(args: argparse.Namespace, first_epoch: int) -> tuple[tf.data.Dataset, int]:
    """Returns this rank's batches, equally many on every rank, and the number of classes."""
    paths, labels, classes = list_images(args.train_dir)
    per_update = args.batch_size * args.batches_per_allreduce * hvd.size()
    steps = len(paths) // per_update * args.batches_per_allreduce
    if steps == 0:
        raise ValueError(
            f"{args.train_dir} must hold at least {per_update} images: batch size x batches per "
            f"allreduce x ranks. Received: {len(paths)} images"
        )
    data = tf.data.Dataset.from_tensor_slices((paths, labels))
    # The same seed everywhere, so that the parts of the ranks are disjoint.
    data = data.shuffle(len(paths), seed=args.seed + first_epoch)
    data = data.take(steps * args.batch_size * hvd.size()).shard(hvd.size(), hvd.rank())
    data = data.map(lambda *x: read(*x, args.image_size, True), tf.data.AUTOTUNE)
    return data.batch(args.batch_size, drop_remainder=True).prefetch(2), classes


def validation_data(args: argparse.Namespace) -> tf.data.Dataset:
    """Returns this rank's part; parts may differ by an image, metrics count each image once."""
    paths, labels, _ = list_images(args.val_dir)
    data = tf.data.Dataset.from_tensor_slices((paths, labels)).shard(hvd.size(), hvd.rank())
    data = data.map(lambda *x: read(*x, args.image_size, False), tf.data.AUTOTUNE)
    return data.batch(args.val_batch_size).prefetch(2)


def make_model(args: argparse.Namespace, classes: int) -> Any:
    """Returns an untrained model with weight decay in every kernel."""
    shape = (args.image_size, args.image_size, 3)
    if args.model == "resnet50":
        model = keras.applications.ResNet50(weights=None, classes=classes, input_shape=shape)
    else:
        inputs = keras.Input(shape)
        x = keras.layers.Conv2D(8, 5, strides=4, use_bias=False)(inputs)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        x = keras.layers.GlobalAveragePooling2D()(x)
        x = keras.layers.Dense(classes, activation="softmax")(x)
        model = keras.Model(inputs, x)

    def configured(layer: Any) -> Any:
        config = layer.get_config()
        if "kernel_regularizer" in config:
            config["kernel_regularizer"] = keras.regularizers.L2(args.wd)
        if isinstance(layer, keras.layers.BatchNormalization):
            config.update(momentum=0.9, epsilon=1e-5)
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=configured)


def last_checkpoint(args: argparse.Namespace) -> int:
    """Returns the last epoch that rank 0 has saved, 0 if none: the same number on every rank."""
    epoch = 0
    if hvd.rank() == 0:
        saved = range(args.epochs, 0, -1)
        paths = ((e, pathlib.Path(args.checkpoint_format.format(epoch=e))) for e in saved)
        epoch = next((e for e, path in paths if path.exists()), 0)
    return hvd.broadcast_object(epoch, root_rank=0)


def compiled_model(args: argparse.Namespace, classes: int, epoch: int, rate: float) -> Any:
    """Returns the model; rank 0 reads its checkpoint, the others get its state in `fit`."""
    if epoch > 0 and hvd.rank() == 0:
        model = keras.models.load_model(args.checkpoint_format.format(epoch=epoch))
        optimizer = model.optimizer
    else:
        model = make_model(args, classes)
        optimizer = keras.optimizers.SGD(rate, momentum=args.momentum)
    model.compile(
        tfring.DistributedOptimizer(  # that of tfring.keras knows no Adasum, as in Horovod
            optimizer,
            compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
            op=tfring.Adasum if args.use_adasum else tfring.Average,
            gradient_predivide_factor=args.gradient_predivide_factor,
            backward_passes_per_step=args.batches_per_allreduce,
            average_aggregated_gradients=True,
        ),
        keras.losses.SparseCategoricalCrossentropy(),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5")],
    )
    return model


def drop(epoch: float) -> float:
    """Returns what the rate at full speed is multiplied by in an epoch."""
    return 0.1 ** sum(epoch >= start for start in DROPS)


def make_callbacks(args: argparse.Namespace, rate: float) -> list[Any]:
    """Returns the callbacks of this rank; only rank 0 writes files."""
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, args.warmup_epochs, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(
            rate, multiplier=drop, start_epoch=int(np.ceil(args.warmup_epochs))
        ),
    ]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint_format))
        if args.log_dir and importlib.util.find_spec("tensorboard") is None:
            print("no TensorBoard logs: pip install tensorboard")
        elif args.log_dir:
            callbacks.append(keras.callbacks.TensorBoard(args.log_dir))
    return callbacks


def train(args: argparse.Namespace) -> None:
    """Trains from the last checkpoint on, then says what came out."""
    epoch = last_checkpoint(args)
    if epoch == args.epochs:
        if hvd.rank() == 0:
            print(f"{args.checkpoint_format.format(epoch=epoch)} is the last epoch's already")
        return
    data, classes = training_data(args, epoch)
    # Adasum finds the length of the sum by itself: its rate does not grow with the ranks.
    rate = args.base_lr * args.batches_per_allreduce * (1 if args.use_adasum else hvd.size())
    model = compiled_model(args, classes, epoch, rate)
    if hvd.rank() == 0 and epoch > 0:
        print(f"going on after epoch {epoch}")
    history = model.fit(
        data,
        validation_data=validation_data(args),
        initial_epoch=epoch,
        epochs=args.epochs,
        callbacks=make_callbacks(args, rate),
        shuffle=False,  # the data are already
        verbose=2 if hvd.rank() == 0 else 0,
    ).history
    if hvd.rank() == 0 and history:
        print(f"learning rates {' '.join(f'{x:.6g}' for x in history['lr'])}")
        print(f"validation accuracy {history['val_accuracy'][-1]:.4f}, np={hvd.size()}")
    # Without moving averages of batch normalization, which come from each rank's own batches.
    weights = b"".join(keras.ops.convert_to_numpy(w).tobytes() for w in model.trainable_weights)
    print(f"rank {hvd.rank()}: weights {hashlib.sha256(weights).hexdigest()}")


def main() -> None:
    """Reads the command line, finds or makes data, and trains."""
    args = make_parser().parse_args()
    if (args.train_dir is None) != (args.val_dir is None):
        raise SystemExit("give both --train-dir and --val-dir, or neither")
    hvd.init()
    tfring.pin_gpu()  # one for each rank; nothing happens without GPUs
    keras.utils.set_random_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        if args.train_dir is None:
            args.train_dir, args.val_dir = make_sample_folders(pathlib.Path(folder))
        train(args)


if __name__ == "__main__":
    main()
