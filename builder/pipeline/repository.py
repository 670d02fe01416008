"""The project's repository in a registry, and what a person's REF means beside it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from builder import registry
from builder.core.errors import InputError
from builder.core.events import OnEvent, step
from builder.core.settings import Settings
from builder.registry import Reference, Registry


def of(settings: Settings, to: str = "push") -> Reference:
    """Return the project's repository. to: the verb of the error.

    Raises InputError where none is set.
    """
    if not settings.registry:
        raise InputError(
            f"no registry is set: there is nowhere to {to} to",
            'use --registry HOST/PATH, or write registry = "HOST/PATH" in builder.toml',
        )
    return registry.parse(settings.registry)


def resolve(reference: str, settings: Settings) -> Reference:
    """Return a whole reference, or one to a tag or digest of the project's own repository."""
    if not re.search("[/:]", reference) and settings.registry:
        return of(settings).tagged(reference)
    if reference.startswith("sha256:"):
        return registry.parse(f"{of(settings)}@{reference}")
    return registry.parse(reference)


@contextlib.contextmanager
def opened(reference: Reference, on_event: OnEvent, name: str) -> Iterator[Registry]:
    """Yield a client for the host of a reference, for the duration of one step of progress."""
    with step(name, on_event) as asking, Registry(reference.host, on_retry=asking.log) as client:
        yield client
