"""A model of the user's own is trained, resumed and served as ours; its faults are one line."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.trainer.runs import SMOKE, same_weights

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.config import UsageError, parse  # noqa: E402
from trainer.model import networks, own  # noqa: E402

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
    common += ("--learning-rate", 0.002)
    for job, lengths in (("whole", (40,)), ("parts", (15, 40))):
        for steps in lengths:
            code, lines = task(*common, "--job-dir", tmp_path / job, "--steps", steps)
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
    assert own.image_size(model, stored)[0] == size


def test_the_sizes_name_models_of_keras() -> None:
    known = {name.lower() for name in dir(tf.keras.applications)}
    assert own._SIZES.keys() <= known


def test_a_run_says_the_size_that_it_picked(tmp_path: Path, task) -> None:
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path, "--steps", 1, "--export", "none")
    assert code == 0
    [said] = [line for line in lines if "image_size" in line and line["event"] == "chosen"]
    assert said["message"] == (
        "--image-size 32: small_cnn's, since the size of the pictures is not known"
    )
    assert json.loads((tmp_path / "config.json").read_text())["image_size"] == 32


class Hub:
    """A stand-in for keras_hub, with a preset "tiny" of 24 pixels."""

    asked: list[bool]

    def __init__(self) -> None:
        self.asked = []
        self.models = SimpleNamespace(Backbone=SimpleNamespace(from_preset=self.backbone))
        self.layers = SimpleNamespace(ImageConverter=SimpleNamespace(from_preset=self.converter))

    def converter(self, preset: str) -> object:
        if preset != "tiny":
            raise ValueError(f"Unknown preset identifier. Received: preset='{preset}'.")
        return SimpleNamespace(image_size=(24, 24), scale=[0.5, 1.0, 2.0], offset=[0.0, -1.0, 3.0])

    def backbone(self, preset: str, load_weights: bool, image_shape: tuple) -> object:
        import keras

        self.asked.append(load_weights)
        images = keras.Input(image_shape)
        start = "ones" if load_weights else "zeros"
        x = keras.layers.Conv2D(3, 1, kernel_initializer=start, name="only")(images)
        return keras.Model(images, x, name="backbone")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setitem(sys.modules, "keras_hub", made)
    return made


def test_a_preset_of_keras_hub_gets_a_head_its_scale_and_its_weights(hub: Hub) -> None:
    given = ["--records", "r", "--job-dir", "j", "--model", "keras_hub:tiny", "--image-size", "8"]
    config = parse([*given, "--weights", "preset"], {})
    network = networks.build(config, 3, "float32")
    assert network.output_shape == (None, 3)
    assert [variable.path for variable in network.weights][-1] == "head_logits/bias"
    pixels = np.full((1, 8, 8, 3), 10, np.uint8)
    inner = tf.keras.Model(network.input, network.get_layer("preprocess").output)
    np.testing.assert_allclose(inner(pixels)[0, 0, 0], [5.0, 9.0, 23.0])
    assert networks.depth(network).backbone_layers == 1
    assert hub.asked == [True]
    networks.build(config, 3, "float32", pretrain=False)
    networks.build(parse(given, {}), 3, "float32")
    assert hub.asked == [True, False, False], "an export and a fresh model load none"
    assert own.image_size("keras_hub:tiny", 500)[0] == 24


def test_a_preset_that_cannot_be_had_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as error:
        own.image_size("keras_hub:huge", 0)
    assert str(error.value) == (
        "--model keras_hub:huge: ValueError: Unknown preset identifier. Received: preset='huge'."
    )
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(UsageError, match=r"^--model keras_hub:tiny: keras_hub cannot be imported"):
        own.image_size("keras_hub:tiny", 0)
    for weights, message in (
        ("imagenet", "--weights imagenet: --model keras_hub:tiny has --weights preset"),
        ("w.h5", "--weights w.h5: --model keras_hub:tiny has --weights preset"),
    ):
        given = ["--records", "r", "--job-dir", "j", "--model", "keras_hub:tiny"]
        with pytest.raises(UsageError) as error:
            parse([*given, "--weights", weights], {})
        assert str(error.value) == message
    with pytest.raises(UsageError, match=r"^--weights preset: --model small_cnn is no preset"):
        parse(["--records", "r", "--job-dir", "j", "--weights", "preset"], {})
