"""The weights that a model starts from: ImageNet's, a file's, or another job's checkpoint."""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from trainer.config import WEIGHTS_FILES, Config, UsageError
from trainer.job import storage
from trainer.job.checkpoints import Checkpoints, Torn
from trainer.report import say

Plain = Callable[[str | None], keras.Model]
"""Makes the backbone as Keras has it, without our layers, with the weights "imagenet" or None."""
_CONSTANTS = "normalization/"
"""Path of EfficientNet's mean and variance of pixels, which networks.Preprocess replaces."""


def load(network: keras.Model, config: Config, head: str, plain: Plain) -> None:
    """Put the weights that `config` names into `network`. Raises UsageError.

    Layers whose names begin with `head` keep their fresh weights.
    """
    if config.weights == "none":
        return
    if config.weights == "imagenet":
        _imagenet(network, config, head, plain)
    elif config.weights.endswith(WEIGHTS_FILES):
        _file(network, config, head, plain)
    else:
        _checkpoint(network, config, head)


def _imagenet(network: keras.Model, config: Config, head: str, plain: Plain) -> None:
    try:
        saved = plain("imagenet")
    except Exception as error:
        raise UsageError(
            f"--weights imagenet: those of {config.model} are not available here "
            f"({' '.join(str(error).split())[:120]}): put the file into KERAS_HOME/models, or "
            "give it with --weights FILE"
        ) from error
    copied = _copy(saved, network, head)
    say("weights", f"{copied} variables of ImageNet, from Keras", variables=copied)


def _file(network: keras.Model, config: Config, head: str, plain: Plain) -> None:
    try:
        content = storage.read(config.weights)
    except tf.errors.OpError as error:
        raise UsageError(f"--weights {config.weights}: cannot be read ({error.message})") from None
    with tempfile.TemporaryDirectory() as folder:
        # Keras reads HDF5 only from a disk; `weights` may lie in a bucket.
        path = Path(folder) / Path(config.weights).name
        path.write_bytes(content)
        try:
            copied = _copy(_read(plain, path), network, head)
        except Exception as error:
            text = " ".join(str(error).replace(str(path), path.name).split())[:200]
            raise UsageError(
                f"--weights {config.weights}: not those of {config.model} without its top: {text}"
            ) from error
    say("weights", f"{copied} variables from {config.weights}", variables=copied)


def _read(plain: Plain, path: Path) -> keras.Model:
    if path.suffix == ".keras":
        return keras.saving.load_model(path, compile=False)
    # The file is loaded into the model that it was made from. In a model with our own layers,
    # Keras would leave what it does not find as it is, and only warn.
    saved = plain(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        saved.load_weights(str(path))
    return saved


def _copy(saved: keras.Model, network: keras.Model, head: str) -> int:
    """Copy all of the backbone by the variables' paths; return how many. Raises ValueError if one
    is missing."""
    values = {variable.path: variable for variable in saved.weights}
    wanted = [v for v in network.weights if not v.path.startswith((head, _CONSTANTS))]
    missing = [v.path for v in wanted if v.path not in values]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    for variable in wanted:
        variable.assign(values[variable.path])
    return len(wanted)


def _checkpoint(network: keras.Model, config: Config, head: str) -> None:
    checkpoints = Checkpoints(config.weights.rstrip("/"), keep=1)

    def skipped(step: int, torn: Torn) -> None:
        say("torn", f"skipped a checkpoint that is not whole: {torn}", "WARNING", step=step)

    checkpoint = checkpoints.newest(torn=skipped)
    if checkpoint is None:
        raise UsageError(
            f"--weights {config.weights}: no {' or '.join(WEIGHTS_FILES)} file, and a folder "
            "without a whole checkpoint"
        )
    # A checkpoint numbers its variables: "0004 conv1/kernel".
    by_path = {name.partition(" ")[2]: value for name, value in checkpoint.variables.items()}
    wanted = [variable for variable in network.weights if not variable.path.startswith(head)]
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
