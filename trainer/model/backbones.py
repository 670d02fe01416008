"""The backbones, small_cnn and everything in keras.applications by name, and their first weights:
ImageNet's, a file's, or another job's checkpoint."""

import inspect
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.naming import reset_uids

from trainer.config import WEIGHTS_FILES, Config, UsageError
from trainer.event_lines import say
from trainer.job import storage
from trainer.job.checkpoints import Checkpoints

HEAD = "head_"
"""The names of the layers that are not the backbone's begin with this; they keep fresh weights."""
_MEAN = np.array((0.485, 0.456, 0.406), np.float32)
_DEVIATION = np.array((0.229, 0.224, 0.225), np.float32)
"""Mean and deviation of ImageNet's pixels, in 0..1, by which EfficientNetB0 to B7 normalise. Keras
has them in a layer that its weights file fills, and in one more layer that only weights="imagenet"
adds (tensorflow/tensorflow#49930): so two builds of a network would compute different things. Here
they come before those layers, which then do nothing."""
_CONSTANTS = "normalization/"
"""Path of EfficientNet's mean and variance of pixels, in whose place those two are."""
_SIZES = {
    **dict.fromkeys(("inceptionv3", "inceptionresnetv2", "xception"), 299),
    **{"nasnetlarge": 331, "efficientnetb1": 240, "efficientnetb2": 260, "efficientnetb3": 300},
    **{"efficientnetb4": 380, "efficientnetb5": 456, "efficientnetb6": 528, "efficientnetb7": 600},
    **{"efficientnetv2b1": 240, "efficientnetv2b2": 260, "efficientnetv2b3": 300},
    **{"efficientnetv2s": 384, "efficientnetv2m": 480, "efficientnetv2l": 480},
}
"""Pixels a side, where it is not _USUAL: keras.applications, from each model's page at keras.io."""
_USUAL = 224
_SMALL = (32, 96)
"""The least and the most for small_cnn, whose size follows the records."""


