"""The words of AI Platform's TrainingInput in which the jobs of other services are said."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from builder.facts import DATA, read_table

TABLE: Final = read_table(DATA / "aiplatform.yaml")
"""What the old words are called today, and those of other services in the old ones."""
POOLS: Final = ("master", *TABLE["roles"])
"""The roles of a job's replicas, in the order of Vertex AI's pools."""
SAME: Final = "as the chief"
"""The machine type of a role whose replicas are as the chief."""
TPU: Final = re.compile(r"(?:tpu-?)?(v[2-6](?:p|e|litepod)?|7x)-([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    path: str
    """In the words of a TrainingInput."""
    value: Any
    was: str
    """Where it stands in the job, such as `workerPoolSpecs.0.replicaCount`."""


def flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each value with its path; a list is a value, unless it is one of mappings."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {str(index): inner for index, inner in enumerate(value)}
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flat(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value


def of_accelerator(role: str, name: str, count: str, was: str) -> Iterator[Field]:
    """Yield an accelerator as other services call it: `H100`, `h100-80gb`, `tpu-v5litepod-16`."""
    if tpu := TPU.fullmatch(name):
        generation = tpu[1].lower().replace("litepod", "e")
        name, count = "TPU7x" if generation == "7x" else f"TPU-{generation}", tpu[2]
        count = str(int(count) // 2) if generation == "v5p" else count
    name = re.sub(r"^(nvidia-)?tesla-|-(sxm[0-9]?|pcie|hbm3e?)(?=-|$)", "", name, flags=re.I)
    yield Field(f"{role}Config.acceleratorConfig.type", name, was)
    yield Field(f"{role}Config.acceleratorConfig.count", count, was)


def of_nodes(count: str, was: str) -> Iterator[Field]:
    """Yield the replicas of a job whose nodes are alike: the chief, and workers like it."""
    if count.isdigit() and int(count) > 1:
        yield Field("workerCount", str(int(count) - 1), was)
        yield Field("workerType", SAME, was)


def of_variable(variable: Mapping[str, Any], was: str) -> Field:
    name, source = variable.get("name"), variable.get("valueFrom") or {}
    path, value = f"environment.{name}", variable.get("value", "")
    if secret := source.get("secretKeyRef"):
        value = {"secret": secret["name"], "key": secret["key"]}
    elif source:
        path = f"{was}.{name}"
    return Field(path, value, f"{was}.{name}")
