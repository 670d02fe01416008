"""Programs that are compiled in the image for GPUs that are not here: by XLA's plugin and ptxas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from builder.core.project import tag_of
from builder.engine import Engine
from builder.facts import devices
from builder.prove import smoke
from builder.prove.checks import compile as compiling
from builder.prove.image import NotThereError
from builder.prove.session import JOB, Sandbox
from tests import ROOT, commands

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.long]

Compile = Callable[..., tuple[list[str], Mapping[str, Any]]]

KERAS = """
import keras, numpy as np, tensorflow as tf
keras.mixed_precision.set_global_policy("{policy}")
layers = keras.layers
model = keras.Sequential(
    [layers.Input((32, 32, 3)), layers.Conv2D(16, 3), layers.BatchNormalization(), layers.ReLU(),
     layers.Flatten(), layers.Dense(10, dtype="float32")]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True), metrics=["accuracy"])
"""
FIT = """
model.fit(np.ones((96, 32, 32, 3), "float32"), np.zeros(96, "int64"), batch_size=32, verbose=0)
"""
STEP = """
import sys
import tensorflow as tf
tf.config.set_soft_device_placement(True)
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)

weights = tf.Variable(tf.ones((256, 256)))

def step(x):
    with tf.GradientTape() as tape:
        loss = loss_of(x)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss

jitted = tf.function(step, jit_compile=True)
x = tf.ones((48, 256))
"""
FITS = """
def loss_of(x):
    return tf.reduce_sum(tf.sin(x @ weights))
"""
TOO_LARGE = """
def loss_of(x):
    square = tf.matmul(x, x, transpose_a=True)
    return tf.reduce_sum(tf.sin(tf.sin(square))) * tf.reduce_sum(weights)
from training_image_compile import take
take({function}, [tf.TensorSpec((48, 131072), tf.float32)])
"""
LARGE_PICTURE = """
def loss_of(x):
    return tf.reduce_sum(tf.nn.conv2d(x, weights, 1, "SAME"))
from training_image_compile import take
take({function}, [tf.TensorSpec((1, 2**20, 2**20, 4), tf.float32)])
"""
TEXT = """
def loss_of(x):
    tf.strings.to_number(tf.strings.as_string(tf.reduce_sum(x)))
    return tf.reduce_sum(x @ weights) * tf.strings.to_number(tf.strings.as_string(x[0, 0]))
jitted(x)
"""
CHANGES = """
def loss_of(x):
    return tf.reduce_sum(tf.reduce_sum(x, 1) @ weights)
changing = tf.function(step, jit_compile=True, input_signature=[tf.TensorSpec((48, None, 256))])
for length in (3, 4, 5):
    changing(tf.ones((48, length, 256)))
"""


@pytest.fixture(scope="module")
def sandbox(engine: Engine) -> Iterator[Sandbox]:
    """Containers of the image of a V100."""
    commands.builder("build", "v100", check=True)
    image = engine.client.images.get(f"training:{tag_of(ROOT, 'v100')}")
    with Sandbox(engine.client, image) as sandbox:
        sandbox.fill(smoke.RECORDS)
        yield sandbox


@pytest.fixture
def compiled(sandbox: Sandbox) -> Compile:
    """Compiles a program, else the image's own: the problems, and what was seen."""

    def run(program: str = "", device: str = "V100") -> Any:
        chosen = devices.devices()[device]
        target = compiling.CompileTarget(chosen, "tensorflow", cudnn="9.10.2")
        entrypoint = ["python", "-c", program] if program else None
        folder = f"{JOB}/{len(sandbox.log)}"  # a new one for each run
        done = target.compile(sandbox, compiling.arguments_of(folder), entrypoint)
        problems, seen = compiling.judge(done, chosen)
        return [problem.message for problem in problems], seen

    return run


def test_keras_fit_by_default_is_compiled_by_xla_where_there_is_a_gpu(compiled: Compile) -> None:
    problems, seen = compiled(KERAS.format(policy="mixed_float16") + FIT)
    assert problems == []
    assert not seen["uncompiled"] and seen["step"] == "one_step_on_data"
    assert set(seen["calls"]["__cudnn$convBackwardFilter"]) == {"float16"}
    forward = 2 * 32 * (30 * 30 * 16 * 27 + 30 * 30 * 16 * 10)
    assert 2 * forward < seen["flops"] <= 3 * forward, "nobody needs the pictures' gradient"
    assert seen["note"].startswith(
        "one_step_on_data compiles for V100; needs less than 0.1 of 14.7"
    )
    assert "; by jax-cuda12-pjrt 0.12.0.1; cuDNN 9.10.2 has plans for its conv" in seen["note"]


