"""The outputs of layers: histograms, and units that no longer learn."""

from typing import Any

import keras
import tensorflow as tf

from trainer.config import Config
from trainer.observe import events
from trainer.observe.board import Board
from trainer.observe.examples import Pool
from trainer.observe.observer import Run
from trainer.observe.summaries import Every

PROBE = 32
"""Examples of the pool whose activations are looked at."""
_BOUNDS = {
    "sigmoid": (0.0, 1.0),
    "hard_sigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "relu6": (0.0, 6.0),
}
_NEAR = 0.01
"""An output is saturated where it is closer to a bound than this share of the range."""


class Activations(Every):
    """Histograms of each layer's output; zeros, dead and saturated units of ReLUs and sigmoids.

    They are over PROBE held-out examples, always the same ones, and over the model as it predicts,
    without dropout and with stored BatchNorm statistics. A unit is a channel of the layer's output.

    * zeros: the share of outputs that are 0 (ReLU).
    * dead: the share of units that are 0 for every example and place (ReLU), or always at one bound
      (sigmoid, tanh): they learn nothing.
    * saturated: the share of outputs within 1 % of a bound (sigmoid, tanh; the upper one of ReLU6).
    """

    kind = "activations"

    def __init__(self, board: Board, config: Config, pool: Pool) -> None:
        super().__init__(board, config.histograms_every)
        self.pool = pool
        self._probe: Any = None
        self._layers: list[tuple[str, str]] = []
        self.latest: dict[str, dict[str, float]] = {}
        """By layer: the last zeros, dead, saturated."""

    def look(self, run: Run, step: int) -> None:
        images, _ = self.pool.examples(run)
        if self._probe is None:
            self._layers, self._probe = probe(run.model)
        outputs = [[part.numpy() for part in parts] for parts in self._probe(images[:PROBE])]
        histograms, scalars = {}, {}
        for (name, kind), (counts, bounds, zeros, dead, saturated) in zip(
            self._layers, outputs, strict=True
        ):
            histograms[f"activations/{name}"] = events.rows(counts, *map(float, bounds))
            shares = {}
            if kind in ("relu", "relu6"):
                shares["zeros"] = float(zeros)
            if kind == "relu" or kind in _BOUNDS:
                shares["dead"] = float(dead)
            if kind in _BOUNDS:
                shares["saturated"] = float(saturated)
            if shares:
                self.latest[name] = shares
                scalars.update({f"{what}/{name}": share for what, share in shares.items()})
        self.board.of("train").histograms(step, histograms)
        self.board.of("train").scalars(step, scalars)


def probe(network: keras.Model) -> tuple[list[tuple[str, str]], Any]:
    """Layers with an activation as (name, kind), and a function from images to their statistics.

    The statistics of a layer are counts of events.BUCKETS buckets, [low, high], and the shares of
    zeros, dead units and saturated outputs. The device computes them; only these numbers leave it.
    """
    chosen = [(layer, kind) for layer in network.layers if (kind := activation(layer))]
    inner = keras.Model(network.inputs, [layer.output for layer, _ in chosen])

    @tf.function
    def statistics(images: tf.Tensor) -> list[tuple[tf.Tensor, ...]]:
        outputs = inner(images, training=False)
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        return [_statistics(o, kind) for o, (_, kind) in zip(outputs, chosen, strict=True)]

    return [(layer.name, kind) for layer, kind in chosen], statistics


def activation(layer: Any) -> str:
    """A layer's activation: relu, relu6, sigmoid, silu ...; "" for none, or a linear one."""
    if isinstance(layer, keras.layers.ReLU):
        if layer.negative_slope:
            return "leaky_relu"
        return "relu" if layer.max_value is None else f"relu{layer.max_value:g}"
    function = getattr(layer, "activation", None)
    name = getattr(function, "__name__", "")
    return "" if name == "linear" or not function else name


def _statistics(output: tf.Tensor, kind: str) -> tuple[tf.Tensor, ...]:
    flat = tf.reshape(tf.cast(output, tf.float32), [-1, output.shape[-1]])
    low, high = tf.reduce_min(flat), tf.reduce_max(flat)
    wide = tf.maximum(high, low + 1e-12)
    counts = tf.histogram_fixed_width(flat, [low, wide], events.BUCKETS)
    zero = tf.equal(flat, 0.0)
    if kind in _BOUNDS:
        bottom, top = _BOUNDS[kind]
        margin = _NEAR * (top - bottom)
        at_top = flat >= top - margin
        # At 0 a ReLU6 is silent, not saturated.
        at_bottom = zero if kind == "relu6" else flat <= bottom + margin
        stuck = tf.reduce_all(at_top, axis=0) | tf.reduce_all(at_bottom, axis=0)
        saturated = at_top if kind == "relu6" else at_top | at_bottom
    else:
        stuck, saturated = tf.reduce_all(zero, axis=0), tf.zeros_like(zero)
    shares = [tf.reduce_mean(tf.cast(mask, tf.float32)) for mask in (zero, stuck, saturated)]
    return (counts, tf.stack([low, wide]), *shares)
