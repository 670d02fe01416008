"""The models that can be trained."""

import keras


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
