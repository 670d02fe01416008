"""The contract with a training program: options, a variable, lines of events, exit codes.

The factory starts a training program with these options, reads what it prints on stdout, and
concludes from its exit code how it ended. Our own trainer keeps to the same words
(tests/test_contract.py compares them), without importing this module: it runs in images that hold
nothing of the factory.

An event is one line with one JSON object, as Cloud Logging reads it:

    {"severity": "INFO", "message": "step 10 of 200: loss 0.31", "event": "step", "step": 10, ...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

RECORDS: Final = "--records"
"""The folder of TFRecords to train on."""
JOB_DIR: Final = "--job-dir"
"""The folder for everything that the run writes; a run that finds a checkpoint there resumes."""
STEPS: Final = "--steps"
"""Optimizer steps of the whole run, those before a restart included."""
BATCH: Final = "--batch"
"""Examples a step, over all replicas."""
BATCH_SIZE: Final = "--batch-size"
"""The longer name of BATCH."""
CHECKPOINT_EVERY: Final = "--checkpoint-every"
"""Steps between two checkpoints."""

ACCELERATOR: Final = "TRAINING_ACCELERATOR"
"""Environment variable: what a place gives to the program, as `accelerator` writes it."""
IMAGE: Final = "TRAINING_IMAGE"
"""Environment variable: the image that a job runs, by its digest."""
CPU: Final = "none"
"""The value of ACCELERATOR where the program shall compute on the CPU."""
ANY_GPU: Final = "GPU"
"""The name of a GPU of any kind in ACCELERATOR."""

STEP: Final = "step"
"""Event: steps were trained. Fields: step, loss; also steps, examples_per_second, eta_seconds,
gpu_percent, gpu_memory_bytes."""
CHECKPOINT: Final = "checkpoint"
"""Event: a checkpoint is safely written. Field: step."""
RESUMED: Final = "resumed"
"""Event: the run goes on from a checkpoint. Field: step."""
EVALUATED: Final = "evaluated"
"""Event: the model was evaluated on held-out examples. Fields: step, loss, accuracy."""
TRIAL: Final = "trial"
"""Event: the metric of a study's trial. Fields: tag (the metric's name), value, step."""

OK: Final = 0
FAULT: Final = 1
USAGE: Final = 2
OUTSIDE: Final = 3
NOT_FINITE: Final = 4
RESTART: Final = 143
"""Exit codes: done; a fault of the program; wrong options; a folder that cannot be written; a loss
that is not finite; stopped from outside, start the program again."""


@dataclass(frozen=True)
class TrainerEvent:
    """One event that a training program reported; a field that its line lacks is None."""

    name: str
    step: int | None = None
    loss: float | None = None
    """NaN where the line says so."""
    message: str = ""
    severity: str = "INFO"
    accuracy: float | None = None
    steps: int | None = None
    examples_per_second: float | None = None
    eta_seconds: float | None = None
    """The estimated time until the run ends."""
    gpu_percent: float | None = None
    """The share of time in which the program's GPUs computed: their mean, 0 to 100."""
    gpu_memory_bytes: int | None = None
    """Their memory in use, all together."""


def accelerator(
    name: str,
    count: int | None = None,
    *,
    capability: str | None = None,
    cuda: str | None = None,
    driver: str | None = None,
    topology: str | None = None,
) -> str:
    """Return the value of ACCELERATOR: `V100:2,capability=7.0,cuda=12,driver=525`, or of a TPU
    `TPU-v5e:4,topology=4x4`.

    count: GPUs, or chips of a TPU on one host. capability: of the GPU; driver: the oldest for the
    image; cuda: the version that this driver brings; topology: of all hosts of a TPU.
    """
    counted = name if count is None else f"{name}:{count}"
    known = {"capability": capability, "cuda": cuda, "driver": driver, "topology": topology}
    return ",".join([counted, *(f"{key}={value}" for key, value in known.items() if value)])


def fields(line: str) -> dict[str, Any]:
    """Return the JSON object that a line holds; an empty one for any other line."""
    if not line.startswith("{"):
        return {}
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def event(values: Mapping[str, Any]) -> TrainerEvent | None:
    """Return the event in a line's fields; None where they name none."""
    name = values.get("event")
    if not isinstance(name, str):
        return None
    return TrainerEvent(
        name=name,
        step=_whole(values.get("step")),
        loss=_number(values.get("loss")),
        message=str(values.get("message", "")),
        severity=str(values.get("severity", "INFO")),
        accuracy=_number(values.get("accuracy")),
        steps=_whole(values.get("steps")),
        examples_per_second=_number(values.get("examples_per_second")),
        eta_seconds=_number(values.get("eta_seconds")),
        gpu_percent=_number(values.get("gpu_percent")),
        gpu_memory_bytes=_whole(values.get("gpu_memory_bytes")),
    )


def metric(values: Mapping[str, Any], name: str) -> float | None:
    """Return the value of a metric in a line's fields: of the event TRIAL with this tag, or the
    field of this name in any event. None where there is none, or it is not finite."""
    if values.get("event") == TRIAL:
        values = {"event": TRIAL, str(values.get("tag")): values.get("value")}
    number = _number(values.get(name)) if isinstance(values.get("event"), str) else None
    return number if number is not None and math.isfinite(number) else None


def parse(line: str) -> TrainerEvent | None:
    """Return the event that a line reports; None for any other line."""
    return event(fields(line))


def words(line: str) -> str:
    """Return what a line says to people: the message of its JSON object, or the line itself."""
    values = fields(line)
    return str(values["message"]) if "message" in values else line.strip()


def options(arguments: Sequence[str]) -> dict[str, str]:
    """Return the value of each option in a program's arguments, "" for one without; the last one
    wins.

    Both `--steps=10` and `--steps 10` are read.
    """
    given: dict[str, str] = {}
    for index, word in enumerate(arguments):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        following = arguments[index + 1] if index + 1 < len(arguments) else "--"
        given[name] = value if equals or following.startswith("--") else following
    return given


def _whole(value: object) -> int | None:
    """Return a whole number. Cloud Logging gives every number back as a float."""
    number = _number(value) if not isinstance(value, str) else None
    return int(number) if number is not None and not number % 1 else None


def _number(value: object) -> float | None:
    """Return a number; JSON knows neither NaN nor infinity, so a program writes those as text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return math.nan
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
