"""The configuration of a run: command line over environment over defaults, checked once.

Needs no TensorFlow, so a mistake on the command line is answered at once.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

PRECISIONS = ("auto", "float32", "mixed_float16", "mixed_bfloat16")


class UsageError(Exception):
    """What the user gave cannot be right: one line, exit code 2."""


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on. Folders may be local paths or gs:// URLs."""

    records: str
    """Folder of train-*.tfrecord, validation-*.tfrecord and labels.txt."""
    job_dir: str
    model_dir: str
    checkpoint_dir: str
    log_dir: str
    steps: int
    """Optimizer steps of the whole run, those before a restart included."""
    batch_size: int
    """Examples a step over all replicas."""
    learning_rate: float
    image_size: int
    """Pixels; every image is resized to a square of this side."""
    checkpoint_every: int
    """Steps."""
    keep_checkpoints: int
    evaluate_every: int
    """Steps; 0: only at the end."""
    steps_per_loop: int
    """Steps between two looks of the host at loss, signals and clock."""
    seed: int
    precision: str
    deterministic: bool


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing several lines and leaving."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help lists the options)")


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """The run that these arguments and Vertex AI's AIP_* variables ask for.

    An option of its own wins over AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR,
    and these win over the folders below --job-dir. Raises UsageError.
    """
    parser = _Parser(prog="python -m trainer.task", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--records", required=True, help="folder of TFRecords and labels.txt")
    add("--job-dir", help="folder of everything the run writes (default: beside AIP_MODEL_DIR)")
    add("--model-dir", help="SavedModel (default: AIP_MODEL_DIR or JOB_DIR/model)")
    add("--checkpoint-dir", help="default: AIP_CHECKPOINT_DIR or JOB_DIR/checkpoints")
    add("--log-dir", help="TensorBoard (default: AIP_TENSORBOARD_LOG_DIR or JOB_DIR/logs)")
    add("--steps", type=int, default=1000, help="optimizer steps of the whole run")
    add("--batch-size", "--batch", type=int, default=32, help="examples a step, all replicas")
    add("--learning-rate", type=float, default=0.002)
    add("--image-size", type=int, default=32, help="pixels a side")
    add("--checkpoint-every", type=int, default=100, help="steps")
    add("--keep-checkpoints", type=int, default=3)
    add("--evaluate-every", type=int, default=0, help="steps; 0: only at the end")
    add("--steps-per-loop", type=int, default=10)
    add("--seed", type=int, default=0)
    add("--precision", choices=PRECISIONS, default="auto", help="auto: by the device")
    add("--deterministic", action="store_true", help="same bits each time, for some speed")
    given = vars(parser.parse_args(arguments))

    aip_model = environment.get("AIP_MODEL_DIR")
    job_dir = given["job_dir"] or (aip_model and aip_model.rstrip("/").rpartition("/")[0])
    if not job_dir:
        raise UsageError("where to write to is not known: give --job-dir or set AIP_MODEL_DIR")
    job_dir = job_dir.rstrip("/") or "/"
    for key, variable, name in (
        ("model_dir", "AIP_MODEL_DIR", "model"),
        ("checkpoint_dir", "AIP_CHECKPOINT_DIR", "checkpoints"),
        ("log_dir", "AIP_TENSORBOARD_LOG_DIR", "logs"),
    ):
        folder = given[key] or environment.get(variable) or f"{job_dir}/{name}"
        given[key] = folder.rstrip("/")

    for key, least in (
        ("steps", 1),
        ("batch_size", 1),
        ("image_size", 8),
        ("checkpoint_every", 1),
        ("keep_checkpoints", 1),
        ("evaluate_every", 0),
        ("steps_per_loop", 1),
        ("seed", 0),
    ):
        if given[key] < least:
            option = key.replace("_", "-")
            raise UsageError(f"--{option} {given[key]}: must be {least} or more")
    if not (math.isfinite(given["learning_rate"]) and given["learning_rate"] > 0):
        raise UsageError(f"--learning-rate {given['learning_rate']}: must be more than 0")
    return Config(**{**given, "job_dir": job_dir})
