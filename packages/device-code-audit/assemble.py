"""The build backend: setuptools, with the parts of `builder` that the audit needs in the package.

In the repository they are copied from there, and removed after the build: what the program imports,
and no list that anybody keeps. A source distribution holds them already, so that it needs nothing
outside of its own folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from modulefinder import ModuleFinder
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
ROOT = HERE.parents[1]
FACTORY = HERE / "device_code_audit/factory"


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
    try:
        shutil.rmtree(HERE / "build", ignore_errors=True)  # what an earlier build left goes in, too
        for path in parts():
            copy = FACTORY / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        yield
    finally:
        shutil.rmtree(FACTORY, ignore_errors=True)


def parts() -> list[Path]:
    """Return the files of `builder` that the program imports, and the tables that they name.

    Of a framework it reads what its module says, and calls no method.
    """
    finder = ModuleFinder([str(ROOT)], excludes=["builder.config", "builder.prove"])  # types
    finder.run_script(str(HERE / "device_code_audit/__init__.py"))
    found = [Path(module.__file__) for module in finder.modules.values() if module.__file__]
    builder = ROOT / "builder"
    modules = {path for path in found if builder in path.parents}
    modules |= {*builder.glob("frameworks/__init__.py"), *builder.glob("frameworks/*/__init__.py")}
    text = "".join(path.read_text(encoding="utf-8") for path in modules)
    tables = {
        table
        for folder in {path.parent for path in modules}
        for table in (*folder.glob("*.yaml"), *folder.glob("*.json"))
        if f'"{table.name}"' in text
    }
    return sorted(modules | tables)
