"""XLA: the same losses as without it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.runs import mirrored
from trainer.config import UsageError, parse
from trainer.loop import inner
from trainer.model import networks

pytestmark = pytest.mark.tensorflow

mirrored()  # Before TensorFlow touches the first device, or there is no second one.


def network(classes: int = 2) -> keras.Model:
    """With BatchNorm's statistics, and a dropout that drops next to nothing: XLA makes other random
    numbers of the same seed."""
    images = keras.Input((8, 8, 3), dtype="uint8", name="images")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images))
    x = keras.layers.Dropout(1e-7, seed=3)(keras.layers.BatchNormalization(name="norm")(x))
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


def test_a_compiled_step_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "build", lambda *_, **__: network())
    plain, expected, state = trained()
    assert not compiled(plain)
    trainer, losses, moved = trained("--xla")
    assert compiled(trainer)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    same(moved, state)


def test_several_replicas_are_refused() -> None:
    config = parse(["--records", "-", "--job-dir", "-", "--xla"], {})
    with pytest.raises(UsageError, match="--xla does not work with 2 replicas"):
        inner.Trainer(mirrored(), config, 2, "float32")
