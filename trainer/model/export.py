"""The SavedModel: what a server needs, without anything of the training run."""

import os
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from trainer.config import Config
from trainer.input import decoding, targets
from trainer.job import storage
from trainer.model import networks, optimization


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

    window = decoding.centre(config.evaluate_crop)

    def files(encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        square = tf.TensorSpec((size, size, 3), tf.uint8)
        return tensors(
            tf.map_fn(
                lambda content: decoding.decode(content, size, window),
                encoded,
                fn_output_signature=square,
            )
        )

    archive = keras.export.ExportArchive()
    archive.track(network)
    encoded = tf.TensorSpec([None], tf.string, name="image_bytes")
    archive.add_endpoint("serving_default", files, [encoded])
    images = tf.TensorSpec([None, size, size, 3], tf.uint8, name="images")
    archive.add_endpoint("tensors", tensors, [images])
    temporary = f"{path}.tmp-{os.getpid()}"
    archive.write_out(temporary, verbose=False)
    storage.replace_folder(temporary, path)
