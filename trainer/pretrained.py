"""Weights to begin with: a file whose checksum is known, or another job's checkpoint."""

import hashlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer import storage
from trainer.checkpoints import Checkpoints, Torn
from trainer.config import WEIGHTS_FILES, Config, UsageError
from trainer.report import say

Plain = Callable[[], keras.Model]
"""Makes the backbone as Keras knows it, with nothing before and after it."""


def load(network: keras.Model, config: Config, head: str, plain: Plain) -> None:
    """Put the weights that `config` names into `network`. Raises UsageError.

    The layers whose names begin with `head` keep their fresh weights, unless they come from a
    checkpoint and --reuse-head says that its classes are the same.
    """
    if config.weights in ("none", "imagenet"):  # The second is there already, through Keras.
        return
    if config.weights.endswith(WEIGHTS_FILES):
        _file(network, config, head, plain)
    else:
        _checkpoint(network, config, head)


def _file(network: keras.Model, config: Config, head: str, plain: Plain) -> None:
    try:
        content = storage.read(config.weights)
    except tf.errors.OpError as error:
        raise UsageError(f"--weights {config.weights}: cannot be read ({error.message})") from None
    found = hashlib.sha256(content).hexdigest()
    if config.weights_sha256 and found != config.weights_sha256:
        raise UsageError(
            f"--weights {config.weights}: its SHA-256 is {found}, not the {config.weights_sha256} "
            "of --weights-sha256"
        )
    with tempfile.TemporaryDirectory() as folder:
        # Keras reads HDF5 only from a disk; `weights` may lie in a bucket.
        path = Path(folder) / Path(config.weights).name
        path.write_bytes(content)
        try:
            copied = _copy(plain, network, path, head)
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise UsageError(
                f"--weights {config.weights}: not those of {config.model} without its top: {text}"
            ) from error
    text = f"{copied} variables from {config.weights}, SHA-256 {found}"
    say("weights", text, variables=copied, sha256=found)


def _copy(plain: Plain, network: keras.Model, path: Path, head: str) -> int:
    """By the variables' paths, all of the backbone. Raises where one is missing."""
    if path.suffix == ".keras":
        saved = keras.saving.load_model(path, compile=False)
    else:
        # Into the very model such a file is of: in one with layers of our own, Keras would leave
        # what it does not find as it is, with no more than a warning.
        saved = plain()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            saved.load_weights(str(path))
    values = {variable.path: variable for variable in saved.weights}
    wanted = [v for v in network.variables if not v.path.startswith(head)]
    missing = [v.path for v in wanted if v.path not in values]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    for variable in wanted:
        variable.assign(values[variable.path])
    return len(wanted)


def _checkpoint(network: keras.Model, config: Config, head: str) -> None:
    checkpoints = Checkpoints(config.weights.rstrip("/"), keep=1)
    values: dict[str, Any] | None = None
    for step in reversed(checkpoints.steps()):
        try:
            values = dict(checkpoints.load(step).variables)
            break
        except Torn as torn:
            say("torn", f"a checkpoint that is not whole, passed: {torn}", "WARNING", step=step)
    if values is None:
        raise UsageError(
            f"--weights {config.weights}: no {' or '.join(WEIGHTS_FILES)} file, and a folder "
            "without a whole checkpoint"
        )
    # A checkpoint numbers its variables: "0004 conv1/kernel".
    by_path = {name.partition(" ")[2]: value for name, value in values.items()}
    wanted = [
        variable
        for variable in network.variables
        if config.reuse_head or not variable.path.startswith(head)
    ]
    for variable in wanted:
        value = by_path.get(variable.path)
        if value is None or value.shape != tuple(variable.shape):
            was = "no such variable" if value is None else f"{value.shape}"
            raise UsageError(
                f"--weights {config.weights}: {variable.path} is {tuple(variable.shape)} here, "
                f"there {was}: another --model, --image-size or number of classes"
            )
        variable.assign(value)
    text = f"{len(wanted)} variables from step {step} of {config.weights}"
    say("weights", text, variables=len(wanted), step=step)
