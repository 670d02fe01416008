"""examples/slurm as it is installed, by the entry point of its pyproject.toml; an image to send."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from builder.core.project import find_root
from tests.emulators.answers import serving

SOURCE = find_root(Path(__file__).parent) / "examples/slurm"


def install(site: Path) -> str:
    """Write the metadata of the distribution into a folder, and return PYTHONPATH."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    info = site / f"training_slurm-{project['version']}.dist-info"
    info.mkdir(parents=True)
    named = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{named}")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return f"{site}:{SOURCE}"


@contextmanager
def registry() -> Iterator[str]:
    """Serve an image that anybody made, and yield its reference, by digest."""
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": []}).encode()
    digest = f"sha256:{sha256(manifest).hexdigest()}"
    path = f"/v2/team/trainer/manifests/{digest}"
    with serving({path: (200, {"Content-Type": kind}, manifest)}) as server:
        yield f"127.0.0.1:{server.server_port}/team/trainer@{digest}"
