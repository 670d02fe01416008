"""The fields of a build and their types, by the API's own message.

The message is `google.devtools.cloudbuild.v1.Build` as the installed client knows it. NEWER has a
few fields that the API has and the client does not have yet.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Scalar:
    """Text, a number or a truth value."""

    kind: Literal["string", "bytes", "bool", "int", "float", "duration"]


@dataclass(frozen=True)
class OneOf:
    """A name out of a list."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class ListOf:
    """A list."""

    item: Type


@dataclass(frozen=True)
class MapOf:
    """A mapping with keys of the user's own."""

    item: Type


@dataclass(frozen=True)
class Message:
    """A mapping with the API's own fields, by the names that JSON has for them."""

    name: str
    fields: Mapping[str, Type]


Type = Scalar | OneOf | ListOf | MapOf | Message

TEXT, TEXTS = Scalar("string"), ListOf(Scalar("string"))

NEWER: Mapping[str, Mapping[str, Type]] = {
    "BuildStep": {
        "results": ListOf(
            Message(
                "StepResult",
                {"name": TEXT, "attestationContent": TEXT, "attestationType": TEXT},
            )
        )
    },
    "BuildOptions": {"pubsubTopic": TEXT, "rankedMachineSeries": TEXTS},
    "Artifacts": {
        "genericArtifacts": ListOf(
            Message("GenericArtifact", {"folder": TEXT, "registryPath": TEXT})
        ),
        "oci": ListOf(Message("Oci", {"file": TEXT, "registryPath": TEXT, "tags": TEXTS})),
    },
    "MavenArtifact": {"deployFolder": TEXT},
    "Dependency": {
        "genericArtifact": Message(
            "GenericArtifactDependency", {"resource": TEXT, "destPath": TEXT}
        )
    },
}
"""Fields of the API (discovery document cloudbuild.v1, revision 20261029) that google-cloud-build
3.42.0 does not have yet."""


@functools.cache
def schema() -> Message:
    """The message of a Build."""
    from google.cloud.devtools import cloudbuild_v1

    return _message(cloudbuild_v1.Build.pb(cloudbuild_v1.Build()).DESCRIPTOR)


def _message(descriptor: Any) -> Message:
    own = {one.json_name: _type(one) for one in descriptor.fields}
    return Message(descriptor.name, {**own, **NEWER.get(descriptor.name, {}), **own})


def _type(one: Any) -> Type:
    inner = one.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return MapOf(_single(inner.fields_by_name["value"]))
    return ListOf(_single(one)) if one.is_repeated else _single(one)


def _single(one: Any) -> Type:
    if one.message_type is not None:
        if one.message_type.full_name == "google.protobuf.Duration":
            return Scalar("duration")
        if one.message_type.full_name == "google.protobuf.Timestamp":
            return TEXT
        return _message(one.message_type)
    if one.enum_type is not None:
        return OneOf(tuple(value.name for value in one.enum_type.values))
    if one.type == one.TYPE_BOOL:
        return Scalar("bool")
    if one.type in (one.TYPE_DOUBLE, one.TYPE_FLOAT):
        return Scalar("float")
    if one.type == one.TYPE_BYTES:
        return Scalar("bytes")
    return TEXT if one.type == one.TYPE_STRING else Scalar("int")


def newer_in(value: Mapping[str, Any]) -> Iterator[str]:
    """The fields of NEWER that a file uses, as dotted names."""
    for step in value.get("steps", ()):
        yield from (f"steps.{name}" for name in NEWER["BuildStep"] if name in step)
    for part, message in (("options", "BuildOptions"), ("artifacts", "Artifacts")):
        yield from (f"{part}.{name}" for name in NEWER[message] if name in value.get(part, {}))
    for artifact in value.get("artifacts", {}).get("mavenArtifacts", ()):
        yield from (
            f"artifacts.mavenArtifacts.{name}"
            for name in NEWER["MavenArtifact"]
            if name in artifact
        )
    for dependency in value.get("dependencies", ()):
        yield from (f"dependencies.{name}" for name in NEWER["Dependency"] if name in dependency)


@functools.cache
def named(name: str) -> Message:
    """The message of this name inside a Build's `steps` or `options`."""
    inner = schema().fields["steps" if name == "BuildStep" else "options"]
    found = inner.item if isinstance(inner, ListOf) else inner
    assert isinstance(found, Message)
    return found
