"""The exclude list: files of wheels that training never loads, each rule with its reason and size.

The framework has the rules (builder/frameworks/). They speak of the wheels of cuda.lock and of the
framework's lock alone: what image.yaml and the trainer add comes whole. A test trains, and sees
that nothing of what is excluded is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache

from builder.config.lockfile import CUDA
from builder.facts.frameworks import Exclude, Framework


def rules(framework: Framework, lock_file: str, wheel: str) -> tuple[Exclude, ...]:
    """Return the rules for a wheel of a lock file, by its name."""
    by_file = {CUDA: framework.exclude_nvidia, framework.lock_file: framework.exclude}
    known = by_file.get(lock_file, ())
    return tuple(rule for rule in known if fnmatchcase(wheel, rule.wheels))


def excluded(path: str, by: Sequence[Exclude]) -> bool:
    """Return whether a rule excludes a file.

    path: below site-packages, or of a script `../../..`.
    """
    return any(matches(path, pattern) for rule in by for pattern in rule.paths)


def matches(path: str, pattern: str) -> bool:
    """Return whether a pattern stands for a path."""
    return bool(_compiled(pattern).fullmatch(path))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(parts.get(p) or re.escape(p) for p in re.split(r"(\*+)", pattern)))
