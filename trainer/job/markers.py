"""What a job folder says of its job: the options, and that it is done, for which length of the run.

A run that is started again to train longer is not done.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trainer.config import UNKNOWN, Config, UsageError
from trainer.job import storage

RECORD = "config.json"
"""Every option as the job has it."""

DONE = "DONE"
"""The job is done: everything that was asked for is there."""


def recorded(job_dir: str) -> dict[str, Any]:
    """Return the options by a job's RECORD, but for those of an earlier version alone; {}: there is
    none. Raises UsageError if it cannot be read.
    """
    path = f"{job_dir}/{RECORD}"
    known = {field.name for field in fields(Config)}
    try:
        values = dict(json.loads(storage.read(path)))
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in known
        }
    except storage.NOT_FOUND:
        return {}
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


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
    try:
        done = dict(json.loads(storage.read(f"{config.job_dir}/{DONE}")))
    except (*storage.NOT_FOUND, ValueError, TypeError):
        return None
    if "step" not in done:
        return None
    if not config.epochs and (config.steps == UNKNOWN or done["step"] >= config.steps):
        return done  # also where no length was asked for
    # A run that stopped early is finished, unless it is now asked to be longer.
    complete = bool(config.epochs) or done.get("early")
    return done if complete and not more(config, done) else None
