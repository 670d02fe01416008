"""What practitioners add to a run: a run that stops and goes on ends with the same bits."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.trainer.loop.count_updates import tiny
from tests.trainer.runs import SMOKE, mirrored, same_weights, weights

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.config import Config, UsageError, parse  # noqa: E402
from trainer.input import splits  # noqa: E402
from trainer.job.checkpoints import Checkpoints  # noqa: E402
from trainer.loop import evaluator, inner, parameter_servers  # noqa: E402
from trainer.model import networks  # noqa: E402

COMMON = ("--records", SMOKE, "--image-size", 8, "--batch-size", 4, "--histograms-every", 0)
QUICK = (*COMMON, "--activations-every", 0, "--graph", "false", "--export", "none")

RECIPES = {
    "ema": ("--ema", 0.9, "--evaluate-every", 2),
    "mixing": ("--mixup", 0.2, "--cutmix", 1, "--label-smoothing", 0.1),
}


@pytest.mark.parametrize("options", RECIPES.values(), ids=list(RECIPES))
def test_a_run_that_goes_on_ends_with_the_bits_of_an_unbroken_one(
    options: tuple[object, ...], tmp_path: Path, task
) -> None:
    for job, lengths in (("plain", (8,)), ("whole", (8,)), ("parts", (3, 8))):
        with_it = () if job == "plain" else options
        for steps in lengths:
            code, lines = task(*QUICK, "--job-dir", tmp_path / job, "--steps", steps, *with_it)
            assert code == 0, lines[-1]
    same_weights(tmp_path / "whole", tmp_path / "parts", 8)
    plain, other = weights(tmp_path / "plain", 8), weights(tmp_path / "whole", 8)
    assert any(not np.array_equal(plain[name], other.get(name)) for name in plain), (
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


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_average_is_that_of_all_steps_and_the_model_has_it_while_it_is_evaluated(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "build", tiny)
    strategy = tf.distribute.get_strategy()
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


def test_a_dedicated_evaluator_finds_the_average_in_a_checkpoint(tmp_path: Path, task) -> None:
    options = ("--job-dir", tmp_path, "--steps", 4, "--ema", 0.9)
    code, lines = task(*QUICK, *options)
    assert code == 0
    chosen = parse([str(one) for one in (*QUICK, *options)], {})
    network = networks.build(chosen, 10, "float32")
    look = SimpleNamespace(
        config=chosen,
        model=network,
        steps=4,
        policy="float32",
        strategy=tf.distribute.get_strategy(),
    )
    found = Checkpoints(chosen.checkpoint_dir, 1).load(4)
    evaluator._assign(network, found, chosen, evaluator._averaged(look))
    shards = splits.of(chosen, 10)[1]
    evaluation = inner.Evaluation(tf.distribute.get_strategy(), network, chosen, 10, shards)
    assert evaluation.run()["loss"] == pytest.approx(lines[-1]["loss"], rel=1e-5)
    evaluator._assign(network, found, chosen, {})
    assert evaluation.run()["loss"] != pytest.approx(lines[-1]["loss"], rel=1e-5)


def test_an_average_is_refused_with_replicas_and_with_parameter_servers() -> None:
    with pytest.raises(UsageError, match=r"^--ema does not work with the 2 replicas"):
        inner.Trainer(mirrored(), config("--ema", 0.9), 2, "float32")
    with pytest.raises(UsageError, match=r"^--ema does not work with parameter servers"):
        parameter_servers.ParameterServers(None, config("--ema", 0.9), 2, "float32")
