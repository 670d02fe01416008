"""The SavedModel: what a server needs, with nothing of the training run in it."""

import os
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from trainer import data, model, storage


def export(
    weights: Mapping[str, np.ndarray], names: tuple[str, ...], image_size: int, path: str
) -> None:
    """Write a SavedModel with two signatures, which give `probabilities` and `label`.

    `serving_default` takes `image_bytes` (encoded JPEG or PNG files of any size; the suffix lets
    TensorFlow Serving accept base64), `tensors` takes `images` (uint8, already square). The model
    is built anew in float32, whatever it was trained in, so that it runs on any machine.
    `weights` maps each of the model's variables' paths to its value.
    """
    network = model.small_cnn(len(names), image_size, "float32")
    for variable in network.variables:
        variable.assign(weights[variable.path])

    def tensors(images: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax(network(images, training=False))
        label = tf.gather(tf.constant(names), tf.argmax(probabilities, axis=-1))
        return {"probabilities": probabilities, "label": label}

    def image_bytes(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        one = tf.TensorSpec((image_size, image_size, 3), tf.uint8)
        images = tf.map_fn(
            lambda encoded: data.decode(encoded, image_size), image_bytes, fn_output_signature=one
        )
        return tensors(images)

    archive = keras.export.ExportArchive()
    archive.track(network)
    archive.add_endpoint(
        "serving_default", image_bytes, [tf.TensorSpec([None], tf.string, name="image_bytes")]
    )
    images = tf.TensorSpec([None, image_size, image_size, 3], tf.uint8, name="images")
    archive.add_endpoint("tensors", tensors, [images])
    temporary = f"{path}.tmp-{os.getpid()}"
    archive.write_out(temporary, verbose=False)
    storage.replace_folder(temporary, path)
