"""Markers in a job folder: the job is done, has failed, or its dedicated evaluator's results.

Each marker says for which length of the run it holds. A run that is started again to train longer
is not done, and what the evaluator found of the shorter run does not stop it.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainer.config import UNKNOWN, Config
from trainer.job import storage

DONE = "DONE"
"""The job is done: everything that was asked for is there."""
FAILED = "FAILED"
"""The trainers have ended for good. Removed when they are started again."""
LEAVING = "LEAVING"
"""A parameter server has been told to stop. Removed when the chief is started again."""
EVALUATIONS = "evaluations.json"
"""The results of a dedicated evaluator."""


def read(path: str) -> dict[str, Any]:
    """Return the JSON object at `path`; {} if there is none."""
    try:
        return dict(json.loads(storage.read(path)))
    except (*storage.NOT_FOUND, ValueError):
        return {}


def write(path: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all. Raises one of storage.FAILURES."""
    storage.write(path, json.dumps(content).encode())


def requested(config: Config) -> dict[str, float]:
    """Return the length that `config` asks for, as a marker holds it for `more`."""
    return {"asked": config.steps, "epochs": config.epochs}


def more(config: Config, before: Mapping[str, Any]) -> bool:
    """Return whether `config` asks for a longer run than the marker `before`, which has what
    `requested` gave.

    It compares the option that was given, because steps that follow from --epochs depend on the
    number of replicas. False if the marker does not say.
    """
    key, now = ("epochs", config.epochs) if config.epochs else ("asked", config.steps)
    return now > before.get(key, now)


def finished(config: Config) -> dict[str, Any] | None:
    """Return what DONE says, if this job has done all that `config` asks for; otherwise None."""
    done = read(f"{config.job_dir}/{DONE}")
    if not done:
        return None
    if not config.epochs and (config.steps == UNKNOWN or done["step"] >= config.steps):
        return done  # also where no length was asked for
    # A run that stopped early is finished, unless it is now asked to be longer.
    complete = bool(config.epochs) or done.get("early")
    return done if complete and not more(config, done) else None
