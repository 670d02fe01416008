"""What the base of a target is made of: a pure function of its lock, before anything is fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from builder.bases import wheels
from builder.bases.environment import Environment
from builder.bases.layer import Compression, LayerPlan
from builder.bases.osroot import Root
from builder.bases.settings import settings
from builder.bases.wheels import WheelLayer
from builder.core.files import hash_of

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.spec.catalogue import ImageSpec
    from builder.spec.stack import Stack


@dataclass(frozen=True)
class BasePlan:
    """A base to assemble: the OS root, the wheels above it, and the environment on top.

    settings: what stands below `config` of the image's configuration. Nothing in a plan names the
    target, so that targets with the same content share a base.
    """

    root: Root
    wheels: tuple[WheelLayer, ...]
    environment: Environment
    settings: Mapping[str, Any]
    compression: Compression

    @cached_property
    def layers(self) -> tuple[LayerPlan, ...]:
        """All layers, the lowest first."""
        root = self.root.plan(self.compression)
        top = self.environment.plan(root, self.compression)
        return (root, *(layer.plan for layer in self.wheels), top)

    @cached_property
    def hash(self) -> str:
        """16 hex digits over all that decides the base's bytes."""
        keys = [layer.key for layer in self.layers]
        return hash_of(json.dumps(self.settings, sort_keys=True), *keys)[:16]

    @property
    def tag(self) -> str:
        """The base's tag, the same for every target that shares it."""
        return f"base-{self.hash}"


def plan(spec: ImageSpec, stack: Stack, lock: Lock) -> BasePlan:
    """The base of a target that has its own. Nothing is read or fetched."""
    compression = Compression.of(spec.compression)
    assert lock.root is not None
    added = tuple(deb for packages in lock.apt.values() for deb in packages)
    root = Root(lock.root.suite, lock.root.packages, added)
    return BasePlan(
        root=root,
        wheels=wheels.plan(lock, stack.prune, compression),
        environment=Environment.of(lock.python, spec.user, stack.prune),
        settings=settings(lock),
        compression=compression,
    )
