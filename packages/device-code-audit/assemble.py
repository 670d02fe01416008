"""The build backend: setuptools, with the parts of `builder` that the audit needs in the package.

In the repository they are copied from there, and removed after the build. A source distribution
holds them already, so that it needs nothing outside of its own folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

HERE = Path(__file__).resolve().parent
FACTORY = HERE / "device_code_audit/factory"
PARTS = (
    *("__init__.py", "contract.py", "config", "core", "devicecode", "engine", "facts", "reading"),
    "registry",
    "frameworks/__init__.py",
    *(f"frameworks/{name}/__init__.py" for name in ("jax", "tensorflow", "torch")),
    *(f"cli/{name}.py" for name in ("__init__", "audit", "common", "console", "options")),
    *(f"image/{name}.py" for name in ("__init__", "download", "layer", "tarball")),
    *(f"prove/{name}.py" for name in ("__init__", "audit", "report", "ptxas")),
    # the tables that builder.toml may have
    *(f"jobs/{name}__init__.py" for name in ("", "backends/", "backends/local/")),
    *(
        f"jobs/backends/{backend}/{name}.py"
        for backend in ("kubernetes", "vertex")
        for name in ("__init__", "settings")
    ),
)


def build_sdist(folder: str, settings: dict[str, Any] | None = None) -> str:
    """Build the source distribution, and return its name."""
    with _parts():
        return build_meta.build_sdist(folder, settings)


def build_wheel(
    folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None
) -> str:
    """Build the wheel, and return its name."""
    with _parts():
        return build_meta.build_wheel(folder, settings, metadata)


@contextmanager
def _parts() -> Iterator[None]:
    if (HERE / "PKG-INFO").exists():  # a source distribution
        yield
        return
    source = HERE.parents[1] / "builder"
    try:
        for part in PARTS:
            copy = FACTORY / "builder" / part
            copy.parent.mkdir(parents=True, exist_ok=True)
            if (source / part).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source / part, copy, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy(source / part, copy)
        yield
    finally:
        shutil.rmtree(FACTORY, ignore_errors=True)
