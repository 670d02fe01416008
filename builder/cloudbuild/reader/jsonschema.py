"""The fields of a build as a JSON Schema, for editors."""

from __future__ import annotations

import re
from typing import Any

from builder.cloudbuild.reader.fields import ListOf, MapOf, Message, OneOf, Type, schema

_DRAFT = "http://json-schema.org/draft-07/schema#"
_KINDS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "bytes": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": ["integer", "string"], "pattern": r"^-?\d+$"},
    "float": {"type": "number"},
    "duration": {"type": "string", "pattern": r"^\d+(\.\d{1,9})?s$"},
}


def json_schema() -> dict[str, Any]:
    """The schema. Each field has both of its names, `waitFor` and `wait_for`."""
    definitions: dict[str, Any] = {}
    build = _of(schema(), definitions)
    return {"$schema": _DRAFT, "title": "cloudbuild.yaml", **build, "definitions": definitions}


def _of(kind: Type, definitions: dict[str, Any]) -> dict[str, Any]:
    if isinstance(kind, OneOf):
        return {"enum": list(kind.names)}
    if isinstance(kind, ListOf):
        item = _of(kind.item, definitions)
        return {"anyOf": [{"type": "array", "items": item}, item]}
    if isinstance(kind, MapOf):
        return {"type": "object", "additionalProperties": _of(kind.item, definitions)}
    if isinstance(kind, Message):
        if kind.name not in definitions:
            definitions[kind.name] = {}  # a message may hold itself
            definitions[kind.name] = _message(kind, definitions)
        return {"$ref": f"#/definitions/{kind.name}"}
    return dict(_KINDS[kind.kind])


def _message(kind: Message, definitions: dict[str, Any]) -> dict[str, Any]:
    properties = {}
    for name, inner in kind.fields.items():
        snake = re.sub("([A-Z])", r"_\1", name).lower()
        properties[name] = properties[snake] = _of(inner, definitions)
    return {"type": "object", "properties": properties, "additionalProperties": False}
