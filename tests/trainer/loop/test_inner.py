"""The inner loop: replicas agree, gradients are clipped and summed, averages are kept; XLA."""

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.loop.count_updates import tiny
from tests.trainer.runs import SMOKE, mirrored
from trainer.config import Config, UsageError, parse, sized
from trainer.input import splits
from trainer.loop import inner
from trainer.model import networks, optimization

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


@pytest.mark.parametrize(
    ("policy", "strategy"),
    [
        ("float32", tf.distribute.get_strategy),
        ("float32", mirrored),
        ("mixed_float16", tf.distribute.get_strategy),
    ],
)
def test_the_average_is_that_of_the_last_steps_and_the_model_has_it_while_it_is_evaluated(
    policy: str, strategy: Callable[[], tf.distribute.Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "build", tiny)
    trainer = inner.Trainer(strategy(), config("--ema", 0.25), 2, policy)
    iterator = iter(trainer.strategy.experimental_distribute_dataset(batches(8)))
    trained = trainer.model.trainable_variables
    states = [v for v in trainer.model.non_trainable_variables if "moving" in v.path]
    followed = [*trained, *states]
    assert len(states) == 2
    expected: list[np.ndarray] = []
    for step in range(1, 7):
        trainer.train(iterator, 1)
        trainer.synchronise()
        now = [variable.numpy() for variable in followed]
        share = 0.0 if step == 1 else min(0.25, step / (9 + step))
        pairs = zip(expected or now, now, strict=True)
        expected = [share * average + (1 - share) * value for average, value in pairs]
    with trainer.averaged():
        for variable, value in zip(followed, expected, strict=True):
            np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-6)
    exported = trainer.weights()
    for variable, value, average in zip(followed, now, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
        np.testing.assert_allclose(exported[variable.path], average, rtol=1e-4, atol=1e-6)
    assert {variable.path for variable in trainer.model.variables} == exported.keys()


def test_of_a_short_run_the_average_is_not_of_its_first_steps() -> None:
    """As tf.train.ExponentialMovingAverage with num_updates: --ema is what the share grows to."""
    steps = {1: 0.0, 2: 2 / 11, 91: 0.91, 10**6: 0.9999}
    assert [float(optimization.kept(0.9999, n)) for n in steps] == pytest.approx([*steps.values()])


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


def compiled(trainer: inner.Trainer) -> bool:
    """Does the training step's graph have a function that XLA must compile?"""
    [step] = trainer._train._list_all_concrete_functions_for_serialization()
    library = step.graph.as_graph_def().library.function
    return any(function.attr["_XlaMustCompile"].b for function in library)


def test_a_compiled_step_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "build", tiny)
    found = []
    for options in ((), ("--xla",)):
        tf.keras.utils.set_random_seed(0)
        trainer = inner.Trainer(tf.distribute.get_strategy(), config(*options), 2, "float32")
        iterator = iter(batches(6))
        losses = np.concatenate([trainer.train(iterator, 3)["loss"] for _ in range(2)])
        found.append([losses, *(v.numpy() for v in trainer.model.non_trainable_variables)])
        assert compiled(trainer) is bool(options)
    for plain, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-4, atol=1e-7)
    with pytest.raises(UsageError, match="--xla does not work with 2 replicas"):
        inner.Trainer(mirrored(), config("--xla"), 2, "float32")


@pytest.mark.parametrize(("kept", "batches"), [(0, 0), (1 << 20, 0), (1 << 20, 3)])
def test_pictures_of_small_sets_are_decoded_for_the_first_evaluation_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, batches: int
) -> None:
    shutil.copytree(SMOKE, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(inner.Evaluation, "KEPT", kept)
    options = config("--evaluate-batches", batches)
    network = networks.build(options, 10, "float32")
    shards = splits.find(str(tmp_path), "validation")
    evaluation = inner.Evaluation(tf.distribute.get_strategy(), network, options, 10, shards)

    def measured() -> dict:
        return {name: n for name, n in evaluation.run().items() if name != "seconds"}

    if batches == 0:
        with pytest.raises(KeyboardInterrupt):  # After a part, the next one begins anew.
            evaluation.run(Mock(side_effect=KeyboardInterrupt))
    first = measured()
    assert first["examples"] == (24 if batches else 200)
    Path(shards[0].path).unlink()
    if kept:
        assert measured() == first == measured()
    else:
        with pytest.raises(tf.errors.NotFoundError):
            measured()


def test_epochs_become_steps() -> None:
    assert sized(config("--epochs", 2.5), records=1000).steps == 312
    assert sized(config("--steps", 7), records=1000).steps == 7
