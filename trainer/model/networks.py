"""The models that can be trained: a small one, everything in keras.applications by name, and those
of the user's own.

Each model takes uint8 RGB squares of 0..255 and returns float32 logits. Preprocessing is a part of
the model: one byte a channel goes to the device, and a server cannot get it wrong.

A model is a backbone and a head. `--fine-tune-layers N` counts the backbone's weight layers from
its end: convolutions and dense layers, which is what papers mean by "30 layers".
`model.layers[-N:]` would also count activations and joins; and where the backbone is one layer of
an outer model, it would unfreeze everything.
"""

import importlib
import math
import traceback
from collections import Counter
from typing import Any

import keras
import numpy as np
from keras.src.utils.naming import reset_uids

from trainer.config import Config, UsageError
from trainer.input import targets
from trainer.model import backbones
from trainer.model.backbones import HEAD
from trainer.model.optimization import UNITS

_NORMALISATION = ("BatchNormalization", "LayerNormalization", "GroupNormalization", "LayerScale")


def build(config: Config, classes: int, policy: str, pretrain: bool = True) -> keras.Model:
    """Return the network that `config` names, with `classes` logits.

    `policy` is a Keras dtype policy; weights and logits are float32 under each of them. `pretrain`
    loads the weights that `config` names; a model whose variables are assigned later does not need
    it. Raises UsageError.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)  # keras.applications take no dtype.
    # Some models number their layers on from those that the process made before. A checkpoint and
    # an export need the same names whenever the model is built. No public function resets this.
    reset_uids()
    try:
        network = _assemble(config, classes)
        if config.target == targets.VALUES:
            network = keras.Model(network.inputs, Units()(network.output), name=network.name)
    finally:
        keras.config.set_dtype_policy(before)
    if pretrain:
        backbones.load(network, config)
    _freeze(network, config)
    if config.drop_path:
        _drop_paths(network, config)
    return network


def depth(network: keras.Model) -> dict[str, Any]:
    """Return the sizes of a model that `build` made, and how much of it is trained. A layer counts
    that has weights and is no normalisation."""
    weighty = _weight_layers(network)
    norms = [layer for layer in layers_of(network) if type(layer).__name__ == "BatchNormalization"]
    return {
        "backbone_layers": len(weighty),
        "trained_layers": sum(layer.trainable for layer in weighty),
        "parameters": network.count_params(),
        "trained_parameters": sum(math.prod(v.shape) for v in network.trainable_weights),
        "frozen_batch_norms": sum(not norm.trainable for norm in norms),
    }


def layers_of(network: Any) -> list[Any]:
    """Return the layers that are not models, nested ones included, in the order in which they were
    made."""
    layers = []
    for layer in network.layers:
        layers += layers_of(layer) if hasattr(layer, "layers") else [layer]
    return layers


def followed(network: keras.Model) -> list[Any]:
    """Return the variables of which --ema keeps an average: those that are trained, and the
    statistics that change with them, BatchNorm's."""
    states = [v for layer in layers_of(network) if layer.trainable
              for v in layer.non_trainable_variables if v.dtype.startswith("float")]  # fmt: skip
    return [*network.trainable_variables, *states]


