"""A matrix in image.yaml: lists of `tensorflow` and `python` give a target for each combination.

    tensorflow: [2.20.0, 2.21.0]        images/v100/image.yaml
    python: [3.11, 3.13]

gives v100-tf2.20-py311, v100-tf2.20-py313 and so on. Each has a folder of its own for its locks and
its Dockerfile.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from builder import frameworks
from builder.core import yamlfile
from builder.core.errors import InputError

FIELDS: Final = (*frameworks.OWN, "python")
"""The fields that may be lists."""

_LIST = re.compile(rf"(?m)^(?:{'|'.join(FIELDS)})\s*:\s*(?:\[|#|$)")


def of_file(path: Path) -> dict[str, dict[str, str]]:
    """Return target -> its own values, for an image.yaml; only its folder's name where it has no
    matrix.

    A file that cannot be read counts as one without a matrix: whoever loads it says what is wrong.
    """
    folder = path.parent.name
    try:
        text = path.read_text(encoding="utf-8")
        if _LIST.search(text):
            return variants(folder, yamlfile.parse(text, folder).value)
    except (OSError, UnicodeDecodeError, InputError):
        pass
    return {folder: {}}


def variants(folder: str, value: Any) -> dict[str, dict[str, str]]:
    """Return target -> its own values, for the content of an image.yaml."""
    lists = _lists(value) if isinstance(value, Mapping) else {}
    if not lists:
        return {folder: {}}
    targets = {}
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        parts = [_short(name, chosen[name], lists[name]) for name in lists]
        targets["-".join([folder, *parts])] = chosen
    return targets


def _lists(value: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lists of the matrix.

    A list of anything but different texts is left to the model.
    """
    return {
        name: entries
        for name in FIELDS
        if isinstance(entries := value.get(name), list)
        and entries
        and all(isinstance(entry, str) for entry in entries)
        and len(set(entries)) == len(entries)
    }


def _short(name: str, value: str, among: list[str]) -> str:
    """Return `tf2.20`, `tf2.20.1` where the matrix has two releases of a minor, or `py311`."""
    if name == "python":
        return f"py{value.replace('.', '')}"
    minors = Counter(entry.rpartition(".")[0] for entry in among)
    minor = value.rpartition(".")[0]
    return f"{frameworks.of(name).short}{minor if minors[minor] == 1 else value}"
