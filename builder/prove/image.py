"""An image that was read: its layers and its configuration, which most checks judge.

Nothing of it runs. What the project made an image to be is its subject; images of others have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from builder.audit.audited import Gpu
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Stack
from builder.facts import frameworks
from builder.facts.accelerators import Kind
from builder.facts.frameworks import Framework
from builder.image.plan import LABELS
from builder.prove.judge import Run
from builder.prove.ledger import Ledger
from builder.prove.receipts import Spent
from builder.reading.images import ImageContent
from builder.reading.layers import Tree
from builder.registry import manifests

ACCELERATOR: Final = f"{LABELS}.accelerator"
"""The label of an image of the factory that names the accelerator that it was made for."""

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where runc looks for a program where the image sets no PATH."""

SHOWN: Final = 3
"""Paths that one message names."""


@dataclass(frozen=True)
class Subject:
    """An image of the project, and what it was made to be."""

    image: str
    """A reference or an id that the engine holds."""
    spec: ImageSpec
    stack: Stack
    packages: Mapping[str, str]
    """Name -> version of each locked Python package."""
    records: Path
    """A folder of TFRecords to train on."""
    digest: str | None = None
    """Of the image's manifest, None where it is not known."""
    inputs: str = ""
    """Hash of what the image was made from."""
    compressed_bytes: int | None = None
    """What a pull transfers, None where it is not known."""
    largest: tuple[tuple[str, int], ...] = ()
    """The largest downloads in it, as (name and version, bytes)."""
    layers: Mapping[str, Path] = field(default_factory=dict)
    """The files of layers that this machine has, by diff id."""
    base_layers: frozenset[str] = frozenset()
    """The diff ids that the layers of its base have to have."""

    @property
    def target(self) -> str:
        return self.spec.name


@dataclass(frozen=True)
class Started:
    """What a container of an image did."""

    run: Run
    command: str | None = None
    """What a shell ran in it, None for the image's own."""
    ledger: Ledger = field(default_factory=Ledger)
    """What the container used."""
    topology: str = ""
    """The slice of a TPU that it is compiled for, "" for none."""
    compiled: Run | None = None
    """A second start, with the hook that compiles its step; None where there was none."""


@dataclass(frozen=True)
class RanOnGpu:
    """What the program of an image did on a GPU of this machine."""

    run: Run
    device: str
    """As the driver calls it."""
    driver: str
    """Its version."""
    batch: int = 0
    """Examples of a step, 0 where they are not known."""


@dataclass(frozen=True)
class Image:
    content: ImageContent
    gpu: Gpu | None = None
    """What it is judged for, None for no GPU."""
    subject: Subject | None = None
    started: Started | None = None
    """How `prove` started it; None where it did not."""
    ran: RanOnGpu | None = None
    """None where it did not run on a GPU."""
    probed: Mapping[str, Run] = field(default_factory=dict)
    """What the probes of its frameworks' loaders answered, by the frameworks' names."""

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.content.layers)

    @property
    def config(self) -> Mapping[str, Any]:
        """What its configuration says of a container."""
        config: Mapping[str, Any] = self.content.configuration.get("config") or {}
        return config

    @property
    def environment(self) -> Mapping[str, str]:
        return manifests.environment(self.config)

    @property
    def search_path(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.environment.get("PATH") or PATH).split(":")))

    @cached_property
    def spent(self) -> tuple[Spent, ...]:
        """What reading it, and starting it, took."""
        ledger = self.started.ledger if self.started else Ledger()
        ledger.read(self.content)
        return ledger.rows

    @property
    def is_ours(self) -> bool:
        return self.subject is not None or ACCELERATOR in (self.config.get("Labels") or {})

    @property
    def has_own_base(self) -> bool:
        """Whether all of it comes from the project's locks and files."""
        return self.subject is not None and self.subject.spec.has_own_base

    @property
    def kind(self) -> Kind:
        if self.subject:
            return self.subject.stack.accelerator.kind
        return "gpu" if self.gpu else "cpu"

    @cached_property
    def frameworks(self) -> tuple[Framework, ...]:
        """The frameworks that are in it: by the module without which one is not imported, whoever
        installed it, or by the package that its libraries belong to."""
        packages = {library.package for library in self.content.libraries}
        return tuple(
            each
            for each in frameworks.every()
            if packages & each.distributions
            or any(self.is_module(library.path, each) for library in self.content.libraries)
        )

    @staticmethod
    def is_module(path: str, framework: Framework) -> bool:
        """Tell whether a framework is not imported without this file."""
        pattern = rf"/(site|dist)-packages/({framework.module})"
        return bool(framework.module) and re.search(pattern, path) is not None


class NotThereError(Exception):
    """A check has nothing to look at; its text says why."""


def listed(paths: Sequence[str]) -> str:
    """Return the first paths, and how many more there are."""
    more = len(paths) - SHOWN
    return ", ".join(paths[:SHOWN]) + (f" and {more} more" if more > 0 else "")
