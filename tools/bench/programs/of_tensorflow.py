"""Keras' applications as others trained them: `python of_tensorflow.py application '{...}'`."""

# mypy: ignore-errors
import json
import sys

import keras
import numpy as np


def application(model, batch, size, frozen=False):
    """Fit one by default, with Keras' own Adam."""
    shape = (size, size, 3)
    network = getattr(keras.applications, model)
    if frozen:
        base = network(weights=None, include_top=False, input_shape=shape)
        base.trainable = False
        layers = [base, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
        made = keras.Sequential(layers)
    else:
        made = network(weights=None, input_shape=shape)
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=frozen))
    pictures = np.zeros((batch, *shape), "float32")
    made.fit(pictures, np.zeros(batch, "int64"), batch_size=batch)


globals()[sys.argv[1]](**json.loads(sys.argv[2]))