class Units(keras.layers.Layer):
    """Returns values in the records' units from numbers around 0: x deviation + mean, one of each a
    value. So a model learns numbers of any size; both are of the training records, and not trained.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(name=UNITS, dtype="float32", **kwargs)

    def build(self, shape: Any) -> None:
        about: dict[str, Any] = {"shape": (shape[-1],), "trainable": False}
        self.mean = self.add_weight(name="mean", initializer="zeros", **about)
        self.deviation = self.add_weight(name="deviation", initializer="ones", **about)

    def call(self, numbers: Any) -> Any:
        return numbers * self.deviation + self.mean


def learn_units(network: keras.Model, values: np.ndarray) -> None:
    """Give a model of values the mean and the deviation of the training records' `values` [n, k].
    A value that is always the same has the deviation 1."""
    units = network.get_layer(UNITS)
    deviation = values.std(axis=0, dtype=np.float64)
    units.mean.assign(values.mean(axis=0, dtype=np.float64))
    units.deviation.assign(np.where(deviation > 0, deviation, 1.0))


def _assemble(config: Config, classes: int) -> keras.Model:
    size = config.image_size
    images = keras.Input((size, size, 3), dtype="uint8", name="images")
    if ":" in config.model:
        return _own(config, classes, images)
    features = backbones.features(config, images)
    if config.model != "small_cnn":
        features = keras.layers.GlobalAveragePooling2D(name=f"{HEAD}pool")(features)
    if config.dropout:
        features = keras.layers.Dropout(config.dropout, seed=config.seed, name=f"{HEAD}dropout")(
            features
        )
    logits = keras.layers.Dense(classes, dtype="float32", name=f"{HEAD}logits")(features)
    return keras.Model(images, logits, name=config.model.lower())


def _own(config: Config, classes: int, images: Any) -> keras.Model:
    """Return the model that --model package.module:function returns, from uint8 `images` to float32
    logits.

    The function is called with image_size and classes. Its model takes pixels of 0 to 255 and
    returns a logit for each class. Raises UsageError.
    """
    option = f"--model {config.model}"
    module, _, name = config.model.partition(":")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise UsageError(f"{option}: {error}") from error
    if not callable(function):
        raise UsageError(f"{option}: {module} has no function {name!r}")
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
    network = keras.Model(images, keras.ops.cast(logits, "float32"), name=made.name)
    paths = Counter(variable.path for variable in network.weights)
    if twice := next((path for path, count in paths.items() if count > 1), ""):
        text = f"its model has two variables at {twice}, and checkpoints find them by that"
        raise UsageError(f"{option}: {text}: give the layers names of their own")
    return network


def _freeze(network: keras.Model, config: Config) -> None:
    """Freeze all but what --fine-tune-layers and --batch-norm say, and the head."""
    if ":" in config.model and config.fine_tune_layers < 0 and config.batch_norm == "auto":
        return  # as the user's function says
    weighty = _weight_layers(network)
    count = len(weighty) if config.fine_tune_layers < 0 else config.fine_tune_layers
    if count > len(weighty):
        raise UsageError(
            f"--fine-tune-layers {count}: {config.model} has {len(weighty)} layers with weights"
        )
    first = weighty[len(weighty) - count] if count else None
    frozen_norms = config.batch_norm == "frozen" or (
        config.batch_norm == "auto" and config.weights != "none"
    )
    reached = count == len(weighty)
    for layer in layers_of(network):
        if layer.name.startswith(HEAD):
            continue
        reached = reached or layer is first
        # A frozen BatchNormalization also uses its stored statistics and leaves them alone.
        batch_norm = type(layer).__name__ == "BatchNormalization"
        layer.trainable = reached and not (batch_norm and frozen_norms)
        if batch_norm and config.batch_norm == "synchronized":
            layer.synchronized = True


def _drop_paths(network: keras.Model, config: Config) -> None:
    """Let pictures skip blocks at rates that rise to --drop-path with the depth (Huang et al. 2016,
    Deep Networks with Stochastic Depth). Raises UsageError for a network without such blocks."""
    skips = [
        layer
        for layer in layers_of(network)
        if type(layer).__name__ == "Dropout" and getattr(layer, "noise_shape", None)
    ]
    if not skips:
        raise UsageError(
            f"--drop-path {config.drop_path:g}: {config.model} has no blocks that a picture may "
            "skip; EfficientNets have"
        )
    for number, layer in enumerate(skips, start=1):
        layer.rate = config.drop_path * number / len(skips)


def _weight_layers(network: keras.Model) -> list[Any]:
    """Return the backbone's layers with weights to train, without normalisation and head."""
    return [
        layer
        for layer in layers_of(network)
        if layer.weights
        and not layer.name.startswith(HEAD)
        and type(layer).__name__ not in _NORMALISATION
        and any(v.path.rpartition("/")[2].endswith("kernel") for v in layer.weights)
    ]
