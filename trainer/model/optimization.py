"""Loss, optimizer, and the schedule of the learning rate."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.config import Config
from trainer.input import targets

UNITS = "head_units"
"""Name of the layer networks.Units of a model of values."""
DECAY, DECAY_AT = 0.1, (0.5, 0.75)
"""The factor of the learning rate in steps, and the shares of the run after which it applies."""


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to `peak`, then is constant, a cosine, or steps down.

    The warm-up counts from 1, so its first step already learns. The cosine begins where the warm-up
    ends and reaches 0 with the last step of the run.
    """

    def __init__(self, peak: float, steps: int, kind: str = "constant", warmup: int = 0) -> None:
        super().__init__()
        self.peak, self.steps, self.kind, self.warmup = peak, steps, kind, warmup

    def __call__(self, step: Any) -> Any:
        """Return the rate of the next step after `step` steps, as a float32 tensor."""
        done = tf.cast(step, tf.float32)
        rate = tf.constant(self.peak, tf.float32)
        if self.kind == "cosine":
            length = max(self.steps - self.warmup - 1, 1)
            share = tf.clip_by_value((done - self.warmup) / length, 0.0, 1.0)
            rate *= (1 + tf.cos(math.pi * share)) / 2
        if self.kind == "step":
            passed = [tf.cast(done >= round(at * self.steps), tf.float32) for at in DECAY_AT]
            rate *= tf.pow(DECAY, tf.add_n(passed))
        if self.warmup:
            rate *= tf.minimum(1.0, (done + 1) / self.warmup)
        return rate


def optimizer(config: Config, policy: str) -> Any:
    """Return the optimizer of a run, not yet built.

    The learning rate is a function of the step and the options, not a variable, so a resumed run
    with another --learning-rate uses the new one. Under mixed_float16 the optimizer scales the
    loss. The loop clips, because clipping needs the gradient of all replicas together.
    """
    rate = Schedule(config.learning_rate, config.steps, config.schedule, config.warmup_steps)
    # Without a name, a second optimizer in a process names the same variables differently.
    common: dict[str, Any] = {"learning_rate": rate, "name": config.optimizer}
    if config.weight_decay or config.optimizer == "adamw":  # which has Keras' own without it
        common["weight_decay"] = config.weight_decay
    makers: Any = keras.optimizers
    chosen: Any = {
        "adam": lambda: makers.Adam(**common),
        "adamw": lambda: makers.AdamW(**common),
        "sgd": lambda: makers.SGD(momentum=config.momentum, nesterov=True, **common),
        "rmsprop": lambda: makers.RMSprop(momentum=config.momentum, **common),
        "lamb": lambda: makers.Lamb(**common),
        "lion": lambda: makers.Lion(**common),
    }[config.optimizer]()
    chosen.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    if policy == "mixed_float16":
        chosen = makers.LossScaleOptimizer(chosen, name="loss_scale")
    return chosen


def kept(ema: float, steps: Any) -> tf.Tensor:
    """Return what share of itself the moving average keeps in update number `steps`, from 1 on:
    `ema` in the end, less at first, so that a short run's average is not of its first weights (as
    tf.train.ExponentialMovingAverage with num_updates)."""
    steps = tf.cast(steps, tf.float32)
    return tf.where(steps > 1, tf.minimum(ema, steps / (9.0 + steps)), 0.0)


def losses(
    config: Config,
    labels: tf.Tensor,
    outputs: tf.Tensor,
    weights: np.ndarray | None = None,
    deviation: Any = 1.0,
) -> tf.Tensor:
    """Return the loss of each example, for training: float32 [batch].

    Of a class it is the cross entropy with --label-smoothing; `labels` are the classes' numbers
    [batch], or their shares [batch, classes] of mixed pictures, and `weights` has what each class
    counts in its sum (None: 1), as torch.nn.CrossEntropyLoss has it. Of several labels it is the
    mean of the classes' binary cross entropies, of values that of the squared errors in
    `deviation`s.
    """
    smoothing = config.label_smoothing
    if config.target == targets.LABELS:
        return label_losses(labels, outputs, smoothing)
    if config.target == targets.VALUES:
        return value_losses(labels, outputs, deviation)
    if labels.shape.rank == 1 and not smoothing and weights is None:
        return plain_losses(labels, outputs)
    classes = outputs.shape[-1]
    shares = labels if labels.shape.rank == 2 else tf.one_hot(labels, classes)
    shares = (1.0 - smoothing) * shares + smoothing / classes
    return -tf.reduce_sum(
        shares * (1.0 if weights is None else weights) * tf.nn.log_softmax(outputs), -1
    )


def label_losses(labels: tf.Tensor, logits: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Return the mean over the classes of each example's binary cross entropy: float32 [batch]."""
    return keras.losses.binary_crossentropy(labels, logits, True, smoothing)


def units(config: Config, network: Any) -> tuple[Any, Any]:
    """Return mean and deviation of a model's values; 0 and 1 where it predicts none."""
    if config.target != targets.VALUES:
        return 0.0, 1.0
    layer = network.get_layer(UNITS)
    return tf.convert_to_tensor(layer.mean), tf.convert_to_tensor(layer.deviation)


def value_losses(values: tf.Tensor, outputs: tf.Tensor, deviation: Any) -> tf.Tensor:
    """Return the mean over the values of each example's squared error, in deviations: float32
    [batch]."""
    return tf.reduce_mean(tf.square((outputs - values) / deviation), axis=-1)


def agreement(config: Config, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return what a step reports of each example beside the loss: float32 [batch].

    Of a class it is whether it is right; of several labels the share of right ones; of values the
    mean absolute error.
    """
    if config.target == targets.LABELS:
        same = (outputs >= 0) == (labels >= 0.5)
        return tf.reduce_mean(tf.cast(same, tf.float32), axis=-1)
    if config.target == targets.VALUES:
        return tf.reduce_mean(tf.abs(outputs - labels), axis=-1)
    return right(labels, outputs)


def right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return 1 for each example whose largest logit is that of its class, or of the class with the
    largest share, else 0: float32 [batch]."""
    if labels.shape.rank == 2:
        labels = tf.argmax(labels, axis=-1)
    return tf.cast(tf.argmax(logits, axis=-1) == tf.cast(labels, tf.int64), tf.float32)


def plain_losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the cross entropy of each example, as an evaluation measures it: float32 [batch]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def predictor(config: Config, network: Any) -> Any:
    """Return a function of any number of uint8 squares: what `network` says of them."""
    size = config.image_size
    return tf.function(
        lambda images: predicted(config, network(images, training=False)),
        input_signature=[tf.TensorSpec([None, size, size, 3], tf.uint8)],
        autograph=False,
    )


def predicted(config: Config, outputs: tf.Tensor) -> tf.Tensor:
    """Return what a trained model's outputs mean: probabilities of the classes, or values."""
    if config.target == targets.VALUES:
        return outputs
    return tf.sigmoid(outputs) if config.target == targets.LABELS else tf.nn.softmax(outputs)
