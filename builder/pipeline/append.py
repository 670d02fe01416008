"""A training image without BuildKit: one layer on top of an assembled base.

A code change then takes milliseconds, and in a registry no byte of the base travels. The Dockerfile
decides: this module reads it, and leaves one that does more than `COPY --link` and settings to an
engine. The OCI image specification says what an image is (manifest.md, config.md, layer.md).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builder.bases.assembled import AssembledImage, assemble
from builder.bases.layer import Compression, Layer
from builder.bases.store import Store
from builder.bases.tarball import LayerWriter, folders_above
from builder.core.files import hash_of
from builder.pipeline.plan import APP, File
from builder.registry import manifests

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


def image(
    store: Store,
    base: AssembledImage,
    copied: CopyOnly,
    files: Mapping[str, File],
    compression: Compression,
) -> AssembledImage:
    """The training image: the program's files on top of the base. Their layer is in the store."""
    program = _layer(store, files, copied.owner, compression)
    under = manifests.configuration_in(base.configuration)
    return assemble(
        [(program, f"builder: {APP} copied to /{APP}")], settings_of(under, copied), base
    )


def _layer(
    store: Store, files: Mapping[str, File], owner: tuple[int, int], compression: Compression
) -> Layer:
    """The files and the folders that they lie in, as a layer."""
    parts = [str(compression), str(owner)]
    for name, file in sorted(files.items()):
        parts += [name, str(file.executable), hashlib.sha256(file.content).hexdigest()]
    key = hash_of("program", *parts)
    if found := store.find(key):
        return found
    names: dict[str, File | None] = {**dict.fromkeys(folders_above(files)), **files}
    with store.writing() as out:
        writer = LayerWriter(out, compression)
        for name in sorted(names):
            if one := names[name]:
                mode = 0o755 if one.executable else 0o644
                writer.file(name, one.content, mode=mode, owner=owner)
            else:
                writer.folder(name, owner=owner)
        return store.keep(out, writer.close(key))


def settings_of(base: Mapping[str, Any], copied: CopyOnly) -> dict[str, Any]:
    """`config` of the image's configuration: what the base has, and what the Dockerfile sets."""
    config = dict(base.get("config") or {})
    environment = manifests.environment(config) | dict(copied.environment)
    config["Env"] = [f"{name}={value}" for name, value in environment.items()]
    config["Labels"] = {**(config.get("Labels") or {}), **copied.labels}
    if copied.user:
        config["User"] = copied.user
    if copied.entrypoint:
        config["Entrypoint"] = list(copied.entrypoint)
        config.pop("Cmd", None)  # as BuildKit does: a base's command belongs to its own entry point
    return config
