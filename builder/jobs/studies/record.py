"""study.json: what a study was asked for and how far it is, so that a later run can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.core.errors import InputError
from builder.jobs.description import Study
from builder.jobs.studies.results import Point, TrialResult

FILE = "study.json"
_SAME = ("metric", "goal", "algorithm", "parameters", "arguments")


@dataclass(frozen=True)
class Earlier:
    """What an earlier run of the same study left: its trials by number, its seconds, and what it
    was asked for."""

    trials: tuple[TrialResult, ...] = ()
    seconds: float = 0.0
    asked: Mapping[str, Any] = field(default_factory=dict)


def asked_for(image: str, arguments: Sequence[str], study: Study, seed: int) -> dict[str, Any]:
    """What study.json holds about the study, for a later run to compare."""
    return {
        "metric": study.metric,
        "goal": study.goal,
        "algorithm": study.algorithm,
        "parameters": [
            [name, one.model_dump(mode="json")] for name, one in study.parameters.items()
        ],
        "arguments": list(arguments),
        "trials": study.trials,
        "seed": seed,
        "image": image,
    }


def earlier(folder: Path, asked: Mapping[str, Any]) -> Earlier:
    """What a run of this study left in its folder; empty before the first run.

    Raises InputError for a study that is over (unless more trials are asked for now), or that
    asked for something else: its results cannot be compared.
    """
    path = folder / FILE
    away = "remove its folder, or give --job-dir another one"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = Earlier(
            tuple(_trial_of(one) for one in content["trials"]),
            float(content["seconds"]),
            content["asked"],
        )
        before, state, message = found.asked, content["state"], content["message"]
        different = [name for name in _SAME if before[name] != asked[name]]
        more = asked["trials"] > before["trials"]
    except FileNotFoundError:
        return Earlier()
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: no study that can be continued", away) from None
    if different:
        raise InputError(
            f"{path}: this study has begun with other {' and '.join(different)}: its results "
            "cannot be compared",
            f"write them back to go on; or {away}",
        )
    if state == "failed":
        raise InputError(f"{path}: this study failed: {message}", away)
    if state == "succeeded" and not more:
        raise InputError(
            f"{path}: this study has been run already",
            f"{away}; with more trials it goes on",
        )
    return found


def _trial_of(value: Mapping[str, Any]) -> TrialResult:
    """A TrialResult from the JSON of its fields."""
    curve = tuple(Point(**point) for point in value["curve"])
    return TrialResult(**{**value, "curve": curve})
