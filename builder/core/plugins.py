"""Values that a distribution registers by name: ours, and those of others, by entry point.

Frameworks (builder/facts/frameworks.py) and backends for jobs (builder/core/backends.py) are such
values. What they say of rooms above is imported when it is asked for (`later`). Looking for others
reads the metadata of every installed distribution, so what names one of ours does not look.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Any

from builder.core.errors import OutsideError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


def later(reference: str) -> Callable[..., Any]:
    """Return a function that imports another one, named as in an entry point ("module:name"), and
    calls it."""
    return lambda *arguments, **named: _named(reference)(*arguments, **named)


def names(group: str, own: Collection[str]) -> tuple[str, ...]:
    """Return the names of a group: ours, and after them those of other distributions, sorted."""
    return (*own, *sorted({point.name for point in others(group)} - set(own)))


def load(group: str, name: str, own: Collection[str], reference: str) -> Any:
    """Return the value of a name. reference: where ours are; {} stands for the name.

    Raises KeyError where there is none, OutsideError where another distribution's cannot be loaded.
    """
    if name in own:
        return _named(reference.format(name))
    for point in others(group).select(name=name):
        try:
            return point.load()
        except Exception as error:
            package = point.dist.name if point.dist else point.module
            what = f"{package} registers {name}, which cannot be loaded: {error!r}"
            raise OutsideError(what, f"upgrade {package}, or uninstall it") from error
    raise KeyError(name)


@cache
def others(group: str) -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _named(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
