"""Small images for a cluster, pushed to its registry: a shell, and a program that only waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.debian import static
from tests.devicecode.packing import digest, tar
from tests.prove.reading import layer
from tests.registry.server import skopeo

_PROGRAMS = (
    "sh",
    "cat",
    "date",
    "echo",
    "false",
    "grep",
    "hostname",
    "kill",
    "nslookup",
    "seq",
    "sleep",
    "tr",
)
PAUSE = {"Entrypoint": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"]}
"""What holds a pod's network."""


def push(folder: Path, name: str, config: dict[str, Any] | None = None) -> None:
    """Push an image with a shell. name: HOST/PATH:TAG; a registry on loopback speaks plain HTTP."""
    program = static("busybox-static", "busybox").read_bytes()
    links = {f"bin/{each}": "busybox" for each in _PROGRAMS}
    packed = layer({"bin/busybox": (program, 0o755, 0), "tmp/": (b"", 0o777, 0)}, links)
    content = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], **(config or {})},
        "rootfs": {"type": "layers", "diff_ids": [digest(packed)]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]
    described = {"manifest.json": manifest, "config.json": content}
    files = {path: json.dumps(value).encode() for path, value in described.items()}
    archive = folder / "image.tar"
    archive.write_bytes(tar({**files, "layer.tar": packed}))
    plain = f"--dest-tls-verify={'false' if name.startswith('127.') else 'true'}"
    skopeo("copy", plain, f"docker-archive:{archive}", f"docker://{name}")
