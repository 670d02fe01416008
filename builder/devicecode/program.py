"""The text of the pruning program, which decides what it makes of a library."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources


@cache
def pruning_program() -> Mapping[str, str]:
    """Return file name -> text of builder/devicecode/pruning, sorted by name."""
    folder = resources.files("builder.devicecode.pruning")
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py")
    }
