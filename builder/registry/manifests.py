"""What a registry holds: descriptors, manifests, indexes and configurations.

This is the only module that writes OCI JSON (OCI image specification 1.1). The same content is
always written as the same bytes, and so has the same digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from builder.registry import decoding, names

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
OCI_LAYER_ZSTD: Final = "application/vnd.oci.image.layer.v1.tar+zstd"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
EMPTY: Final = b"{}"
"""Content of an artifact's config ("empty descriptor")."""


def digest_of(data: bytes) -> str:
    """Return the digest that names these bytes in a registry."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Descriptor:
    """A pointer to content, as manifests carry it. `size` in bytes."""

    media_type: str
    digest: str
    size: int
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, media_type: str, data: bytes) -> Descriptor:
        return cls(media_type, digest_of(data), len(data))

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Descriptor:
        """Return the descriptor in this JSON object. Raises OutsideError for another shape."""
        digest = value.get("digest") or ""
        if digest and not decoding.digest(digest):
            raise decoding.malformed("a descriptor's digest", "none")
        return cls(
            media_type=decoding.text(value, "mediaType") or "",
            digest=digest,
            size=decoding.size(value),
            artifact_type=decoding.text(value, "artifactType"),
            annotations=decoding.words(value, "annotations"),
        )

    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index: its exact bytes, and what they say."""

    data: bytes = field(repr=False)
    media_type: str

    @property
    def digest(self) -> str:
        """The digest of the bytes, whatever a registry claims it is."""
        return digest_of(self.data)

    @property
    def content(self) -> dict[str, Any]:
        """The JSON object; empty where the bytes are no JSON object."""
        return decoding.object_in(self.data)

    @property
    def is_index(self) -> bool:
        return self.media_type in (OCI_INDEX, DOCKER_LIST)

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor.of(self.media_type, self.data)

    @property
    def config(self) -> Descriptor:
        """The descriptor of the image's configuration; empty for an index."""
        return Descriptor.read(decoding.mapping(self.content, "config"))

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The descriptors of the layers, the lowest first; none for an index."""
        return tuple(map(Descriptor.read, decoding.objects(self.content, "layers")))

    @property
    def manifests(self) -> tuple[Descriptor, ...]:
        return tuple(map(Descriptor.read, decoding.objects(self.content, "manifests")))

    @property
    def subject(self) -> str | None:
        return decoding.digest(decoding.mapping(self.content, "subject").get("digest"))

    def of_platform(self, system: str, architecture: str) -> Descriptor | None:
        """Return the manifest that an index lists for a platform; the first of several."""
        for entry in decoding.objects(self.content, "manifests"):
            platform = decoding.mapping(entry, "platform")
            if (platform.get("os"), platform.get("architecture")) == (system, architecture):
                return Descriptor.read(entry)
        return None


def configuration_in(data: bytes) -> dict[str, Any]:
    """Return the image's configuration in these bytes. Raises OutsideError for another shape."""
    value = decoding.object_in(data)
    if not value:
        raise decoding.malformed("a configuration", "no JSON object")
    for name in ("architecture", "os"):
        decoding.text(value, name)
    settings = decoding.mapping(value, "config")
    for name in ("Env", "Entrypoint", "Cmd"):
        decoding.texts(settings, name)
    for name in ("User", "WorkingDir"):
        decoding.text(settings, name)
    decoding.words(settings, "Labels")
    decoding.texts(decoding.mapping(value, "rootfs"), "diff_ids")
    decoding.objects(value, "history")
    return value


def environment(config: Mapping[str, Any]) -> dict[str, str]:
    pairs = (variable.partition("=") for variable in config.get("Env") or ())
    return {name: value for name, _, value in pairs}


