"""What XLA needs to know of tfring, in a world of one."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import _xla, _xla_calls, _xla_keras, _xla_module, _xla_probe
from tfring._xla_module import Result, Tensor

pytestmark = pytest.mark.usefixtures("world")


def test_this_tensorflow_can() -> None:
    assert _xla.unusable() == ""


def test_the_probe_finds_a_trace_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow.python.ops import control_flow_ops

    of = control_flow_ops.XLAControlFlowContext
    monkeypatch.setattr(of, "RequiresUniqueFunctionRetracing", lambda _: False)
    assert "traced for XLA" in _xla_probe.failure()


def test_the_probe_finds_an_error_without_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_xla, "_KINDS", {})
    assert "changed its class to InternalError" in _xla_probe.failure()


def test_an_error_that_is_not_ours_stays_as_it_is() -> None:
    error = tf.errors.InternalError(None, None, "something else [tfring]")
    assert type(error) is tf.errors.InternalError
    assert error.message == "something else [tfring]"


def test_a_function_knows_whether_xla_compiles_it() -> None:
    seen = []

    def look() -> tf.Tensor:
        seen.append(_xla.context() is not None)
        return tf.constant(1)

    look()
    tf.function(look)()
    tf.function(look, jit_compile=True)()
    tf.function(
        lambda: tf.while_loop(lambda i: i < 1, lambda i: i + look(), [0]), jit_compile=True
    )()
    assert seen == [False, False, True, True]


def test_nothing_is_folded_merged_or_dropped() -> None:
    before = hvd.stats().collectives

    @tf.function(jit_compile=True)
    def function() -> tf.Tensor:
        hvd.allreduce(tf.constant(1.0), name="unused")
        return hvd.allreduce(tf.constant(1.0), name="a") + hvd.allreduce(tf.constant(1.0), name="b")

    for _ in range(3):
        assert float(function()) == 2.0
    assert hvd.stats().collectives - before == 9


def test_names_may_be_any_text() -> None:
    name = 'quotes " and \\ lines\n and ü'
    result = tf.function(lambda: hvd.allreduce(2.0, name=name), jit_compile=True)()
    assert float(result) == 2.0


def test_after_shutdown_a_compiled_function_says_so() -> None:
    function = tf.function(lambda x: hvd.allreduce(x), jit_compile=True)
    function(tf.ones([2]))
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="init"):
        function(tf.ones([2]))
    hvd.init()
    np.testing.assert_array_equal(function(tf.ones([2])), [1, 1])


@pytest.mark.parametrize("name", _xla._KINDS)
@pytest.mark.parametrize(
    "copied",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_an_error_can_be_sent_to_another_process(name: str, copied: Callable[[Any], Any]) -> None:
    error = tf.errors.InternalError(None, None, f"CustomCall failed: gone [tfring: {name}]")
    other = copied(error)
    assert type(other) is _xla._KINDS[name]
    assert (other.message, other.error_code) == (error.message, error.error_code) != ("", 0)
    assert isinstance(error, tf.errors.InternalError)


def test_an_error_of_a_compiled_function_can_be_sent_to_another_process() -> None:
    @tf.function(jit_compile=True)
    def fail() -> tf.Tensor:
        _xla_calls.probe(fails=True)
        return tf.constant(1)

    with pytest.raises(tf.errors.AbortedError, match="a probe's error") as caught:
        fail()
    other = pickle.loads(pickle.dumps(caught.value))
    assert (type(other), str(other)) == (tf.errors.AbortedError, str(caught.value))


def test_an_internal_error_of_others_can_be_sent_to_another_process() -> None:
    other = pickle.loads(pickle.dumps(tf.errors.InternalError(None, None, "else")))
    assert (type(other), other.message) == (tf.errors.InternalError, "else")


_TWO_DEVICES = """
import tensorflow as tf, tfring as hvd
cpu, *_ = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
hvd.init()

def reduced(x):
    with tf.device(inner):
        return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, hvd.allreduce(x)), [0, x])[1]

def called(x):
    with tf.device(outer):
        return tf.function(reduced, jit_compile=True, autograph=False)(x)

for outer, inner in [("CPU:0", None), ("CPU:1", None), ("CPU:1", "CPU:0"), (None, "CPU:1")]:
    for run in (called, tf.function(called, autograph=False)):
        assert float(run(tf.constant(3.0))) == 3.0, (outer, inner)
