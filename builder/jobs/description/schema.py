"""jobs/schema.json: the JSON Schema of a job's file, with which editors complete it."""

from __future__ import annotations

import json
from typing import Any

from builder.jobs.description.model import Job

SCHEMA = "schema.json"


def schema() -> dict[str, Any]:
    """JSON Schema of jobs/*.yaml, for an editor."""
    result = Job.model_json_schema(mode="validation")
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    words = {"type": ["string", "number", "boolean", "null"]}
    fields, more = result["properties"], result["$defs"]
    for owner in (fields, more["PoolSpec"]["properties"]):
        owner["arguments"] = {
            "description": owner["arguments"]["description"],
            "anyOf": [
                {"type": "array", "items": {"type": ["string", "number"]}},
                {"type": "object", "additionalProperties": words},
            ],
        }
        owner["environment"] = {
            "description": owner["environment"]["description"],
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        }
    short = {"type": "string", "pattern": r"^([0-9]+ *[x*] *)?[A-Za-z][A-Za-z0-9_.-]*$"}
    owners = (fields, more["PoolSpec"]["properties"], more["Alternative"]["properties"])
    for owner in owners:
        owner["accelerators"]["anyOf"].insert(0, short)
    for name in ("workers", "parameter_servers", "evaluator"):
        more["Replicas"]["properties"][name]["anyOf"].insert(0, {"type": "integer", "minimum": 1})
    time = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?[smhd] *)+$"}
    cheapest = more["Cheapest"]["properties"]
    for name in ("of", "regions", "strategies"):
        listed = cheapest[name]
        one = {"anyOf": [short, listed["items"]]} if name == "of" else listed["items"]
        told = {"description": listed.pop("description")}
        cheapest[name] = {**told, "anyOf": [one, {**listed, "items": one}]}
    for name in ("timeout", "max_wait", "patience"):
        told = more["Scheduling"]["properties"][name]["description"]
        more["Scheduling"]["properties"][name] = {**time, "description": told}
    parameter = more["Parameter"]["properties"]
    for name in ("min", "max"):
        parameter[name]["anyOf"].insert(0, {"type": "number"})
    parameter["values"] = {
        "description": parameter["values"]["description"],
        "type": "array",
        "items": {"type": ["string", "number"]},
    }
    parameter["when"] = {
        "description": parameter["when"]["description"],
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"type": ["string", "number"]}},
    }
    return result


def schema_text() -> str:
    """The bytes of jobs/schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
