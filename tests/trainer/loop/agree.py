"""A worker of a small cluster that trains a model with BatchNorm, and prints what becomes of its
statistics: one JSON object with the moving mean as this worker saw it, and as all agree on it."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

from tests.trainer.loop.count_updates import tiny
from trainer import config
from trainer.loop import distribution, inner
from trainer.model import networks


def main() -> None:
    networks.build = tiny
    place = distribution.cluster(os.environ)
    strategy = distribution.create(place, os.environ)
    options = ["--records", "-", "--job-dir", "-", "--image-size", "8", "--batch-size", "16"]
    trainer = inner.Trainer(strategy, config.parse(options, {}), 2, "float32", place.workers)

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        random = np.random.default_rng(context.input_pipeline_id)
        images = random.integers(0, 255, (8, 8, 8, 3)).astype(np.uint8)
        return tf.data.Dataset.from_tensors((images, random.integers(0, 2, 8))).repeat()

    trainer.train(iter(strategy.distribute_datasets_from_function(batches)), 3)
    mean = trainer.model.get_layer("norm").moving_mean
    said = {"mine": mean.numpy().tolist()}
    trainer.synchronise()
    said["agreed"] = mean.numpy().tolist()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