def diff_ids(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests before compression of an image's layers, the lowest first."""
    return tuple(decoding.texts(decoding.mapping(configuration, "rootfs"), "diff_ids"))


def labels_in(configuration: Mapping[str, Any]) -> dict[str, str]:
    return decoding.words(decoding.mapping(configuration, "config"), "Labels")


def history(configuration: Mapping[str, Any], every: bool = False) -> tuple[str, ...]:
    """Return what the history says of each layer, the lowest first, or of `every` step."""
    steps = decoding.objects(configuration, "history")
    chosen = (step for step in steps if every or not step.get("empty_layer"))
    return tuple(str(step.get("created_by") or "") for step in chosen)


def of_engine(
    config: Mapping[str, Any] | None, history: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a configuration from Docker's API, whose history has the newest step first."""
    steps = [
        {"created_by": step.get("CreatedBy"), "empty_layer": not step.get("Size")}
        for step in reversed(history)
    ]
    return {"config": config or {}, "history": steps}


# --- writing --------------------------------------------------------------------------------------


def manifest(content: Mapping[str, Any]) -> Manifest:
    return Manifest(_json(content), str(content["mediaType"]))


def image(config: Descriptor, layers: Iterable[Descriptor]) -> Manifest:
    """Return the manifest of an image; `layers` with the lowest first."""
    return manifest(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config.json(),
            "layers": [layer.json() for layer in layers],
        }
    )


def artifact(
    kind: str,
    content: Descriptor,
    annotations: Mapping[str, str],
    subject: Descriptor | None = None,
) -> Manifest:
    """Return the manifest of an OCI artifact of one blob; it may refer to `subject`."""
    return manifest(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": kind,
            "config": Descriptor.of(EMPTY_TYPE, EMPTY).json(),
            "layers": [content.json()],
            **({"subject": subject.json()} if subject else {}),
            "annotations": dict(annotations),
        }
    )


def index(manifests: Iterable[Descriptor]) -> Manifest:
    return manifest(
        {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [descriptor.json() for descriptor in manifests],
        }
    )


def configuration(
    under: Mapping[str, Any],
    settings: Mapping[str, Any],
    added: Sequence[tuple[str, str]],
    created: int,
) -> bytes:
    """Return the configuration of an image that has more layers than the image of `under`.

    under: the other image's configuration; below the lowest layer, its platform alone
    (`architecture` and `os`). settings: what stands below `config` now (`Env`, `Labels`,
    `Entrypoint` and so on). added: the new layers, the lowest first: each its digest before
    compression, and what the image's history says of it. created: seconds since 1970.
    """
    when = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    layers = [*diff_ids(under), *(diff_id for diff_id, _ in added)]
    return _json(
        {
            **under,
            "created": when,
            "config": dict(settings),
            "rootfs": {"type": "layers", "diff_ids": layers},
            "history": [
                *(under.get("history") or ()),
                *({"created": when, "created_by": line} for _, line in added),
            ],
        }
    )


def on_layers(configuration: Mapping[str, Any], layers: Iterable[str]) -> dict[str, Any]:
    """Return the configuration of an image with these layers, by diff id, in place of its own."""
    return {**configuration, "rootfs": {"type": "layers", "diff_ids": [*layers]}}


def blob_path(digest: str) -> str:
    """Return the path at which an OCI image layout keeps the bytes with this digest."""
    return "blobs/" + digest.replace(":", "/")


def layout(image: Manifest, name: str) -> dict[str, bytes]:
    """Return the JSON files of an OCI image layout that holds this image, by their path.

    The blobs of the configuration and the layers are left to the caller (`blob_path`). Docker's own
    `manifest.json` is there too, so that `docker load` of any version reads the layout.
    name: REPOSITORY:TAG, with a host or without one, as `docker load` will name the image.
    """
    named = {
        **image.descriptor.json(),
        "annotations": {
            "io.containerd.image.name": str(names.parse(name)),
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        },
    }
    layers = [layer.digest for layer in image.layers]
    return {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [named]}),
        blob_path(image.digest): image.data,
        **docker_archive(image.config.digest, layers, name),
    }


def docker_archive(config: str, layers: Iterable[str], name: str) -> dict[str, bytes]:
    """Return the JSON file of Docker's own image archive, by its path.

    config, layers: the digests by which the archive keeps these files (`blob_path`). name: as in
    `layout`.
    """
    image = {
        "Config": blob_path(config),
        "RepoTags": [name],
        "Layers": [blob_path(layer) for layer in layers],
    }
    return {"manifest.json": _json([image])}


def _json(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()
