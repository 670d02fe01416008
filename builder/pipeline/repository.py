"""The project's repository in a registry, and what a person's REF means beside it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

from builder import registry
from builder.core.errors import InputError
from builder.core.events import OnEvent, step
from builder.core.settings import Settings
from builder.registry import Reference, Registry

CheckBase = Callable[[Registry, str, str], None]
"""Called with the registry, the digest of a base's manifest, and the base's tag."""


def of(settings: Settings, to: str = "push") -> Reference:
    """The project's repository. to: the verb of the error. Raises InputError where none is set."""
    if not settings.registry:
        raise InputError(
            f"no registry is set: there is nowhere to {to} to",
            'use --registry HOST/PATH, or write registry = "HOST/PATH" in builder.toml',
        )
    return registry.parse(settings.registry)


def resolve(reference: str, settings: Settings) -> Reference:
    """A whole reference, or a tag or digest of the project's own repository."""
    if not re.search("[/:]", reference) and settings.registry:
        return of(settings).tagged(reference)
    if reference.startswith("sha256:"):
        return registry.parse(f"{of(settings)}@{reference}")
    return registry.parse(reference)


@contextlib.contextmanager
def opened(where: Reference, on_event: OnEvent, name: str) -> Iterator[Registry]:
    """A client for the host of `where`, for the duration of one step of progress."""
    with step(name, on_event) as asking, Registry(where.host, said=asking.log) as there:
        yield there


def base_check(settings: Settings) -> CheckBase | None:
    """Asks whether a base of the project's repository may be built on; None where [trust] names no
    keys. Raises InputError for a key that is none."""
    if not settings.trust.prove:
        return None
    from builder.trust import policy  # slow to import, and few builds ask

    trusted, where = policy.of(settings.trust), of(settings)
    assert trusted

    def check(there: Registry, digest: str, tag: str) -> None:
        policy.check_base(there, where, digest, tag, trusted)

    return check
