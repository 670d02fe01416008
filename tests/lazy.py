"""A module that is imported when a test first uses it, and not whenever tests are collected."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module: `api: Any = Lazy("google.cloud.aiplatform_v1")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
