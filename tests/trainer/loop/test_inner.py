"""The inner loop: replicas agree, and their gradients are clipped together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.loop.count_updates import tiny
from tests.trainer.runs import SMOKE, mirrored
from trainer.config import Config, parse, sized
from trainer.loop import inner
from trainer.model import networks

pytestmark = pytest.mark.tensorflow

mirrored()  # Before TensorFlow touches the first device, or there is no second one.


def config(*options: object) -> Config:
    arguments = ["--records", str(SMOKE), "--job-dir", "-", "--image-size", "8"]
    return parse([*arguments, "--batch-size", "8", *map(str, options)], {})


def batches(count: int = 1) -> object:
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (8 * count, 8, 8, 3)).astype(np.uint8)
    labels = random.integers(0, 2, 8 * count)
    return tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(8)


def test_replicas_agree_on_batch_norm_s_statistics_before_they_are_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(networks, "build", tiny)
    strategy = mirrored()
    trainer = inner.Trainer(strategy, config(), 2, "float32")
    distributed = iter(strategy.experimental_distribute_dataset(batches(4)))
    trainer.train(distributed, 3)
    [mean, _] = [v for v in trainer.model.non_trainable_variables if "moving" in v.path]

    def each() -> list[np.ndarray]:
        return [value.numpy() for value in strategy.experimental_local_results(mean.value)]

    first, second = each()
    assert not np.array_equal(first, second), "each saw other examples"
    trainer.synchronise()
    agreed, also = each()
    np.testing.assert_array_equal(agreed, also)
    np.testing.assert_allclose(agreed, (first + second) / 2, rtol=1e-6)
    [saved] = [value for name, value in trainer.snapshot().items() if name.endswith(mean.path)]
    np.testing.assert_array_equal(saved.numpy(), agreed)


def normed(image_size: int, classes: int) -> keras.Model:
    return tiny()


def test_synchronized_batch_norm_sees_the_pictures_of_all_replicas() -> None:
    means = []
    for kind in ("trained", "synchronized"):
        chosen = config("--model", f"{__name__}:normed", "--batch-norm", kind)
        strategy = mirrored()
        trainer = inner.Trainer(strategy, chosen, 2, "float32")
        trainer.train(iter(strategy.experimental_distribute_dataset(batches())), 1)
        [mean] = [v for v in trainer.model.variables if v.path.endswith("moving_mean")]
        means.append([v.numpy() for v in strategy.experimental_local_results(mean.value)])
    apart, together = means
    assert not np.array_equal(*apart)
    np.testing.assert_allclose(*together, rtol=1e-6)
    np.testing.assert_allclose(together[0], np.mean(apart, axis=0), rtol=1e-5)


def test_what_a_step_reports_and_clips_is_the_gradient_of_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(networks, "build", tiny)
    found = []
    for strategy in (tf.distribute.get_strategy(), mirrored()):
        tf.keras.utils.set_random_seed(0)
        options = config("--optimizer", "sgd", "--momentum", 0, "--clip-norm", 0.01)
        trainer = inner.Trainer(strategy, options, 2, "float32")
        trainer.model.get_layer("norm").trainable = False  # which sees each replica's part alone
        trainer.use_learning_rate(1.0)
        before = trainer.model.get_layer("logits").kernel.numpy()
        metrics = trainer.train(iter(strategy.experimental_distribute_dataset(batches())), 1)
        moved = np.linalg.norm(trainer.model.get_layer("logits").kernel.numpy() - before)
        assert moved <= 0.01 * options.learning_rate * 1.001
        found.append([*metrics.values()][:4])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)
    assert found[0][2][0] > 0.01, "there was something to clip"


def test_epochs_become_steps() -> None:
    assert sized(config("--epochs", 2.5), records=1000).steps == 312
    assert sized(config("--steps", 7), records=1000).steps == 7
