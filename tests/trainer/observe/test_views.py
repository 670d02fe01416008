"""What TensorBoard shows beside scalars, as TensorBoard reads it; and all of it without TensorBoard
in the image."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.trainer.runs import Task, scalars
from trainer import evaluate
from trainer.observe import views

pytestmark = pytest.mark.tensorflow

GIVEN = ("--steps", 8, "--evaluate-every", 4, "--batch", 16, "--export", "none")


@pytest.fixture(scope="module", autouse=True)
def no_tensorboard() -> Iterator[None]:
    """As in the images: what tf.summary takes from TensorBoard is not there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorboard.summary.v2", None)
        yield


def events(folder: Path) -> Any:
    return EventAccumulator(str(folder), size_guidance={"images": 0, "histograms": 0}).Reload()


def test_graph_histograms_and_images_are_there_if_they_are_asked_for(
    task: Task, tmp_path: Path
) -> None:
    code, lines = task(*GIVEN, "--summaries", "graph,histograms,images", "--flip", "horizontal")
    assert (code, [line for line in lines if line["event"] == "observer"]) == (0, [])
    shown = events(tmp_path / "logs/train")
    operations = {node.op for node in shown.Graph().node}
    assert {"Conv2D", "MatMul"} <= operations
    weights = {tag for tag in shown.Tags()["histograms"] if tag.startswith("weights/")}
    assert "weights/head_logits/kernel" in weights and len(weights) > 4
    for tag in shown.Tags()["histograms"]:
        assert [event.step for event in shown.Histograms(tag)] == [4, 8]
    assert [event.step for event in shown.Images("training/image/0")] == [0]
    picture = tf.io.decode_png(shown.Images("training/image/0")[0].encoded_image_string)
    assert picture.shape == (8, 8, 3)
    assert [event.step for event in shown.Images("mistakes/image/0")] == [4, 8]
    found = scalars(tmp_path / "logs/train")
    shares = {tag: values for tag, values in found.items() if tag.startswith(("zeros/", "dead/"))}
    assert shares
    for values in shares.values():
        assert list(values) == [4, 8] and all(0 <= share <= 1 for share in values.values())


def test_without_the_option_there_is_none_and_an_evaluator_writes_its_metrics(
    task: Task, tmp_path: Path
) -> None:
    assert task(*GIVEN)[0] == 0
    found = events(tmp_path / "logs/train").Tags()
    assert (found["graph"], found["histograms"], found["images"]) == (False, [], [])
    assert evaluate.main(["--job-dir", str(tmp_path), "--follow"]) == 0
    assert list(scalars(tmp_path / "logs/evaluator")["accuracy"]) == [8]


def test_dead_units_and_zeros_of_each_layer_that_rectifies() -> None:
    """Two of four units never fire, the others on half of the pictures."""
    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(4, activation="relu", name="hidden")(inputs)
    inner = keras.Model(inputs, outputs)
    inner.layers[-1].set_weights([np.array([[1, -1, 0, 0], [0] * 4]), np.array([0, 0, -1, -1])])
    network = keras.Model(inputs, keras.layers.Dense(3, name="logits")(inner(inputs)))
    pictures = np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32)
    [(name, values)] = views.activations(network, pictures).items()
    assert name == "hidden"
    assert (views.zeros(values), views.dead(values)) == (0.75, 0.5)
