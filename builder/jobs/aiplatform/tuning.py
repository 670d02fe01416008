"""The hyperparameters of an old configuration as a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builder.jobs.aiplatform import render as legacy
from builder.jobs.aiplatform.oldjob import OldJob, Path

TOP: Final = ("hyperparameters",)
_TUNING: Final = {
    "goal": "goal",
    "hyperparameterMetricTag": "metric",
    "maxTrials": "trials",
    "maxParallelTrials": "parallel",
    "maxFailedTrials": "max_failed",
}
_MORE: Final = ("params", "algorithm", "enableTrialEarlyStopping", "resumePreviousJobId")
_PARAM: Final = (
    *("parameterName", "type", "minValue", "maxValue"),
    *("categoricalValues", "discreteValues", "scaleType"),
)
_KINDS: Final = ("DOUBLE", "INTEGER", "CATEGORICAL", "DISCRETE")
_SCALES: Final = {value: key for key, value in legacy.SCALES.items()}
_ALGORITHMS: Final = {value: key for key, value in legacy.ALGORITHMS.items()}


_METRIC: Final = "training/hptuning/metric"
"""The metric of a study that named none. Source: ml.v1, HyperparameterSpec."""


def study(reader: OldJob, old: Any) -> dict[str, Any]:
    """The study. Raises InputError."""
    tuning = reader.only(old, (*_TUNING, *_MORE), TOP)
    found: dict[str, Any] = {"metric": _METRIC}
    if "hyperparameterMetricTag" not in tuning:
        reader.notes.append(f"no hyperparameterMetricTag: the service took {_METRIC}")
    for name, new in _TUNING.items():
        if name in tuning:
            value = reader.text(tuning[name], (*TOP, name))
            found[new] = value if new == "metric" else plain(value.lower())
            reader.came[f"study.{new}"] = (*TOP, name)
    if algorithm := tuning.get("algorithm"):
        here = (*TOP, "algorithm")
        found["algorithm"] = _ALGORITHMS[
            reader.choice(algorithm, tuple(_ALGORITHMS), here, "algorithm")
        ]
        reader.tell("kept", here, came="study.algorithm")
    if "enableTrialEarlyStopping" in tuning:
        if str(tuning["enableTrialEarlyStopping"]).lower() == "true":
            found["early_stopping"] = "curve"
        reader.tell("kept", (*TOP, "enableTrialEarlyStopping"), came="study.early_stopping")
    if "resumePreviousJobId" in tuning:
        why = "a study cannot take up an old one's trials"
        reader.tell("dropped", (*TOP, "resumePreviousJobId"), why)
    params = tuning.get("params") or []
    if not isinstance(params, list):
        raise reader.refuse((*TOP, "params"), "expected a list", "write - parameterName: rate")
    found["parameters"] = {}
    for index, one in enumerate(params):
        here = (*TOP, f"params[{index}]")
        name, spec = _parameter(reader, one, here)
        if name in found["parameters"]:
            raise reader.refuse(here, f"{name} stands twice", "keep one")
        found["parameters"][name] = spec
        reader.came[f"study.parameters.{name}"] = here
    return found


def _parameter(reader: OldJob, value: Any, here: Path) -> tuple[str, dict[str, Any]]:
    one = reader.only(value, _PARAM, here)
    if "parameterName" not in one:
        raise reader.refuse(here, "has no parameterName", "add it")
    name = reader.text(one["parameterName"], (*here, "parameterName"))
    if "type" not in one:
        raise reader.refuse(here, "has no type", f"add type: one of {', '.join(_KINDS)}")
    kind = reader.choice(one["type"], _KINDS, (*here, "type"), "type of a parameter").lower()
    spec = _range(reader, one, here, kind) if kind in ("double", "integer") else _listed(one, kind)
    scale = _SCALES.get(str(one.get("scaleType", "UNIT_LINEAR_SCALE")))
    if "scaleType" in one and scale is None and one["scaleType"] not in ("NONE", None):
        known = (*_SCALES, "NONE")
        reader.choice(one["scaleType"], known, (*here, "scaleType"), "scale")
    if scale not in (None, "linear") and len(spec.get("values", ())) != 1:
        spec["scale"] = scale
    elif "scaleType" in one and scale is None:
        reader.tell("kept", (*here, "scaleType"))
    elif kind == "categorical" and "scaleType" in one:
        reader.tell("dropped", (*here, "scaleType"), "words have no scale")
    return name, spec


def _range(reader: OldJob, one: Mapping[str, Any], here: Path, kind: str) -> dict[str, Any]:
    ends = {}
    for name, new in (("minValue", "min"), ("maxValue", "max")):
        text = one.get(name)
        if text is None:
            raise reader.refuse(here, f"has no {name}", f"add {name}")
        ends[new] = plain(reader.text(text, (*here, name)))
    try:
        same = float(ends["min"]) == float(ends["max"])
    except ValueError:
        return {**ends, "type": kind}
    if same:
        why = f"one value and no range: {ends['min']} is the only one that is tried"
        for name in ("minValue", "maxValue", "type"):
            reader.tell("changed", (*here, name), why)
        return {"values": [ends["min"]], "type": "discrete"}
    return {**ends, "type": kind}


def _listed(one: Mapping[str, Any], kind: str) -> dict[str, Any]:
    values = one.get(f"{kind}Values") or []
    values = values if isinstance(values, list) else [values]
    if kind == "discrete":
        return {"values": [plain(value) for value in values], "type": kind}
    return {"values": values, "type": kind}


def plain(value: Any) -> Any:
    """A number from its text, if it is written back the same."""
    for kind in (int, float):
        try:
            number = kind(str(value))
        except ValueError:
            continue
        if str(number) == value:
            return number
    return value
