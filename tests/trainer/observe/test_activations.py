"""Zeros, dead and saturated units of single layers."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.observe import activations

pytestmark = pytest.mark.tensorflow


def of_layer(layer: keras.layers.Layer, kernel: Any, bias: Any) -> tuple[Any, list[Any]]:
    """(counts, bounds, zeros, dead, saturated) of a layer over inputs of -1 and 1."""
    inputs = keras.Input((1,))
    network = keras.Model(inputs, layer(inputs))
    layer.set_weights([np.array([kernel], np.float32), np.array(bias, np.float32)])
    (name,), statistics = activations.probe(network)
    (found,) = statistics(tf.constant([[-1.0], [1.0]]))
    return name, [part.numpy() for part in found]


def test_a_relu_that_never_fires_is_dead() -> None:
    layer = keras.layers.Dense(4, "relu", name="one")
    # Unit 0 fires for 1, unit 1 for both, units 2 and 3 never do.
    name, (counts, bounds, zeros, dead, _) = of_layer(layer, [1, 1, 1, 0], [0, 2, -3, 0])
    assert name == ("one", "relu")
    assert zeros == pytest.approx(5 / 8)
    assert dead == pytest.approx(2 / 4)
    assert counts.sum() == 8
    assert list(bounds) == [0, 3]


def test_a_sigmoid_at_its_bounds_is_saturated() -> None:
    layer = keras.layers.Dense(4, "sigmoid")
    # Unit 0 is at one bound or the other, 1 always at the upper, 2 never, 3 at both.
    _, (_, _, _, dead, saturated) = of_layer(layer, [20, 1, 1, 10], [0, 20, 0, 5])
    assert saturated == pytest.approx((2 + 2 + 0 + 2) / 8)
    assert dead == pytest.approx(1 / 4)


def test_a_relu6_is_saturated_at_6_and_dead_at_either_bound() -> None:
    layer = keras.layers.Dense(4, "relu6")
    # Unit 0 goes from 0 to 6, 1 from 0 to 1, 2 is always 6, 3 always 0.
    _, (_, _, zeros, dead, saturated) = of_layer(layer, [6, 1, 0, 0], [0, 0, 9, -1])
    assert zeros == pytest.approx((1 + 1 + 0 + 2) / 8)
    assert dead == pytest.approx(2 / 4)
    assert saturated == pytest.approx((1 + 0 + 2 + 0) / 8)


def test_kinds_of_activation() -> None:
    layers = keras.layers
    assert activations.activation(layers.ReLU()) == "relu"
    assert activations.activation(layers.ReLU(6.0)) == "relu6"
    assert activations.activation(layers.ReLU(negative_slope=0.1)) == "leaky_relu"
    assert activations.activation(layers.Activation("sigmoid")) == "sigmoid"
    assert activations.activation(layers.Activation("relu6")) == "relu6"
    assert activations.activation(layers.Dense(1)) == ""
    assert activations.activation(layers.MaxPooling2D()) == ""
