"""The models that can be trained, and how they are optimized."""

from typing import Any

import keras

from trainer.config import Config


def build(config: Config, classes: int, policy: str) -> keras.Model:
    """The network that `config` names: uint8 RGB squares in, float32 logits out.

    `policy` is a Keras dtype policy; weights and logits are float32 under each of them.
    """
    return small_cnn(classes, config.image_size, policy)


def optimizer(config: Config, replicas: int, steps: int, policy: str) -> Any:  # noqa: ARG001
    """The optimizer of a run of `steps` steps on `replicas` replicas."""
    # Named, or a second one in a process has other names for the same variables.
    chosen: Any = keras.optimizers.Adam(config.learning_rate, name="adam")
    if policy == "mixed_float16":
        chosen = keras.optimizers.LossScaleOptimizer(chosen, name="loss_scale")
    return chosen


def small_cnn(classes: int, image_size: int, policy: str) -> keras.Model:
    """A small convolutional network: uint8 RGB in, float32 logits out.

    `policy` is a Keras dtype policy; weights and logits are float32 under each of them. Scaling
    happens in the model, so that a byte a channel travels to the device and to a served model.
    """
    layers = keras.layers
    images = keras.Input((image_size, image_size, 3), dtype="uint8", name="images")
    x = layers.Rescaling(1 / 127.5, offset=-1.0, dtype=policy, name="scale")(images)
    for number, filters in enumerate((16, 32, 64), start=1):
        x = layers.Conv2D(
            filters, 3, padding="same", activation="relu", dtype=policy, name=f"conv{number}"
        )(x)
        x = layers.MaxPooling2D(dtype=policy, name=f"pool{number}")(x)
    x = layers.Flatten(dtype=policy, name="flatten")(x)
    logits = layers.Dense(classes, dtype="float32", name="logits")(x)
    return keras.Model(images, logits, name="small_cnn")
