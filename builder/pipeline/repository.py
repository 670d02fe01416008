"""The project's repository in a registry, and what a person's REF means beside it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from builder import registry
from builder.core.errors import InputError
from builder.core.events import OnEvent, step
from builder.core.settings import Settings
from builder.image.registry_layers import CheckBase
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


def base_check(settings: Settings) -> CheckBase | None:
    """Return what refuses a base of the project's repository that [trust] does not allow.

    None where there is no repository, or [trust] names no keys. Raises InputError for a key that
    cannot be read.
    """
    if not settings.trust.prove or not settings.registry:
        return None
    from builder.trust import policy  # slow to import, and few builds ask

    trusted, repository = policy.of(settings.trust), of(settings)
    assert trusted

    def check(client: Registry, digest: str, tag: str) -> None:
        policy.check_base(client, repository, digest, tag, trusted)

    return check
