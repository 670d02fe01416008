"""Packs layers and images as engines and registries give them out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tests.image import layers


def tar(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    """A tar archive of these symbolic links and files."""
    return layers.tar(*(links or {}).items(), *files.items())


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def configuration(*layers: bytes) -> bytes:
    """The configuration of an image of these layers, which are not packed."""
    return json.dumps({"rootfs": {"diff_ids": [digest(layer) for layer in layers]}}).encode()


def layout(config: bytes, *blobs: bytes) -> dict[str, bytes]:
    """The files of an OCI image layout: an index of one image and an attestation."""
    manifest = json.dumps(
        {"config": descriptor(config), "layers": [descriptor(blob) for blob in blobs]}
    ).encode()
    platforms = (("linux", "amd64", manifest), ("unknown", "unknown", b"attestation"))
    index = {
        "manifests": [
            {**descriptor(content), "platform": {"os": system, "architecture": machine}}
            for system, machine, content in platforms
        ]
    }
    named = {f"blobs/sha256/{digest(blob)[7:]}": blob for blob in (*blobs, manifest, config)}
    return {"index.json": json.dumps(index).encode(), "oci-layout": b"{}", **named}


def descriptor(blob: bytes) -> dict[str, object]:
    return {"mediaType": "", "digest": digest(blob), "size": len(blob)}