def test_our_trainers_step_is_asked_as_a_v100_would_take_it(compiled: Compile) -> None:
    problems, seen = compiled()
    assert problems == []
    assert seen["step"] == "_train_step" and "float16" in seen["types"]
    assert "which the program does not use: without it a step may need more; cuDNN" in seen["note"]


@pytest.mark.parametrize("device", ["V100", "H100"])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("jitted", [True, False])
def test_the_images_own_cudnn_has_plans_for_keras_convolutions(
    compiled: Compile, device: str, policy: str, jitted: bool
) -> None:
    program = KERAS.replace("metrics=", f"jit_compile={jitted}, metrics=").format(policy=policy)
    problems, seen = compiled(program + FIT, device)
    assert problems == [] and seen["uncompiled"] is not jitted
    assert seen["remark"] == "cuDNN 9.10.2 has plans for its convolutions (2)"


@pytest.mark.parametrize(("function", "line"), [("jitted", ""), ("step", "train.py:20: ")])
def test_a_convolution_without_a_plan_is_refused(
    compiled: Compile, function: str, line: str
) -> None:
    step = STEP.replace("tf.ones((256, 256))", "tf.ones((3, 3, 4, 4))")
    program = step + LARGE_PICTURE.format(function=function)
    problems, _ = compiled(f"exec(compile({program!r}, '/app/train.py', 'exec'))")
    size = "1 x 4 x 1048576 x 1048576 by 4 x 4 x 3 x 3"
    said = f"cuDNN 9.10.2 has no plan for a convolution in float32 (forward) of {size}"
    assert problems == [f"step does not compile for V100: {line}{said}"]


@pytest.mark.parametrize("device", ["T4", "H100"])
def test_a_function_that_a_program_lets_xla_compile(compiled: Compile, device: str) -> None:
    problems, seen = compiled(STEP + FITS + "jitted(x)", device)
    assert problems == [] and seen["step"] == "step" and seen["device"] == device
    assert seen["arguments"] == seen["aliased"] + 48 * 256 * 4, "the weights take their own place"


def test_what_does_not_fit_is_refused_with_numbers(compiled: Compile) -> None:
    (problem,), seen = compiled(STEP + TOO_LARGE.format(function="jitted"))
    assert problem.startswith("step does not fit V100: it needs ")
    assert problem.endswith(" of 15.8 GiB, of which a program gets 14.7")
    assert seen["temporaries"] >= 131072**2 * 4
    (problem,), _seen = compiled(STEP + TOO_LARGE.format(function="step"))
    assert problem.endswith("which the program does not use: without it a step may need more")


def test_a_type_that_the_card_has_not_becomes_another(compiled: Compile) -> None:
    problems, seen = compiled(KERAS.format(policy="mixed_bfloat16") + FIT)
    assert problems == [] and "; bfloat16 becomes float32 there; by " in seen["note"]
    assert "bfloat16" in compiled(KERAS.format(policy="mixed_bfloat16") + FIT, "H100")[1]["types"]


def test_an_operation_that_xla_has_not_is_refused(compiled: Compile) -> None:
    (problem,), _seen = compiled(STEP + TEXT)
    assert problem.startswith("step does not compile for V100: Detected unsupported operations")
    with pytest.raises(NotThereError, match="not known: step could not be compiled here: "):
        compiled(STEP + TEXT.replace("jitted(x)", "tf.function(step)(x)"))


def test_a_step_that_changes_its_shape_is_not_known(compiled: Compile) -> None:
    with pytest.raises(NotThereError, match=r"its shape changes \(\(48, None, 256\)\), and XLA"):
        compiled(STEP + CHANGES)


def test_a_program_without_a_step_was_not_asked(compiled: Compile) -> None:
    with pytest.raises(NotThereError, match="not asked: "):
        compiled(STEP + FITS + "tf.function(loss_of)(x); step(x)")


def test_the_proof_of_a_target_says_what_its_step_needs(sandbox: Sandbox) -> None:
    assert sandbox
    done = commands.builder("prove", "v100", "--json", check=True)
    (check,) = (one for one in json.loads(done.stdout)["checks"] if one["check"] == "compile")
    assert check["status"] == "passed"
    assert check["note"].startswith("_train_step compiles for V100; needs ")
