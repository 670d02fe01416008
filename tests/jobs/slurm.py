"""examples/slurm as it is installed: on the path, with the entry point of its pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

from builder.core.project import find_root

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
