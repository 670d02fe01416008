"""A training image without an engine: one layer on top of a base that lies in the registry.

A code change takes a few small requests: no Docker, and no byte of the base travels. The Dockerfile
decides: this module reads it, and leaves one that does more than `COPY --link` and settings to an
engine. The OCI image specification says what an image is (manifest.md, config.md, layer.md).
"""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import zstandard

from builder.core.errors import OutsideError
from builder.core.retry import Said, silent
from builder.core.templates import EPOCH
from builder.pipeline import tags
from builder.pipeline.plan import APP, File, ImagePlan
from builder.registry import Descriptor, Manifest, Reference, Registry, manifests

CheckBase = Callable[[Registry, str, str], None]
"""Called with the registry, the digest of a base's manifest, and the base's tag."""

COMPRESSION_LEVEL = 3
"""The level at which the engine's builds compress a layer."""

_COPY = re.compile(rf"COPY --link --chown=(\d+):(\d+) {APP} /{APP}")


@dataclass(frozen=True)
class CopyOnly:
    """What a Dockerfile says that only copies the program onto a base. base: the base's tag."""

    base: str
    owner: tuple[int, int]
    """User and group of the copied files."""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def read(dockerfile: str) -> CopyOnly | None:
    """What this Dockerfile says; None where it does more than copy onto a base of ours."""
    base = owner = None
    user = ""
    entrypoint: tuple[str, ...] = ()
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
            case "USER" if "$" not in rest:
                user = rest
            case "ENTRYPOINT" if (words := _words(rest)) is not None:
                entrypoint = words
            case "ENV" | "LABEL" if (pairs := _pairs(rest)) is not None:
                found[word] |= pairs
            case _:
                return None
    if base is None or owner is None:
        return None
    return CopyOnly(base, owner, user, entrypoint, found["ENV"], found["LABEL"])


def _words(text: str) -> tuple[str, ...] | None:
    """The list of texts that an instruction has as JSON; None for a shell's line."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(words, list) and words and all(isinstance(one, str) for one in words)
    return tuple(words) if is_list else None


def _pairs(text: str) -> dict[str, str] | None:
    """`A=1 B="two words"`; None for anything else, such as `A 1` and what a variable stands for."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if "$" in text or not words or not all(one.partition("=")[0] and "=" in one for one in words):
        return None
    return dict(one.split("=", 1) for one in words)


def layer(files: Mapping[str, File], owner: tuple[int, int]) -> bytes:
    """The files and the folders that they lie in, as an uncompressed layer: the same entries that
    BuildKit makes of a linked COPY. The same files give the same bytes.

    owner: user and group of every entry.
    """
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


def settings_of(base: Mapping[str, Any], read: CopyOnly) -> dict[str, Any]:
    """`config` of the image's configuration: what the base has, and what the Dockerfile sets."""
    config = dict(base.get("config") or {})
    lines = (one.partition("=") for one in config.get("Env") or ())
    environment = {name: value for name, _, value in lines} | dict(read.environment)
    config["Env"] = [f"{name}={value}" for name, value in environment.items()]
    config["Labels"] = {**(config.get("Labels") or {}), **read.labels}
    if read.user:
        config["User"] = read.user
    if read.entrypoint:
        config["Entrypoint"] = list(read.entrypoint)
        config.pop("Cmd", None)  # as BuildKit does: a base's command belongs to its own entry point
    return config


def append(
    image: ImagePlan,
    read: CopyOnly,
    to: Reference,
    said: Said = silent,
    check: CheckBase | None = None,
) -> Manifest | None:
    """Put the image under the tag `to`, whose repository holds the base.

    check: raises for a base that must not be built on. Returns the image's manifest; None where the
    base is in Docker's own format, which has no zstd layers. Raises OutsideError where the base is
    not there, or for what the registry refuses.
    """
    assert to.tag is not None
    with Registry(to.host, said=said) as there:
        base = there.manifest(to.repository, read.base)
        if base is None or base.is_index:
            raise OutsideError(
                f"{to.tagged(read.base)}: the registry does not have the base",
                "push it once: builder image TARGET --push",
            )
        if check:
            check(there, base.digest, read.base)
        if base.media_type != manifests.OCI_MANIFEST:
            return None
        under = there.configuration(to.repository, base)
        platform = f"{under.get('os')}/{under.get('architecture')}"
        if platform != "linux/amd64":
            raise OutsideError(
                f"{to.tagged(read.base)}: the base is for {platform}, not for linux/amd64",
                "push it again: builder image TARGET --push",
            )
        plain = layer(image.files, read.owner)
        packed = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(plain)
        config = manifests.configuration(
            under,
            settings_of(under, read),
            [manifests.Added(manifests.digest_of(plain), f"builder: {APP} copied to /{APP}")],
            EPOCH,
        )
        described = Descriptor.of(manifests.OCI_CONFIG, config)
        top = Descriptor.of(manifests.OCI_LAYER_ZSTD, packed)
        for blob in (packed, config):
            there.put_blob(to.repository, blob)
        for sent in (top, described):
            there.check_blob(to.repository, sent)
        whole = manifests.image(described, (*base.layers, top))
        tags.lead(there, to, whole)
    return whole
