"""Small images for a cluster, pushed to its registry: a shell, and a program that only waits."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from builder.core.apt import host_suite
from builder.engine.private.packages import Packages, unpack
from builder.prove.image import ACCELERATOR
from tests import commands
from tests.debian import static
from tests.prove.reading import layer
from tests.registry.server import skopeo

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_PROGRAMS = (
    "sh",
    "cat",
    "date",
    "echo",
    "false",
    "grep",
    "hostname",
    "kill",
    "mkdir",
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
    (folder / "layer.tar").write_bytes(packed)
    _push_layer(folder, name, {"Env": ["PATH=/bin"], **(config or {})})


def push_torch(folder: Path, name: str) -> None:
    """Push an image with Debian's PyTorch, for the CPU alone: unpacked, not configured."""
    root = folder / "torch"
    fetched = Packages(host_suite(), folder / "lists")
    unpack(fetched.download(["python3-torch"], dependencies=True), root)
    for unused in ("usr/share", f"{_LIBRARIES}/dri"):
        shutil.rmtree(root / unused)
    (root / "tmp").mkdir(mode=0o777)
    own = ["--owner=0", "--group=0", "--numeric-owner"]
    subprocess.run(["tar", *own, "-C", root, "-cf", folder / "layer.tar", "."], check=True)
    alternatives = ":".join(f"/{_LIBRARIES}/{each}" for each in ("blas", "lapack"))
    _push_layer(folder, name, {"Env": ["PATH=/usr/bin:/bin", f"LD_LIBRARY_PATH={alternatives}"]})
    shutil.rmtree(root)


def _push_layer(folder: Path, name: str, config: dict[str, Any]) -> None:
    """Push an image of the one layer that lies in the folder."""
    path, archive = folder / "layer.tar", folder / "image.tar"
    with path.open("rb") as file:
        layers = [f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"]
    content = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": layers},
    }
    manifest = [{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as whole:
        for each, value in (("manifest.json", manifest), ("config.json", content)):
            (folder / each).write_text(json.dumps(value))
            whole.add(folder / each, each)
        whole.add(path, "layer.tar")
    path.unlink()
    _copy(f"docker-archive:{archive}", name)
    archive.unlink()


def push_ours(folder: Path, name: str, target: str, accelerator: str = "") -> None:
    """Push our image of a target, built where it is not there. accelerator: what its label says it
    is for, "" for the truth."""
    layout = folder / f"{target}-layout"
    commands.builder("build", target, "--to-layout", str(layout), check=True)
    if accelerator:
        _label(layout, accelerator)
    _copy(f"oci:{layout}", name)


def _label(layout: Path, accelerator: str) -> None:
    """Let the image of an OCI layout say that it is for an accelerator."""

    def read(digest: str) -> dict[str, Any]:
        return dict(json.loads((blobs / digest.removeprefix("sha256:")).read_bytes()))

    def put(value: dict[str, Any]) -> dict[str, Any]:
        content = json.dumps(value).encode()
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    blobs, index = layout / "blobs/sha256", json.loads((layout / "index.json").read_text())
    manifest = read(index["manifests"][0]["digest"])
    configuration = read(manifest["config"]["digest"])
    configuration["config"]["Labels"][ACCELERATOR] = accelerator
    manifest["config"] |= put(configuration)
    index["manifests"][0] |= put(manifest)
    (layout / "index.json").write_text(json.dumps(index))


def _copy(source: str, name: str) -> None:
    plain = f"--dest-tls-verify={'false' if name.startswith('127.') else 'true'}"
    fast = ("--dest-compress-format=zstd", "--dest-compress-level=1")
    skopeo("copy", plain, *fast, source, f"docker://{name}")