"""


def test_functions_on_several_devices() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", _TWO_DEVICES], cwd=folder, timeout=120, check=True)


@pytest.mark.parametrize("nested", [False, True])
def test_the_condition_of_a_loop_is_a_clear_error(nested: bool) -> None:
    def small(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x) < 9.0

    condition = tf.function(small) if nested else small

    def loop(x: tf.Tensor) -> tf.Tensor:
        (result,) = tf.while_loop(condition, lambda x: (x + 1.0,), [x])
        return result

    assert float(tf.function(loop, autograph=False)(tf.constant(1.0))) == 9.0
    compiled = tf.function(loop, jit_compile=True, autograph=False)
    with pytest.raises(NotImplementedError, match="in the condition of a loop. Call it in the"):
        compiled(tf.constant(1.0))


def test_works_in_place_what_is_not_needed_otherwise() -> None:
    function = tf.function(lambda x: hvd.allreduce(x * 2.0), jit_compile=True)
    ir = function.experimental_get_compiler_ir(tf.ones([8]))(stage="optimized_hlo")
    assert "output_to_operand_aliasing={{0}: (1, {})" in ir
    assert "copy(" not in ir.replace("copy-", "")


def test_module_of_known_shapes() -> None:
    operands = [Tensor(tf.float32, (2, 3)), Tensor(tf.bool, ())]
    text = _xla_module.text(operands, [Result(x, i) for i, x in enumerate(operands)], "1 2")
    assert "%a0: tensor<2x3xf32>, %a1: tensor<i1>, %token: tensor<f32>" in text
    assert "uses_shape_polymorphism" not in text


def test_module_of_unknown_shapes() -> None:
    operand = Tensor(tf.int8, (None, 3))
    text = _xla_module.text([operand], [Result(operand, 0, times=4)], "1 2")
    assert "tensor<?x3xi8>" in text
    assert "uses_shape_polymorphism" in text
    assert "stablehlo.multiply" in text


def test_an_unknown_number_of_dimensions_is_a_clear_error() -> None:
    signature = [tf.TensorSpec(None)]
    function = tf.function(hvd.allreduce, jit_compile=True, input_signature=signature)
    with pytest.raises(ValueError, match="known number of dimensions"):
        function(tf.ones([2]))


@pytest.fixture
def cannot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_xla, "unusable", lambda: "a hook is missing")
    _xla_keras._warn.cache_clear()
    yield
    _xla_keras._warn.cache_clear()


def model(**arguments: Any) -> Any:
    made = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse", **arguments)
    return made


@pytest.mark.usefixtures("cannot")
def test_compile_falls_back_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="a hook is missing") as caught:
        made = [model(jit_compile=True) for _ in range(2)]
        assert not any(m.jit_compile for m in made)
    assert len(caught) == 1
    made[0].fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0)


@pytest.mark.usefixtures("cannot")
def test_a_function_says_why_it_cannot_be_compiled() -> None:
    function = tf.function(lambda: hvd.allreduce(1.0), jit_compile=True)
    with pytest.raises(RuntimeError, match="a hook is missing.*jit_compile=False"):
        function()


@pytest.mark.usefixtures("cannot")
def test_a_model_without_collectives_is_left_alone() -> None:
    made = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.compile("sgd", "mse", jit_compile=True)
    assert made.jit_compile


class OwnStep(keras.Model):
    """Reduces its gradients itself."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class OwnLoss(keras.Sequential):
    """Has a collective in its loss."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return hvd.allreduce(super().compute_loss(*args, **kwargs))


def _normalized() -> Any:
    """A layer with collectives, two models down."""
    inner = keras.Sequential([keras.Input([1]), hvd.SyncBatchNormalization()])
    middle = keras.Sequential([keras.Input([1]), inner])
    return keras.Sequential([keras.Input([1]), middle, keras.layers.Dense(1)])


@pytest.mark.usefixtures("cannot")
@pytest.mark.parametrize(
    "make",
    [_normalized, OwnStep, lambda: OwnLoss([keras.Input([1]), keras.layers.Dense(1)])],
    ids=["normalization", "step", "loss"],
)
def test_falls_back_for_a_model_with_collectives_of_its_own(make: Callable[[], Any]) -> None:
    made = make()
    made.compile("sgd", "mse", jit_compile=True)
    with pytest.warns(UserWarning, match="a hook is missing") as caught:
        made.fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0)
    assert len(caught) == 1
    assert not made.jit_compile


@pytest.mark.usefixtures("cannot")
def test_before_init_a_step_of_ones_own_is_left_alone() -> None:
    hvd.shutdown()
    made = OwnStep()
    made.compile("sgd", "mse", jit_compile=True)
    assert made.jit_compile


@pytest.mark.parametrize("usable", [True, False])
def test_auto_with_a_gpu(
    usable: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not usable:
        request.getfixturevalue("cannot")
    listed = tf.config.list_physical_devices
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(
        tf.config,
        "list_physical_devices",
        lambda kind=None: listed(kind) + ([gpu] if kind in (None, "GPU") else []),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = model(jit_compile="auto")
    assert made.jit_compile == usable
    made.fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0)
