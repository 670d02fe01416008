"""The models that can be trained: a small one, and everything in keras.applications by name.

Each model takes uint8 RGB squares of 0..255 and returns float32 logits. Preprocessing is a layer of
the model: one byte a channel goes to the device, and a server cannot get it wrong.

A model is a backbone and a head. `--fine-tune-layers N` counts the backbone's weight layers from
its end: convolutions and dense layers, which is what papers mean by "30 layers".
`model.layers[-N:]` would also count activations and joins; and where the backbone is one layer of
an outer model, it would unfreeze everything.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras.src.utils.naming import reset_uids

from trainer.config import Config, UsageError
from trainer.input import targets
from trainer.model import optimization, own, pretrained
from trainer.model.optimization import optimizer

__all__ = ["Depth", "build", "depth", "layers_of", "optimizer"]

_HEAD = "head_"
UNITS = optimization.UNITS
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's pixels, in 0..1, by which EfficientNetB0 to B7 normalise. Keras
has them in a layer that its weights file fills, and in one more layer that only weights="imagenet"
adds (tensorflow/tensorflow#49930): so two builds of a network would compute different things. Here
they are in Preprocess, and those layers do nothing."""
_NORMALISATION = ("BatchNormalization", "LayerNormalization", "GroupNormalization", "LayerScale")


@dataclass(frozen=True)
class Depth:
    """The sizes of a model, and how much of it is trained."""

    backbone_layers: int
    """Layers with weights, without normalisation."""
    trained_layers: int
    parameters: int
    trained_parameters: int
    frozen_batch_norms: int

    def __str__(self) -> str:
        layers = f"{self.trained_layers} of {self.backbone_layers} backbone layers"
        return f"{self.trained_parameters:,} of {self.parameters:,} parameters trained ({layers})"


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
        pretrained.load(network, config, _HEAD, lambda weights: _plain(config, weights))
    _freeze(network, config)
    if config.drop_path:
        _drop_paths(network, config)
    return network


def depth(network: keras.Model) -> Depth:
    """Return how much is trained of a model that `build` made."""
    weighty = _weight_layers(network)
    norms = [layer for layer in layers_of(network) if type(layer).__name__ == "BatchNormalization"]
    return Depth(
        backbone_layers=len(weighty),
        trained_layers=sum(layer.trainable for layer in weighty),
        parameters=network.count_params(),
        trained_parameters=sum(math.prod(v.shape) for v in network.trainable_weights),
        frozen_batch_norms=sum(not norm.trainable for norm in norms),
    )


def layers_of(network: Any) -> list[Any]:
    """Return the layers that are not models, nested ones included, in the order in which they were
    made."""
    layers = []
    for layer in network.layers:
        layers += layers_of(layer) if hasattr(layer, "layers") else [layer]
    return layers


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


@keras.saving.register_keras_serializable("trainer")
class Preprocess(keras.layers.Layer):
    """Returns pixels x scale + offset, by channel; `reverse` first reverses the channels.

    Every preprocess_input of keras.applications is one of these; see `like`.
    """

    def __init__(
        self, scale: list[float], offset: list[float], reverse: bool, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.scale, self.offset, self.reverse = list(scale), list(offset), reverse

    @classmethod
    def like(cls, function: Callable[[Any], Any], **kwargs: Any) -> "Preprocess":
        """Return the layer that does what `function` does, found by probing it.

        Raises ValueError.
        """

        def ask(pixel: tuple[float, float, float]) -> np.ndarray:
            return np.asarray(function(np.array(pixel, np.float32).reshape(1, 1, 1, 3)))[0, 0, 0]

        offset, white = ask((0, 0, 0)), ask((255, 255, 255))
        scale = (white - offset) / 255
        red = ask((255, 0, 0)) - offset
        reverse = bool(abs(red[2]) > abs(red[0]))
        made = cls(scale.tolist(), offset.tolist(), reverse, **kwargs)
        probe = np.random.default_rng(0).uniform(0, 255, (1, 2, 2, 3)).astype(np.float32)
        expected = np.asarray(function(probe.copy()))
        if not np.allclose(np.asarray(made._float32(probe)), expected, atol=1e-3):
            raise ValueError(f"{function} is not linear in each channel")
        return made

    def call(self, images: Any) -> Any:
        return keras.ops.cast(self._float32(images), self.compute_dtype)

    def _float32(self, images: Any) -> Any:
        x = keras.ops.cast(images, "float32")
        x = keras.ops.flip(x, axis=-1) if self.reverse else x
        return x * np.asarray(self.scale, np.float32) + np.asarray(self.offset, np.float32)

    def get_config(self) -> dict[str, Any]:
        mine = {"scale": self.scale, "offset": self.offset, "reverse": self.reverse}
        return {**super().get_config(), **mine}


@keras.saving.register_keras_serializable("trainer")
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
        return own.build(config, classes, images)
    if config.model == "small_cnn":
        features = _small_cnn(images)
        name = "small_cnn"
    else:
        features = _application(config, images)
        name = config.model.lower()
        features = keras.layers.GlobalAveragePooling2D(name=f"{_HEAD}pool")(features)
    if config.dropout:
        features = keras.layers.Dropout(config.dropout, seed=config.seed, name=f"{_HEAD}dropout")(
            features
        )
    logits = keras.layers.Dense(classes, dtype="float32", name=f"{_HEAD}logits")(features)
    return keras.Model(images, logits, name=name)


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


def _small_cnn(images: Any) -> Any:
    layers = keras.layers
    x = layers.Rescaling(1 / 127.5, offset=-1.0, name="scale")(images)
    for number, filters in enumerate((16, 32, 64), start=1):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"conv{number}")(x)
        x = layers.MaxPooling2D(name=f"pool{number}")(x)
    return layers.Flatten(name="flatten")(x)


def _application(config: Config, images: Any) -> Any:
    """Return the backbone's features. The network is the same whatever its weights are:
    pretrained.py copies them into it."""
    maker, preprocess = application(config.model)
    if maker.__module__.endswith(".efficientnet"):
        mean, deviation = np.array(_MEAN), np.array(_DEVIATION)
        scale, offset = 1 / deviation, -255 * mean / deviation  # Keras' own layer divides by 255.
        pixels = Preprocess(scale.tolist(), offset.tolist(), False, name="preprocess")(images)
    else:
        pixels = Preprocess.like(preprocess, name="preprocess")(images)
    size = config.image_size
    try:
        backbone = maker(
            include_top=False, weights=None, input_tensor=pixels, input_shape=(size, size, 3)
        )
    except ValueError as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(f"--model {config.model} at --image-size {size}: {text}") from error
    return backbone.output


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
        if layer.name.startswith(_HEAD):
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
        and not layer.name.startswith(_HEAD)
        and type(layer).__name__ not in _NORMALISATION
        and any(v.path.rpartition("/")[2].endswith("kernel") for v in layer.weights)
    ]
