"""The chief of a small cluster whose every gradient is one, so that updates can be counted.

The update rules subtract a power of two from zero, add one, and call one locked kernel, n times
each. In any order this gives one result, to the bit, and a lost update gives another result. Only
the last operation of adam differs: its size depends on the number of steps that the worker has
seen.

It prints the results as one JSON object.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

from trainer import config
from trainer.loop import distribution, parameter_servers
from trainer.model import networks, optimization

STEPS = 200
RATE = 2.0**-10


def tiny(*_: object, **__: object) -> keras.Model:
    """A model with variables that are trained and variables that change without training."""
    images = keras.Input((8, 8, 3), dtype="uint8", name="images")
    x = keras.layers.Flatten(name="flatten")(keras.layers.Rescaling(1 / 255, name="scale")(images))
    x = keras.layers.BatchNormalization(name="norm")(x)
    return keras.Model(images, keras.layers.Dense(2, name="logits")(x), name="tiny")


class Ones(parameter_servers.ParameterServers):
    """Every gradient and every change is one."""

    def batches(self, *_: object) -> object:
        def make() -> tf.data.Dataset:
            images = tf.zeros((4, 8, 8, 3), tf.uint8)
            return tf.data.Dataset.from_tensors((images, tf.zeros(4, tf.int64))).repeat()

        return iter(self.coordinator.create_per_worker_dataset(make))

    def gradients(self, images: object, labels: object) -> tuple:
        one = [tf.ones(v.shape) for v in self.model.trainable_variables]
        changes = [tf.ones(v.shape) for v in self.model.non_trainable_variables]
        return tf.zeros(2), one, changes


def chosen(optimizer: str) -> config.Config:
    options = ["--optimizer", optimizer, "--learning-rate", str(RATE)]
    options += ["--momentum", "0"] if optimizer == "sgd" else []
    return config.parse(["--records", "-", "--job-dir", "-", "--image-size", "8", *options], {})


def count(strategy: object, optimizer: str) -> dict[str, object]:
    trainer = Ones(strategy, chosen(optimizer), 2, "float32", workers=2)
    for variable in trainer.variables().values():
        variable.assign(tf.zeros(variable.shape, variable.dtype))
    trainer.train(trainer.batches(), STEPS)
    slots = zip(*trainer.slots, strict=True)
    return {
        "updates": int(trainer.updates.numpy()),
        "trained": found(trainer.model.trainable_variables),
        "others": found(trainer.model.non_trainable_variables),
        "slots": [found(same) for same in slots],
    }


def found(variables: list) -> list[float]:
    """The distinct values of all variables together."""
    return np.unique(np.concatenate([v.numpy().ravel() for v in variables])).tolist()


def alone(optimizer: str) -> dict[str, object]:
    """The result of one process with the same gradients."""
    variable = keras.Variable([0.0])
    optimizer_ = optimization.optimizer(chosen(optimizer), "float32")
    kept = [tf.Variable([0.0]) for _ in range(parameter_servers.slots(optimizer_))]
    for step in range(STEPS):
        parameter_servers.update(
            optimizer_, variable, tf.ones(1), kept, tf.constant(RATE), tf.constant(step + 1.0)
        )
    return {"trained": found([variable]), "slots": [found([slot]) for slot in kept]}


def main() -> None:
    networks.build = tiny
    place = distribution.cluster(os.environ)
    strategy = distribution.create(place, os.environ)
    counted = {name: count(strategy, name) for name in parameter_servers.OPTIMIZERS}
    sys.stdout.write(json.dumps(counted) + "\n")
    sys.stdout.flush()
    os._exit(0)