def image_size(model: str, stored: int) -> tuple[int, str]:
    """Return pixels a side for a model, and why. `stored`: the most that the records' shorter sides
    have; 0: not known.
    """
    if model.lower() != "small_cnn":
        return _SIZES.get(model.lower(), _USUAL), f"{model} is made for it"
    least, most = _SMALL
    if not stored:
        return least, "small_cnn's, since the size of the pictures is not known"
    size = min(most, max(least, -(-stored // 8) * 8))
    return size, f"small_cnn with pictures of up to {stored} pixels"


def application(name: str) -> tuple[Callable[..., keras.Model], Callable[[Any], Any]]:
    """Return constructor and preprocess_input of a model of keras.applications.

    Raises UsageError.
    """
    known = {
        key.lower(): maker
        for key, maker in vars(keras.applications).items()
        if inspect.isfunction(maker) and key[0].isupper()
    }
    maker = known.get(name.lower())
    if maker is None:
        import difflib

        near = difflib.get_close_matches(name.lower(), ["small_cnn", *known], n=3, cutoff=0.5)
        hint = f": near it are {', '.join(near)}" if near else ""
        raise UsageError(f"--model {name}: neither small_cnn nor in keras.applications{hint}")
    module: Any = inspect.getmodule(maker)
    return maker, module.preprocess_input


def features(config: Config, images: Any) -> Any:
    """Return the features of uint8 `images`. The network is the same whatever its weights are:
    `load` copies them into it. Raises UsageError."""
    if config.model == "small_cnn":
        return _small_cnn(images)
    maker, preprocess = application(config.model)
    pixels = keras.ops.cast(images, "float32")
    if maker.__module__.endswith(".efficientnet"):  # Keras' own layer divides by 255.
        pixels = (pixels - 255 * _MEAN) / _DEVIATION
    else:
        pixels = preprocess(pixels)
    size = config.image_size
    try:
        backbone = maker(
            include_top=False, weights=None, input_tensor=pixels, input_shape=(size, size, 3)
        )
    except ValueError as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(f"--model {config.model} at --image-size {size}: {text}") from error
    return backbone.output


def _small_cnn(images: Any) -> Any:
    layers = keras.layers
    x = layers.Rescaling(1 / 127.5, offset=-1.0, name="scale")(images)
    for number, filters in enumerate((16, 32, 64), start=1):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"conv{number}")(x)
        x = layers.MaxPooling2D(name=f"pool{number}")(x)
    return layers.Flatten(name="flatten")(x)


def _plain(config: Config, weights: str | None = None) -> keras.Model:
    """Return the backbone as Keras itself makes it, in float32: to read a weights file, or
    `weights`."""
    size = config.image_size
    reset_uids()
    if config.model == "small_cnn":
        images = keras.Input((size, size, 3), dtype="uint8", name="images")
        return keras.Model(images, _small_cnn(images))
    maker, _ = application(config.model)
    return maker(include_top=False, weights=weights, input_shape=(size, size, 3))


def load(network: keras.Model, config: Config) -> None:
    """Put the weights that `config` names into the backbone of `network`. Raises UsageError."""
    if config.weights == "none":
        return
    if config.weights == "imagenet":
        _imagenet(network, config)
    elif config.weights.endswith(WEIGHTS_FILES):
        _file(network, config)
    else:
        _checkpoint(network, config)


def _imagenet(network: keras.Model, config: Config) -> None:
    try:
        saved = _plain(config, "imagenet")
    except Exception as error:
        raise UsageError(
            f"--weights imagenet: those of {config.model} are not available here "
            f"({' '.join(str(error).split())[:120]}): put the file into KERAS_HOME/models, or "
            "give it with --weights FILE"
        ) from error
    copied = _copy(saved, network)
    say("weights", f"{copied} variables of ImageNet, from Keras", variables=copied)


def _file(network: keras.Model, config: Config) -> None:
    try:
        content = storage.read(config.weights)
    except tf.errors.OpError as error:
        raise UsageError(f"--weights {config.weights}: cannot be read ({error.message})") from None
    with tempfile.TemporaryDirectory() as folder:
        # Keras reads HDF5 only from a disk; `weights` may lie in a bucket.
        path = Path(folder) / Path(config.weights).name
        path.write_bytes(content)
        try:
            if path.suffix == ".keras":
                saved = keras.saving.load_model(path, compile=False)
            else:
                # Into the model that the weights are from: in one with our own layers, Keras would
                # leave what it does not find as it is, and only warn.
                saved = _plain(config)
                with warnings.catch_warnings():
                    warnings.simplefilter("error", UserWarning)
                    saved.load_weights(str(path))
            copied = _copy(saved, network)
        except Exception as error:
            text = " ".join(str(error).replace(str(path), path.name).split())[:200]
            raise UsageError(
                f"--weights {config.weights}: not those of {config.model} without its top: {text}"
            ) from error
    say("weights", f"{copied} variables from {config.weights}", variables=copied)


def _copy(saved: keras.Model, network: keras.Model) -> int:
    """Copy all of the backbone by the variables' paths; return how many. Raises ValueError if one
    is missing."""
    values = {variable.path: variable for variable in saved.weights}
    wanted = [v for v in network.weights if not v.path.startswith((HEAD, _CONSTANTS))]
    missing = [v.path for v in wanted if v.path not in values]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    for variable in wanted:
        variable.assign(values[variable.path])
    return len(wanted)


def _checkpoint(network: keras.Model, config: Config) -> None:
    checkpoint = Checkpoints(config.weights.rstrip("/"), keep=1).newest()
    if checkpoint is None:
        raise UsageError(
            f"--weights {config.weights}: no {' or '.join(WEIGHTS_FILES)} file, and a folder "
            "without a whole checkpoint"
        )
    by_path = checkpoint.by_path()
    wanted = [variable for variable in network.weights if not variable.path.startswith(HEAD)]
    for variable in wanted:
        value = by_path.get(variable.path)
        if value is None or value.shape != tuple(variable.shape):
            was = "no such variable" if value is None else f"{value.shape}"
            raise UsageError(
                f"--weights {config.weights}: {variable.path} is {tuple(variable.shape)} here, "
                f"there {was}: another --model, --image-size or number of classes"
            )
        variable.assign(value)
    step = checkpoint.position.step
    text = f"{len(wanted)} variables from step {step} of {config.weights}"
    say("weights", text, variables=len(wanted), step=step)
