"""A model of the user's own is trained, resumed and served as ours; its faults are one line."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.runs import SMOKE, same_weights
from trainer.config import UsageError, parse
from trainer.model import backbones, networks

pytestmark = pytest.mark.tensorflow

PROGRAM = """
import keras

def tiny(image_size, classes):
    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.Rescaling(1 / 255)(images)
    x = keras.layers.Conv2D(8, 3, activation="relu", trainable=False, name="fixed")(x)
    x = keras.layers.Flatten()(keras.layers.BatchNormalization()(x))
    return keras.Model(images, keras.layers.Dense(classes)(x), name="tiny")

def sure(image_size, classes):
    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.Flatten()(images)
    return keras.Model(images, keras.layers.Dense(classes, "softmax")(x))

def narrow(image_size, classes):
    return tiny(image_size, classes - 1)

def broken(image_size, classes):
    raise ValueError("not today")

nothing = 3
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)


def test_it_is_trained_resumed_and_served(tmp_path: Path, task) -> None:
    common = ("--records", SMOKE, "--model", "my_models:tiny", "--image-size", 8)
    common += ("--learning-rate", 0.002, "--schedule", "constant")
    for job, steps, exported in (
        ("parts", 15, "none"),
        ("parts", 40, "none"),
        ("whole", 40, "final"),
    ):
        given = ("--job-dir", tmp_path / job, "--steps", steps, "--export", exported)
        code, lines = task(*common, *given)
        assert code == 0, lines[-1]
    same_weights(tmp_path / "whole", tmp_path / "parts", 40)
    assert json.loads((tmp_path / "whole/summary.json").read_text())["model"]["name"] == "tiny"
    found = next(line for line in lines if line["event"] == "model")
    assert found["parameters"] - found["trained_parameters"] == 3 * 3 * 3 * 8 + 8 + 16
    assert lines[-1]["accuracy"] > 0.5
    served = tf.saved_model.load(str(tmp_path / "whole/model")).signatures["tensors"]
    images = tf.constant(np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3)), tf.uint8)
    assert served(images=images)["probabilities"].shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("my_models:missing", "my_models has no function 'missing'"),
        ("my_models:nothing", "my_models has no function 'nothing'"),
        ("my_models:broken", "ValueError: not today ("),
        ("my_models:narrow", "its model returns (None, 2), not a logit for each of 3 classes"),
        ("my_models:sure", "its last layer ends with an activation; return the logits"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(name: str, message: str) -> None:
    given = ["--records", "r", "--job-dir", "j", "--model", name, "--image-size", "8"]
    with pytest.raises(UsageError) as error:
        networks.build(parse(given, {}), 3, "float32")
    assert str(error.value).startswith(f"--model {name}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "stored", "size"),
    [
        ("small_cnn", 0, 32),
        ("small_cnn", 8, 32),
        ("small_cnn", 61, 64),
        ("small_cnn", 500, 96),
        ("DenseNet121", 500, 224),
        ("xception", 0, 299),
        ("EfficientNetB3", 0, 300),
        ("my_models:tiny", 8, 224),
    ],
)
def test_the_image_size_is_the_model_s_unless_it_is_given(
    model: str, stored: int, size: int
) -> None:
    assert backbones.image_size(model, stored)[0] == size


def test_the_sizes_name_models_of_keras() -> None:
    known = {name.lower() for name in dir(tf.keras.applications)}
    assert backbones._SIZES.keys() <= known
