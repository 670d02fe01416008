"""The fields of a build and their types: schema.json, a JSON Schema of the API's message Build.

It has what google-cloud-build 3.43 knows, and a few fields that only the API's discovery document
(cloudbuild.v1, revision 20261029) has. tests/test_schema.py compares it with the client.
"""

import functools
import json
import re
from importlib import resources
from typing import Any

Schema = dict[str, Any]
"""A part of the JSON Schema: the type of one value."""


@functools.cache
def document() -> Schema:
    """Return the whole schema."""
    file = resources.files("cloudbuild_local.reader") / "schema.json"
    return dict(json.loads(file.read_text(encoding="utf-8")))


def message(name: str) -> Schema:
    """Return the type of a message of the API, such as BuildStep."""
    return dict(document()["definitions"][name])


def name_of(schema: Schema) -> str:
    """Return the name of the message that a type refers to, "" for another type."""
    return str(schema.get("$ref", "")).rpartition("/")[2]


def for_editors() -> Schema:
    """Return the schema with all that Cloud Build takes: both spellings of a name, one value in
    the place of a list, and a number in quotes."""
    whole = dict(document())
    whole["definitions"] = {name: _loose(message(name)) for name in whole["definitions"]}
    return whole


def _loose(schema: Schema) -> Schema:
    if "properties" in schema:
        properties = {name: _loose(item) for name, item in schema["properties"].items()}
        snake = {re.sub("([A-Z])", r"_\1", name).lower(): item for name, item in properties.items()}
        return {**schema, "properties": {**properties, **snake}}
    if schema.get("type") == "array":
        item = _loose(schema["items"])
        return {"anyOf": [{"type": "array", "items": item}, item]}
    if schema.get("type") == "integer":
        return {"type": ["integer", "string"], "pattern": r"^-?\d+$"}
    if schema.get("format") == "duration":  # JSON Schema means ISO 8601 by that word
        return {"type": "string", "pattern": r"^\d+(\.\d{1,9})?s$"}
    return {name: value for name, value in schema.items() if name != "format"}
