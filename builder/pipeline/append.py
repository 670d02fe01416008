"""A training image without an engine: one layer put on top of a base that lies in the registry.

What a code change needs when the Dockerfile only copies: five small requests, no Docker, no byte of
the base. The Dockerfile stays the truth: it is read, and one that does more than `COPY --link` and
settings is left to an engine. OCI's image-spec says what an image is (manifest.md, config.md,
layer.md).
"""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath

import zstandard

from builder import registry
from builder.core.errors import OutsideError
from builder.core.templates import EPOCH
from builder.pipeline.plan import APP, File, ImagePlan
from builder.registry import Descriptor, Manifest, Reference, Registry, digest_of, silent

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
COMPRESSION_LEVEL = 3
"""As the engine's builds have it."""

_COPY = re.compile(rf"COPY --link --chown=(\d+):(\d+) {APP} /{APP}")


@dataclass(frozen=True)
class Settings:
    """What a Dockerfile that only copies says. `base`: the tag of its base."""

    base: str
    owner: tuple[int, int]
    """User and group of the copied files."""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def read(dockerfile: str) -> Settings | None:
    """The settings of a Dockerfile; None where it does more than copy onto a base of our own."""
    base = owner = None
    user, entrypoint = "", ()
    found: dict[str, dict[str, str]] = {"ENV": {}, "LABEL": {}}
    text = re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        match word:
            case "ARG" if rest.startswith("REPOSITORY="):
                pass
            case "FROM" if rest.startswith("${REPOSITORY}:") and base is None:
                base = rest.partition(":")[2]
            case "COPY" if (copy := _COPY.fullmatch(line)) and owner is None:
                owner = (int(copy[1]), int(copy[2]))
            case "USER":
                user = rest
            case "ENTRYPOINT" if rest.startswith("["):
                entrypoint = tuple(json.loads(rest))
            case "ENV" | "LABEL" if "$" not in rest:
                found[word] |= dict(one.split("=", 1) for one in shlex.split(rest))
            case _:
                return None
    if base is None or owner is None:
        return None
    return Settings(base, owner, user, entrypoint, found["ENV"], found["LABEL"])


def layer(files: Mapping[str, File], owner: tuple[int, int]) -> bytes:
    """The files as an uncompressed layer, with the folders that they lie in: as BuildKit's linked
    COPY has it. The same files are the same bytes."""
    folders = {parent for name in files for parent in PurePosixPath(name).parents}
    names = {str(folder): None for folder in folders if folder.name} | dict(files)
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, file in sorted(names.items()):
            entry = tarfile.TarInfo(name)
            entry.mtime = EPOCH
            entry.uid, entry.gid = owner
            if file is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            else:
                entry.mode, entry.size = 0o755 if file.executable else 0o644, len(file.content)
                archive.addfile(entry, io.BytesIO(file.content))
    return target.getvalue()


def configuration(
    base: Mapping[str, object], settings: Settings, diff_id: str
) -> dict[str, object]:
    """The image's configuration: the base's, what the Dockerfile sets, and one layer more."""
    config = dict(base.get("config") or {})  # type: ignore[call-overload]
    environment = dict(one.split("=", 1) for one in config.get("Env") or [])
    environment |= settings.environment
    config["Env"] = [f"{name}={value}" for name, value in environment.items()]
    config["Labels"] = {**(config.get("Labels") or {}), **settings.labels}
    if settings.user:
        config["User"] = settings.user
    if settings.entrypoint:
        config["Entrypoint"] = list(settings.entrypoint)
        config.pop("Cmd", None)  # as BuildKit does: a base's command belongs to its own entry point
    made = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    step = {"created": made, "created_by": f"builder: {APP} copied to /{APP}"}
    rootfs: Mapping[str, list[str]] = base.get("rootfs") or {}  # type: ignore[assignment]
    return {
        **base,
        "created": made,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [*rootfs.get("diff_ids", ()), diff_id]},
        "history": [*(base.get("history") or []), step],  # type: ignore[misc]
    }


def append(
    image: ImagePlan, settings: Settings, to: Reference, said: registry.Said = silent
) -> Manifest | None:
    """Put the image under the tag `to`, whose repository holds the base. Returns its manifest; None
    where the base is in Docker's own format, which takes no zstd layers.

    Raises OutsideError where the base is not there, or for what the registry refuses.
    """
    assert to.tag is not None
    with Registry(to.host, said=said) as there:
        base = there.manifest(to.repository, settings.base)
        if base is None or base.is_index:
            raise OutsideError(
                f"{to.tagged(settings.base)}: the registry does not have the base",
                "push it once: builder image TARGET --push",
            )
        if base.media_type != registry.OCI_MANIFEST:
            return None
        under = Manifest(
            there.blob(to.repository, Descriptor.read(base.content["config"])), ""
        ).content
        plain = layer(image.files, settings.owner)
        packed = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(plain)
        top = there.put_blob(to.repository, packed)
        config = json.dumps(configuration(under, settings, digest_of(plain))).encode()
        described = there.put_blob(to.repository, config)
        whole = registry.manifest(
            {
                "schemaVersion": 2,
                "mediaType": registry.OCI_MANIFEST,
                "config": Descriptor(_CONFIG_TYPE, described.digest, described.size).json(),
                "layers": [
                    *base.content["layers"],
                    Descriptor(LAYER_TYPE, top.digest, top.size).json(),
                ],
            }
        )
        there.put_manifest(to.repository, to.tag, whole)
    return whole
