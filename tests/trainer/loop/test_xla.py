"""XLA: the same losses if it works; a warning and the same losses if it does not."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.trainer.runs import SMOKE, mirrored

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.config import parse  # noqa: E402
from trainer.loop import inner  # noqa: E402
from trainer.model import networks  # noqa: E402

mirrored()  # Before TensorFlow touches the first device, or there is no second one.


class Foreign(keras.layers.Layer):
    """A layer that runs Python code, which XLA cannot compile."""

    def call(self, x: Any) -> Any:
        same = tf.py_function(lambda value: value, [x], tf.float32)
        return x + tf.stop_gradient(tf.ensure_shape(same, x.shape) - x)


def network(classes: int = 2, foreign: bool = False) -> keras.Model:
    """With BatchNorm's statistics, and a dropout that drops next to nothing: XLA makes other random
    numbers of the same seed."""
    images = keras.Input((8, 8, 3), dtype="uint8", name="images")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images))
    x = keras.layers.Dropout(1e-7, seed=3)(keras.layers.BatchNormalization(name="norm")(x))
    x = Foreign()(x) if foreign else x
    return keras.Model(images, keras.layers.Dense(classes, name="logits")(x), name="small")


def trained(*options: str) -> tuple[inner.Trainer, np.ndarray, list[np.ndarray]]:
    """After 6 steps: the trainer, the losses, and the variables that are not trained."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (48, 8, 8, 3)).astype(np.uint8)
    dataset = tf.data.Dataset.from_tensor_slices((images, random.integers(0, 2, 48)))
    batches = iter(dataset.batch(8, drop_remainder=True))  # six of them, and no more
    tf.keras.utils.set_random_seed(0)
    chosen = ["--records", "-", "--job-dir", "-", "--image-size", "8", "--batch-size", "8"]
    config = parse([*chosen, "--learning-rate", "0.01", *options], {})
    trainer = inner.Trainer(tf.distribute.get_strategy(), config, 2, "float32")
    losses = np.concatenate([trainer.train(batches, 3)["loss"] for _ in range(2)])
    return trainer, losses, [v.numpy() for v in trainer.model.non_trainable_variables]


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(expected) == 3, "mean, variance, seed"
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def compiled(trainer: inner.Trainer) -> bool:
    """Does the training step's graph have a function that XLA must compile?"""
    [step] = trainer._train._list_all_concrete_functions_for_serialization()
    library = step.graph.as_graph_def().library.function
    return any(function.attr["_XlaMustCompile"].b for function in library)


def said(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_compiled_step_learns_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(networks, "build", lambda *_, **__: network())
    plain, expected, state = trained("--xla", "off")
    assert (compiled(plain), said(capsys)) == (False, [])
    trainer, losses, moved = trained("--xla", "on")
    assert compiled(trainer)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    same(moved, state)
    [line] = said(capsys)
    assert (line["event"], line["severity"], line["compiled"]) == ("xla", "INFO", True)


def test_what_xla_cannot_compile_is_trained_without_it(
    tmp_path: Path, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed try loses no batch."""
    monkeypatch.setattr(networks, "build", lambda *_, **__: network(10, foreign=True))
    options = ("--records", SMOKE, "--image-size", 8, "--steps", 9, "--steps-per-loop", 3)
    options += ("--histograms-every", 0, "--export", "none")
    found = []
    for xla in ("off", "on"):
        code, lines = task(*options, "--xla", xla, "--job-dir", tmp_path / xla)
        assert code == 0
        found.append([line["loss"] for line in lines if line["event"] in ("step", "evaluated")])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    [line] = [line for line in lines if line["event"] == "xla"]
    assert (line["severity"], line["compiled"]) == ("WARNING", False)
    assert line["message"].startswith("--xla on is left off: it does not work for small here: ")
    assert "PyFunc" in line["message"]


def test_several_replicas_are_not_compiled_and_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(networks, "build", lambda *_, **__: network())
    config = parse(["--records", "-", "--job-dir", "-", "--xla", "on"], {})
    assert not inner.Trainer(mirrored(), config, 2, "float32").xla
    [line] = said(capsys)
    assert line["severity"] == "WARNING"
    assert line["message"] == "--xla on is left off: it does not work with 2 replicas"
