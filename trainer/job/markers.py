"""What a job folder says of its job: done, given up, or (a dedicated evaluator's word) no better.

Each says for which length of the run it holds: a run that is started again to train longer is
neither done nor to be stopped by what was found of the shorter one.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainer.config import Config
from trainer.job import storage

DONE = "DONE"
"""Everything asked for is there."""
FAILED = "FAILED"
"""The trainers have ended for good; there until they are started again."""
LEAVING = "LEAVING"
"""A parameter server has been told to stop; there until the chief is started again."""
EVALUATIONS = "evaluations.json"
"""What a dedicated evaluator has found."""


def read(path: str) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        return dict(json.loads(storage.read(path)))
    except (*storage.NOT_FOUND, ValueError):
        return {}


def write(path: str, content: Mapping[str, Any]) -> None:
    """A JSON object, whole or not at all. Raises one of storage.FAILURES."""
    storage.write(path, json.dumps(content).encode())


def asked(config: Config) -> dict[str, float]:
    """How long a run is asked for, for `more` to compare."""
    return {"asked": config.steps, "epochs": config.epochs}


def more(config: Config, before: Mapping[str, Any]) -> bool:
    """Does `config` ask for a longer run than `before`, which holds what `asked` gave then?

    By the option that was given: steps that come of --epochs depend on the number of replicas. No
    where nothing is known of before.
    """
    key, now = ("epochs", config.epochs) if config.epochs else ("asked", config.steps)
    return now > before.get(key, now)


def finished(config: Config) -> dict[str, Any] | None:
    """What DONE says, where this job did all that is asked for."""
    done = read(f"{config.job_dir}/{DONE}")
    if not done:
        return None
    if not config.epochs and done["step"] >= config.steps:
        return done
    # Stopped early it is finished, unless more is asked for than was then.
    complete = bool(config.epochs) or done.get("early")
    return done if complete and not more(config, done) else None
