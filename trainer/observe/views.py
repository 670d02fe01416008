"""What TensorBoard shows beside scalars, with --summaries: the network's graph, histograms of
weights and activations with the share of dead ones, and pictures."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.input import data
from trainer.model import networks
from trainer.observe.observer import Observer, Run
from trainer.observe.page import Mistakes
from trainer.observe.summaries import Scalars

PICTURES = 8
"""Of training, and most of the mistakes."""
_RECTIFIERS = ("relu", "relu6", "leaky_relu")


class Views(Observer):
    """Writes the graph and pictures of training, as the network sees them, where an attempt begins;
    the rest after each evaluation, in which the activations are those of held-out pictures."""

    def __init__(self, scalars: Scalars, mistakes: Mistakes) -> None:
        self._scalars, self._mistakes = scalars, mistakes

    def begin(self, run: Run) -> None:
        events, asked = self._scalars.events("train"), run.config.summaries
        if "graph" in asked:
            size = run.config.image_size
            network = tf.function(lambda images: run.model(images, training=False))
            images = tf.TensorSpec([None, size, size, 3], tf.uint8)
            events.graph(network.get_concrete_function(images).graph)
        if "images" in asked:
            events.images(run.position.step, "training", trained_on(run))

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        events, asked = self._scalars.events("train"), run.config.summaries
        if "histograms" in asked:
            for variable in run.model.trainable_variables:
                events.histogram(step, f"weights/{variable.path}", variable.numpy())
            for name, values in activations(run.model, self._mistakes.examples(run)[0]).items():
                events.histogram(step, f"activations/{name}", values)
                events.scalars(step, {f"zeros/{name}": zeros(values), f"dead/{name}": dead(values)})
        if "images" in asked and self._mistakes.pictures:
            images = np.stack([image for image, _ in self._mistakes.pictures])
            events.images(step, "mistakes", images)


def trained_on(run: Run) -> tf.Tensor:
    """Return some pictures of training as the network sees them: uint8 [n, size, size, 3]."""
    shard = next(shard for shard in run.train if shard.records)
    few = dataclasses.replace(shard, records=min(PICTURES, shard.records))
    dataset = data.training(
        (few,), tf.distribute.InputContext(), run.config, len(run.names), batch_size=PICTURES,
        consumed=0,
    )  # fmt: skip
    return next(iter(dataset))[0]


def activations(network: Any, pictures: np.ndarray) -> dict[str, np.ndarray]:
    """Return what each rectifier gives for `pictures` [n, ...], by the name of its layer."""
    found: dict[str, Any] = {}

    def watched(layer: Any) -> Any:
        call = layer.call

        def kept(*args: Any, **kwargs: Any) -> Any:
            found[layer.name] = result = call(*args, **kwargs)
            return result

        return kept

    def outputs(images: Any) -> dict[str, Any]:
        layers = [layer for layer in networks.layers_of(network) if _rectifies(layer)]
        for layer in layers:
            layer.call = watched(layer)
        try:
            network(images, training=False)
        finally:
            for layer in layers:
                del layer.call  # the class has it
        return {name: tf.cast(values, tf.float32) for name, values in found.items()}

    return {name: values.numpy() for name, values in tf.function(outputs)(pictures).items()}


def zeros(values: np.ndarray) -> float:
    """Return the share of activations that are zero."""
    return float(np.mean(values <= 0))


def dead(values: np.ndarray) -> float:
    """Return the share of units, the last axis, that are zero wherever one looks."""
    return float(np.mean((values <= 0).all(axis=tuple(range(values.ndim - 1)))))


def _rectifies(layer: Any) -> bool:
    activation = getattr(layer, "activation", None)
    return isinstance(layer, keras.layers.ReLU) or (
        getattr(activation, "__name__", "") in _RECTIFIERS
    )
