"""What practitioners add to a run: a run that stops and goes on ends with the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.loop.count_updates import tiny
from tests.trainer.runs import SMOKE, mirrored, same_weights, weights
from trainer.config import Config, UsageError, parse
from trainer.loop import inner, parameter_servers
from trainer.model import networks, optimization

pytestmark = pytest.mark.tensorflow

mirrored()  # Before TensorFlow touches the first device, or there is no second one.

COMMON = ("--records", SMOKE, "--image-size", 8, "--batch-size", 4)
QUICK = (*COMMON, "--export", "none", "--schedule", "constant")

RECIPES = {
    "ema": ("--ema", 0.9, "--evaluate-every", 2, "--accumulate", 2),
    "rare classes": (
        *("--class-weights", "balanced", "--sampling", "balanced"),
        *("--optimizer", "adamw", "--weight-decay", 0.01),
    ),
    "pictures": (
        *("--mixup", 0.2, "--cutmix", 1, "--label-smoothing", 0.1),
        "--trivial-augment",
    ),
    "copies": ("--rand-augment", 2, "--mixup", 0.2),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job folder of a run with nothing of it."""
    from trainer import task

    job = tmp_path_factory.mktemp("plain")
    assert task.main([str(one) for one in (*QUICK, "--job-dir", job, "--steps", 8)]) == 0
    return job


@pytest.mark.parametrize("options", RECIPES.values(), ids=list(RECIPES))
def test_a_run_that_goes_on_ends_with_the_bits_of_an_unbroken_one(
    options: tuple[object, ...], plain: Path, tmp_path: Path, task
) -> None:
    for job, lengths in (("whole", (8,)), ("parts", (3, 8))):
        for steps in lengths:
            code, lines = task(*QUICK, "--job-dir", tmp_path / job, "--steps", steps, *options)
            assert code == 0, lines[-1]
    same_weights(tmp_path / "whole", tmp_path / "parts", 8)
    before, other = weights(plain, 8), weights(tmp_path / "whole", 8)
    assert any(not np.array_equal(before[name], other.get(name)) for name in before), (
        "it does a thing"
    )


def config(*options: object) -> Config:
    given = ("--records", SMOKE, "--job-dir", "-", "--image-size", 8, "--batch-size", 8, *options)
    return parse([str(one) for one in given], {})


def batches() -> tf.data.Dataset:
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (32, 8, 8, 3)).astype(np.uint8)
    labels = random.integers(0, 2, 32)
    return tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(8)


@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy, mirrored])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_average_is_that_of_all_steps_and_the_model_has_it_while_it_is_evaluated(
    policy: str, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "build", tiny)
    strategy = strategy()
    trainer = inner.Trainer(strategy, config("--ema", 0.75), 2, policy)
    iterator = iter(strategy.experimental_distribute_dataset(batches()))
    trained = trainer.model.trainable_variables
    expected: list[np.ndarray] = []
    for _ in range(4):
        trainer.train(iterator, 1)
        now = [variable.numpy() for variable in trained]
        pairs = zip(expected or now, now, strict=True)
        expected = [0.75 * average + 0.25 * value for average, value in pairs]
    with trainer.averaged():
        for variable, value in zip(trained, expected, strict=True):
            np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-7)
    exported = trainer.weights()
    for variable, value, average in zip(trained, now, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
        np.testing.assert_allclose(exported[variable.path], average, rtol=1e-5, atol=1e-7)
    assert {variable.path for variable in trainer.model.variables} == exported.keys()


@pytest.mark.parametrize(
    "option",
    [("--ema", 0.9), ("--cache", "memory"), ("--weight-decay", 0.1), ("--optimizer", "adamw")],
)
def test_what_parameter_servers_do_not_do_is_refused(option: tuple[object, ...]) -> None:
    words = " ".join(map(str, option))
    with pytest.raises(UsageError, match=f"^{words} does not work with parameter servers"):
        parameter_servers.ParameterServers(None, config(*option), 2, "float32")


def moved(trainer: inner.Trainer, strategy: tf.distribute.Strategy) -> dict[str, np.ndarray]:
    """What one step changes, by the path of each trained variable."""
    before = {v.path: v.numpy() for v in trainer.model.trainable_variables}
    trainer.train(iter(strategy.experimental_distribute_dataset(batches())), 1)
    return {v.path: v.numpy() - before[v.path] for v in trainer.model.trainable_variables}


@pytest.mark.parametrize("one", [True, False], ids=["one device", "two"])
def test_a_batch_in_parts_moves_the_weights_as_the_whole_batch_does(one: bool) -> None:
    strategy = tf.distribute.get_strategy() if one else mirrored()
    found = []
    for parts in (1, 2):
        tf.keras.utils.set_random_seed(0)
        options = ("--accumulate", parts, "--optimizer", "sgd", "--momentum", 0)
        found.append(moved(inner.Trainer(strategy, config(*options), 2, "float32"), strategy))
    for path, whole in found[0].items():
        np.testing.assert_allclose(found[1][path], whole, rtol=1e-3, atol=1e-8, err_msg=path)
    assert any(np.abs(value).max() > 1e-6 for value in found[0].values())


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--accumulate 3: the batch of 8 of a replica does not"):
        inner.Trainer(tf.distribute.get_strategy(), config("--accumulate", 3), 2, "float32")


def test_a_rare_class_counts_in_the_loss_what_its_weight_says() -> None:
    labels, logits = tf.constant([0, 1]), tf.constant([[1.0, 2.0], [0.5, 0.0]])
    weights = np.array([0.5, 3.0], np.float32)
    plain = optimization.losses(config(), labels, logits).numpy()
    np.testing.assert_allclose(
        optimization.losses(config(), labels, logits, weights), plain * weights, rtol=1e-6
    )
    mixed = tf.constant([[0.25, 0.75], [1.0, 0.0]])
    np.testing.assert_allclose(
        optimization.losses(config(), mixed, logits, weights),
        optimization.losses(config(), mixed, logits) * [0.25 * 0.5 + 0.75 * 3, 0.5],
        rtol=1e-6,
    )
