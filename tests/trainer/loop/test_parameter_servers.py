"""Parameter servers: no update is lost, and a worker may die."""

import signal
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from tests.trainer.loop.count_updates import RATE, STEPS, alone
from tests.trainer.runs import cluster
from trainer import config
from trainer.config import UsageError
from trainer.loop import inner, parameter_servers
from trainer.model import optimization

pytestmark = pytest.mark.tensorflow

COUNT = "from tests.trainer.loop import count_updates; count_updates.main()"
"""In the place of a run."""


@pytest.mark.slow
@pytest.mark.alone
def test_no_update_is_lost(start, tmp_path: Path) -> None:
    chief, *others = cluster("chief", "worker", "worker", "ps")
    for environment in others:
        start(tmp_path, **environment)
    counting = start(tmp_path, BEFORE=COUNT, **chief)
    assert counting.end() == 0, counting.stderr()
    [counted] = counting.lines
    assert counted.keys() == set(parameter_servers.OPTIMIZERS)
    for optimizer, result in counted.items():
        assert result["updates"] == STEPS
        assert result["others"] == [STEPS]
        expected = alone(optimizer)
        assert result["slots"] == expected["slots"], optimizer
        if optimizer != "adam":
            assert result["trained"] == expected["trained"], optimizer
    assert counted["sgd"]["trained"] == [-STEPS * RATE]


@pytest.mark.parametrize("optimizer", parameter_servers.OPTIMIZERS)
def test_one_worker_does_what_keras_does(optimizer: str) -> None:
    options = ["--optimizer", optimizer, "--learning-rate", "0.01"]
    chosen = config.parse(["--records", "-", "--job-dir", "-", *options], {})
    theirs, mine = (
        keras.Variable(np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)) for _ in range(2)
    )
    keras_own = optimization.optimizer(chosen, "float32")
    keras_own.build([theirs])
    slots = [tf.Variable(tf.zeros((3, 4))) for _ in range(parameter_servers.slots(keras_own))]
    draw = np.random.default_rng(7)
    for step in range(1, 6):
        gradient = tf.constant(draw.normal(size=(3, 4)), tf.float32)
        keras_own.apply([gradient], [theirs])
        about = tf.constant(0.01), tf.constant(float(step))
        parameter_servers.update(keras_own, mine, gradient, slots, *about)
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
    assert not np.allclose(mine.numpy(), np.linspace(-1, 2, 12).reshape(3, 4), atol=1e-3)


def penalised(image_size: int, classes: int) -> keras.Model:
    """A model whose own losses are far larger than the cross entropy."""
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    layers += [keras.layers.ActivityRegularization(l2=1.0)]
    layers += [keras.layers.Dense(classes, kernel_regularizer=keras.regularizers.L2(10.0))]
    return keras.Sequential([keras.Input((image_size, image_size, 3)), *layers])


def test_a_worker_s_loss_and_gradients_are_those_of_any_other_strategy() -> None:
    """The losses that the model itself adds are among them."""
    options = ["--model", f"{__name__}:penalised", "--image-size", "8"]
    chosen = config.parse(["--records", "-", "--job-dir", "-", *options], {})
    trainer = inner.Trainer(tf.distribute.get_strategy(), chosen, 2, "float32")
    draw = np.random.default_rng(3)
    images = tf.constant(draw.integers(0, 256, (32, 8, 8, 3)), tf.uint8)
    labels = tf.constant(draw.integers(0, 2, 32), tf.int64)
    loss, _, gradients = trainer._gradients(images, labels)
    metrics, theirs, _ = parameter_servers.ParameterServers.gradients(trainer, images, labels)
    assert float(metrics[0]) == pytest.approx(float(loss), rel=1e-5)
    assert float(loss) > 10
    for mine, other in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "option",
    [("--ema", 0.9), ("--cache", "memory"), ("--weight-decay", 0.1), ("--optimizer", "adamw")],
)
def test_what_parameter_servers_do_not_do_is_refused(option: tuple[object, ...]) -> None:
    words = " ".join(map(str, option))
    chosen = config.parse(["--records", "-", "--job-dir", "-", *map(str, option)], {})
    with pytest.raises(UsageError, match=f"^{words} does not work with parameter servers"):
        parameter_servers.ParameterServers(None, chosen, 2, "float32")


def test_what_ended_a_worker_s_iterator_is_raised_as_it_was() -> None:
    """TensorFlow wraps it in an error that is none of its own, and so "a fault of the program"."""
    gone = tf.errors.UnavailableError(None, None, "Socket closed")
    chief = mock.Mock()
    chief.coordinator.join.side_effect = cluster_coordinator.ClosureInputError(gone)
    with pytest.raises(tf.errors.UnavailableError, match="Socket closed"):
        parameter_servers.ParameterServers.train(chief, None, 3)
    assert chief.coordinator.schedule.call_count == 3


@pytest.mark.slow
@pytest.mark.alone
def test_a_cluster_that_is_told_to_stop_saves_and_goes_on_without_a_worker(
    start, tmp_path: Path
) -> None:
    options = ("--steps", 300, "--checkpoint-every", 50)
    roles = ("chief", "worker", "worker", "ps")
    all_of_them = [start(tmp_path, *options, **environment) for environment in cluster(*roles)]
    chief = all_of_them[0]
    chief.until("step", 10)
    for process in reversed(all_of_them):
        process.send(signal.SIGTERM)
    assert [process.end() for process in all_of_them] == [143] * 4, chief.stderr()
    stopped = chief.lines[-1]
    assert (stopped["event"], stopped["step"]) == ("preempted", chief.events("step")[-1]["step"])
    assert 10 <= stopped["step"] < 300

    chief, worker, *others = (  # with one server more
        start(tmp_path, *options, **environment) for environment in cluster(*roles, "ps")
    )
    assert chief.until("resumed")["step"] == stopped["step"]
    chief.until("step")
    worker.send(signal.SIGKILL)
    assert chief.end() == 0, chief.stderr()
    assert [other.end() for other in others] == [0, 0, 0]
    assert chief.events("start")[0]["strategy"] == "ParameterServerStrategy"
    assert chief.lines[-1]["accuracy"] > 0.8
    with np.load(tmp_path / "checkpoints/step-00000300.npz") as archive:
        assert archive[archive.files[-1]] >= 300
