"""Models of the user's own, and the image size that a model was made for."""

import importlib
import traceback
from collections.abc import Callable
from typing import Any

import keras

from trainer.config import Config, UsageError

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


def build(config: Config, classes: int, images: Any) -> keras.Model:
    """Return the model that --model package.module:function returns, from uint8 `images` to float32
    logits.

    The function is called with image_size and classes. Its model takes pixels of 0 to 255 and
    returns a logit for each class. Raises UsageError.
    """
    function = _find(config.model)
    option = f"--model {config.model}"
    try:
        made = function(image_size=config.image_size, classes=classes)
        logits = made(keras.ops.cast(images, "float32"))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(str(error).split())[:200]
        where = f"{last.filename}:{last.lineno}"
        raise UsageError(f"{option}: {type(error).__name__}: {reason} ({where})") from error
    shape = tuple(getattr(logits, "shape", ()))
    if shape != (None, classes):
        wanted = f"a logit for each of {classes} classes, (None, {classes})"
        raise UsageError(f"{option}: its model returns {shape}, not {wanted}")
    last_layer = made.layers[-1] if getattr(made, "layers", None) else None
    if getattr(getattr(last_layer, "activation", None), "__name__", "") in ("softmax", "sigmoid"):
        raise UsageError(f"{option}: its last layer ends with an activation; return the logits")
    return keras.Model(images, keras.ops.cast(logits, "float32"), name=made.name)


def _find(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        target = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise UsageError(f"--model {name}: {error}") from error
    if not callable(target):
        raise UsageError(f"--model {name}: {module} has no function {attribute!r}")
    return target
