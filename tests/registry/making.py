"""For tests: docker's configuration with logins in it, and the smallest image."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.registry import Manifest, Registry, manifests
from builder.registry.manifests import Descriptor
from tests.registry.server import PASSWORD, USER


def docker_config(folder: Path, content: dict[str, Any]) -> dict[str, str]:
    """The environment of someone whose docker configuration says this."""
    (folder / "config.json").write_text(json.dumps(content))
    return {"DOCKER_CONFIG": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def coded(user: str = USER, password: str = PASSWORD) -> str:
    """What docker writes below `auth`."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def put_image(
    there: Registry,
    repository: str,
    text: str = "hello",
    tag: str = "t",
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """The smallest image: one layer (an empty tar), one configuration with `text` as its label."""
    layer = bytes(1024)
    config = manifests.configuration(
        {"architecture": "amd64", "os": "linux"},
        {"Labels": {"text": text, **(labels or {})}},
        [(manifests.digest_of(layer), "tests")],
        0,
    )
    for blob in (layer, config):
        there.put_blob(repository, blob)
    made = manifests.image(
        Descriptor.of(manifests.OCI_CONFIG, config),
        [Descriptor.of("application/vnd.oci.image.layer.v1.tar", layer)],
    )
    there.put_manifest(repository, tag, made)
    return made
