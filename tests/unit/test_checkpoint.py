"""`Checkpoint` in a world of one: loops of one's own, files, and what is wrong with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring.checkpoints import _files, _trees

pytestmark = pytest.mark.usefixtures("world")


def make_model(units: int = 3) -> Any:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(units, name="first")])


def checkpoint_of(folder: Path, value: float = 0.0, **kwargs: Any) -> tuple[Any, hvd.Checkpoint]:
    variable = tf.Variable([value, 0.0], name="v")
    return variable, hvd.Checkpoint(folder, variables=[variable], **kwargs)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


# --- loops of one's own -----------------------------------------------------------------------


class Loop:
    """A model with dropout, and a step compiled or not."""

    def __init__(self, compiled: bool) -> None:
        glorot = keras.initializers.GlorotUniform
        self.model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, kernel_initializer=glorot(1)),
                keras.layers.Dropout(0.5, seed=3),
                keras.layers.Dense(1, kernel_initializer=glorot(2)),
            ]
        )
        stock = keras.optimizers.Adam(0.1, use_ema=True)
        self.optimizer = keras.optimizers.LossScaleOptimizer(
            hvd.DistributedOptimizer(stock, backward_passes_per_step=2), dynamic_growth_steps=1
        )
        self.step = tf.function(self._step) if compiled else self._step

    def _step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x, training=True) ** 2)
            scaled = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, variables), variables)

    def run(self, steps: range) -> None:
        for step in steps:
            self.step(tf.fill([2, 4], float(step + 1)))

    def bits(self) -> list[bytes]:
        return [v.numpy().tobytes() for v in [*self.model.variables, *self.optimizer.variables]]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_three_and_two_steps_are_five(tmp_path: Path, compiled: bool) -> None:
    whole = Loop(compiled)
    whole.run(range(5))

    first = Loop(compiled)
    first.run(range(3))
    hvd.Checkpoint(tmp_path, first.model, first.optimizer).save(step=3)

    second = Loop(compiled)
    position = hvd.Checkpoint(tmp_path, second.model, second.optimizer).restore()
    assert position == {"step": 3}
    assert second.bits() == first.bits()
    second.run(range(3, 5))
    assert second.bits() == whole.bits()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "uint32", "bool"])
def test_values_of_any_dtype(tmp_path: Path, dtype: str) -> None:
    values = tf.cast([[0.0, 1.0, 3.0]], dtype)
    hvd.Checkpoint(tmp_path, variables=[tf.Variable(values)]).save()
    variable = tf.Variable(tf.zeros_like(values))
    hvd.Checkpoint(tmp_path, variables=[variable]).restore()
    np.testing.assert_array_equal(variable.numpy(), values.numpy())


def test_a_number_and_nothing(tmp_path: Path) -> None:
    hvd.Checkpoint(tmp_path, variables=[tf.Variable(7), tf.Variable(tf.zeros([0, 2]))]).save()
    number, empty = tf.Variable(0), tf.Variable(tf.ones([0, 2]))
    assert hvd.Checkpoint(tmp_path, variables=[number, empty]).restore() == {}
    assert int(number.numpy()) == 7


def test_an_empty_folder(tmp_path: Path) -> None:
    assert checkpoint_of(tmp_path / "new")[1].restore() is None


@pytest.mark.parametrize("keep", [1, 3])
def test_old_files_go(tmp_path: Path, keep: int) -> None:
    _, checkpoint = checkpoint_of(tmp_path, keep=keep)
    paths = [checkpoint.save(epoch=i) for i in range(4)]
    assert [str(path) for path in files(tmp_path)] == paths[-keep:]
    assert Path(paths[-1]).name == "checkpoint-000004-epoch-3.npz"


def test_a_file_is_an_archive_of_numpy(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, 2.0)[1].save(step=1)
    with np.load(path, allow_pickle=False) as archive:
        manifest = json.loads(archive["manifest"].tobytes())
        assert archive["0"].tolist() == [2.0, 0.0]
    assert manifest["position"] == {"step": 1}
    assert manifest["ranks"] == 1


# --- files that are not right -------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.rindex(np.float32(9.0).tobytes())  # in the last of the arrays
    data[at + 3] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [cut, empty, flip])
def test_a_damaged_file_is_passed_over(tmp_path: Path, damage: Any) -> None:
    variable, checkpoint = checkpoint_of(tmp_path)
    for value in (8.0, 9.0):
        variable.assign([value, value])
        checkpoint.save(value=value)
    damage(files(tmp_path)[-1])
    with pytest.warns(UserWarning, match=r"000002.*npz is damaged"):
        assert checkpoint.restore() == {"value": 8.0}
    assert variable.numpy().tolist() == [8.0, 8.0]


def test_any_cut_is_noticed(tmp_path: Path) -> None:
    path = Path(checkpoint_of(tmp_path, 1.0)[1].save())
    data = path.read_bytes()
    for length in range(0, len(data), 13):
        path.write_bytes(data[:length])
        with pytest.raises(_files._DAMAGE):
            _files.read(path)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-000001.npz"
    np.savez(path, manifest=np.array([{"format": 1}], dtype=object))
    with pytest.warns(UserWarning, match="is damaged"):
        assert checkpoint_of(tmp_path)[1].restore() is None


def test_a_newer_format(tmp_path: Path) -> None:
    path = Path(checkpoint_of(tmp_path)[1].save())
    text = json.dumps({"format": 2, "tfring": "9.1", "dtypes": []}).encode()
    with zipfile.ZipFile(path, "w") as archive, archive.open("manifest.npy", "w") as file:
        np.lib.format.write_array(file, np.frombuffer(text, np.uint8))
    with pytest.raises(ValueError, match=r"newer tfring \(9.1\): its format is 2.* up to 1"):
        checkpoint_of(tmp_path)[1].restore()


def test_leftovers_of_killed_jobs_go(tmp_path: Path) -> None:
    leftover = tmp_path / ".tmp-123-checkpoint-000001.npz"
    leftover.write_bytes(b"half")
    assert checkpoint_of(tmp_path)[1].restore() is None
    assert not leftover.exists()


# --- other models and folders ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: make_model(4), r"/first/kernel` has shape \(2, 4\).*/kernel` has .*\(2, 3\)"),
        (
            lambda: keras.Sequential([*make_model().layers, keras.layers.Dense(1, name="more")]),
            r"/more/kernel` of shape \(3, 1\) .* is not in it; the model here has 4 .* had 2",
        ),
        (lambda: keras.Sequential([keras.Input((2,))]), "/first/kernel` .* is in it only"),
    ],
)
def test_another_model(tmp_path: Path, build: Any, text: str) -> None:
    hvd.Checkpoint(tmp_path, make_model()).save()
    other = build()
    other.build((None, 2))
    with pytest.raises(ValueError, match=text):
        hvd.Checkpoint(tmp_path, other).restore()


def test_another_optimizer(tmp_path: Path) -> None:
    models = [make_model(), make_model()]
    models[0].compile(keras.optimizers.Adam(), "mse")
    models[1].compile(keras.optimizers.SGD(), "mse")
    models[0].optimizer.build(models[0].trainable_variables)
    hvd.Checkpoint(tmp_path, models[0]).save()
    with pytest.raises(ValueError, match="first_kernel_momentum` .* is in it only; the optimizer0"):
        hvd.Checkpoint(tmp_path, models[1]).restore()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        checkpoint_of(tmp_path)[1].save()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        checkpoint_of(tmp_path / "file")[1].save()


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, checkpoint = checkpoint_of(tmp_path, 1.0)
    checkpoint.save(step=1)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(step=2)
    assert checkpoint.restore() == {"step": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        "checkpoint-000001-step-1.npz",
    ]


OTHER_JOB = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("process 7 on far", file=file, flush=True)
print("locked", flush=True)
sys.stdin.read()
"""


