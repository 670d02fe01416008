"""What a model says of each validation record: a CSV file."""

import csv
import io
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import Config
from trainer.input import data
from trainer.input.parts import Shard
from trainer.job import storage
from trainer.model import optimization
from trainer.report import say

PREDICTIONS = "predictions.csv"
"""In the job folder."""
_BATCH = 32


def write(network: Any, names: tuple[str, ...], config: Config, shards: tuple[Shard, ...]) -> str:
    """Write predictions.csv and return its path. Raises one of storage.FAILURES.

    A line has the record's file and number (from 0), its label, the predicted class, and the
    probability of each class. The lines are in the order of the files.
    """
    dataset = data.evaluation(
        shards,
        tf.distribute.InputContext(),
        batch_size=_BATCH,
        image_size=config.image_size,
        classes=len(names),
    )
    logits = optimization.answer
    predict = tf.function(lambda images: tf.nn.softmax(logits(config, network, images)))
    places = ((s.path.rpartition("/")[2], n) for s in shards for n in range(s.records))
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["file", "record", "label", "prediction", *(f"p({name})" for name in names)])
    for images, labels, weights in dataset:
        shares = predict(images).numpy()
        for own, label in zip(shares[weights > 0], labels[weights > 0].numpy(), strict=True):
            answer = names[int(np.argmax(own))]
            lines.writerow([*next(places), names[label], answer, *(f"{one:.6f}" for one in own)])
    path = f"{config.job_dir}/{PREDICTIONS}"
    storage.write(path, text.getvalue().encode())
    say("predictions", f"what the model says of each validation record is in {path}", path=path)
    return path
