"""schema.json has the fields of the API's own message, as the installed client knows it."""

from __future__ import annotations

from typing import Any

import pytest

from cloudbuild_local.reader import schema

cloudbuild_v1 = pytest.importorskip("google.cloud.devtools.cloudbuild_v1")

NEWER = {
    "Artifacts": {"genericArtifacts", "oci"},
    "BuildOptions": {"pubsubTopic", "rankedMachineSeries"},
    "BuildStep": {"results"},
    "Dependency": {"genericArtifact"},
    "GenericArtifact": {"folder", "registryPath"},
    "GenericArtifactDependency": {"resource", "destPath"},
    "MavenArtifact": {"deployFolder"},
    "Oci": {"file", "registryPath", "tags"},
    "StepResult": {"name", "attestationContent", "attestationType"},
}
"""Fields of the API (discovery document, revision 20261029) that the client does not have yet."""


def definitions(message: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Return the message of the client, and those in it, as schema.json has them."""
    if message.name not in known:
        known[message.name] = properties = {}
        for field in message.fields:
            properties[field.json_name] = kind(field, known)
    return known


def kind(field: Any, known: dict[str, Any]) -> dict[str, Any]:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        item = inner.fields_by_name["value"]
        return {"type": "object", "additionalProperties": single(item, known)}
    item = single(field, known)
    return {"type": "array", "items": item} if field.is_repeated else item


def single(field: Any, known: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Duration":
            return {"type": "string", "format": "duration"}
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return {"type": "string"}
        definitions(field.message_type, known)
        return {"$ref": f"#/definitions/{field.message_type.name}"}
    if field.enum_type is not None:
        return {"enum": [value.name for value in field.enum_type.values]}
    plain = {
        field.TYPE_BOOL: {"type": "boolean"},
        field.TYPE_DOUBLE: {"type": "number"},
        field.TYPE_FLOAT: {"type": "number"},
        field.TYPE_BYTES: {"type": "string", "format": "byte"},
        field.TYPE_STRING: {"type": "string"},
    }
    return plain.get(field.type, {"type": "integer"})


def test_it_is_the_client_s_message_and_a_few_newer_fields() -> None:
    client = definitions(cloudbuild_v1.Build.pb(cloudbuild_v1.Build()).DESCRIPTOR, {})
    ours = {}
    for name, message in schema.document()["definitions"].items():
        fields = message["properties"].items()
        ours[name] = {field: type_ for field, type_ in fields if field not in NEWER.get(name, ())}
    assert {name: fields for name, fields in ours.items() if fields} == client