def test_two_jobs_in_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER_JOB, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(RuntimeError, match=r"in use by another job \(process 7 on far\)"):
            checkpoint_of(tmp_path)[1].save()
        other.communicate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint_of(tmp_path)[1].save()


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, None])
def test_keep(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(ValueError, match=f"`keep` must be .* Received: keep={keep}"):
        checkpoint_of(tmp_path, keep=keep)


@pytest.mark.parametrize("folder", [None, 3, ""])
def test_wrong_folder(folder: Any) -> None:
    text = f"`folder` must name a folder. Received: folder={folder!r}"
    with pytest.raises(ValueError, match=text):
        hvd.Checkpoint(folder, variables=[tf.Variable(1.0)])


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Received: none of them"):
        hvd.Checkpoint(tmp_path)


def test_a_model_that_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be built before"):
        hvd.Checkpoint(tmp_path, keras.Sequential([keras.layers.Dense(1)]))


@pytest.mark.parametrize("value", [object(), {1: 2}, (1, 2), np.float32(1.0)])
def test_positions_that_cannot_be_stored(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="What `save` is given must be numbers, texts"):
        checkpoint_of(tmp_path)[1].save(step=value)


def test_values_of_callbacks_as_json() -> None:
    value = {
        "a": [1, 2.5, None, True, "x", float("-inf")],
        "b": (np.float32(0.1), {3: [np.arange(2), np.ones((1, 1), "float16")]}),
    }
    arrays: dict[str, np.ndarray] = {}
    tree = json.loads(json.dumps(_trees.pack(value, "k", arrays)))
    again = _trees.unpack(tree, arrays)
    assert again["a"] == value["a"]
    number, inner = again["b"]
    assert (number, type(number)) == (np.float32(0.1), np.float32)
    assert inner[3][0].tolist() == [0, 1]
    assert inner[3][1].dtype == np.float16
    with pytest.raises(TypeError, match="of type object"):
        _trees.pack([object()], "k", {})
