"""What is made of a trained model: a SavedModel, which needs nothing of the training run, and a CSV
file of what it says of each record."""

import csv
import functools
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import Config
from trainer.event_lines import say
from trainer.input import data, decoding, targets
from trainer.input.parts import Shard
from trainer.job import storage
from trainer.model import networks, optimization

PREDICTIONS = "predictions.csv"
"""In the job folder: those of the validation records."""
_BATCH = 32


def export(
    weights: Mapping[str, np.ndarray], names: tuple[str, ...], config: Config, path: str
) -> None:
    """Write a SavedModel with signatures that return `probabilities` and `label`; of several labels
    only the first, of values `values`.

    `serving_default` takes `image_bytes`: encoded JPEG or PNG files of any size; the suffix lets
    TensorFlow Serving accept base64. `tensors` takes `images`: uint8 squares.

    The model is built again in float32, whatever it was trained in, so that it runs on any machine.
    `weights` has the values of the model's variables by their paths.
    """
    size = config.image_size
    network = networks.build(config, len(names), "float32", pretrain=False)
    for variable in network.variables:
        if variable.path in weights:  # The others are states of random numbers, for training.
            variable.assign(weights[variable.path])

    def tensors(images: tf.Tensor) -> dict[str, tf.Tensor]:
        predicted = optimization.predicted(config, network(images, training=False))
        if config.target == targets.VALUES:
            return {"values": predicted}
        if config.target == targets.LABELS:
            return {"probabilities": predicted}
        label = tf.gather(tf.constant(names), tf.argmax(predicted, axis=-1))
        return {"probabilities": predicted, "label": label}

    square = decoding.squares(size, config.evaluate_crop)

    def files(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        one = tf.TensorSpec((size, size, 3), tf.uint8)
        return served.tensors(tf.map_fn(square, image_bytes, fn_output_signature=one))

    # Not keras.export.ExportArchive, which traces each function twice.
    graph = functools.partial(tf.function, autograph=False)
    images = [tf.TensorSpec([None, size, size, 3], tf.uint8, "images")]
    served: Any = tf.Module()
    served.weights = [variable.value for variable in network.variables]
    served.tensors = graph(tensors, input_signature=images)
    encoded = [tf.TensorSpec([None], tf.string, "image_bytes")]
    served.serving_default = graph(files, input_signature=encoded)
    temporary = f"{path}.tmp-{os.getpid()}"
    signatures = {name: getattr(served, name) for name in ("serving_default", "tensors")}
    tf.saved_model.save(served, temporary, signatures)
    storage.replace_folder(temporary, path)


def predict(
    network: Any, names: tuple[str, ...], config: Config, shards: tuple[Shard, ...], path: str = ""
) -> str:
    """Write the predictions to `path`, or to predictions.csv in the job folder, and return the
    path. Raises one of storage.FAILURES.

    A line has the record's file and number (from 0), its label, the predicted class, and the
    probability of each class. Of several labels, both are joined by |; of values, each has two
    columns, what it is and what is predicted. The lines are in the order of the files.
    """
    context = tf.distribute.InputContext()
    dataset = data.evaluation(shards, context, config, len(names), _BATCH)
    predict = optimization.predictor(config, network)
    places = ((s.path.rpartition("/")[2], n) for s in shards for n in range(s.records))
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    heads = ["label", "prediction", *(f"p({name})" for name in names)]
    if config.target == targets.VALUES:
        heads = [*names, *(f"predicted({name})" for name in names)]
    lines.writerow(["file", "record", *heads])
    for images, labels, weights in dataset:
        shares = predict(images).numpy()
        for own, label in zip(shares[weights > 0], labels[weights > 0].numpy(), strict=True):
            lines.writerow([*next(places), *_cells(config.target, names, label, own)])
    path = path or f"{config.job_dir}/{PREDICTIONS}"
    storage.write(path, text.getvalue().encode())
    say("predictions", f"what the model says of each record is in {path}", path=path)
    return path


def _cells(target: str, names: tuple[str, ...], label: Any, predicted: np.ndarray) -> list[str]:
    if target == targets.VALUES:
        return [f"{value:.6g}" for value in (*label, *predicted)]
    if target == targets.LABELS:
        chosen = [[n for n, value in zip(names, own, strict=True) if value >= 0.5]
                  for own in (label, predicted)]  # fmt: skip
        return ["|".join(chosen[0]), "|".join(chosen[1]), *(f"{value:.6f}" for value in predicted)]
    return [
        names[label],
        names[int(np.argmax(predicted))],
        *(f"{value:.6f}" for value in predicted),
    ]
