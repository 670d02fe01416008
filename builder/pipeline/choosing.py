"""What chooses Debian's versions for a lock: apt in a container of a root that is locked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.bases import osroot, store
from builder.bases.apt import ContainerApt
from builder.core import debian, network, templates
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine import connect
from builder.lock import debs
from builder.lock.debs import Deb
from builder.spec import catalogue


class LazyApt:
    """A ContainerApt for the project at `root`, made at the first call.

    Most locks need no new Debian package, and then no engine.
    """

    def __init__(self, root: Path, settings: Settings, on_event: OnEvent = ignore) -> None:
        self._root, self._settings, self._on_event = root, settings, on_event
        self._made: ContainerApt | None = None

    def __call__(
        self, suite: str, wanted: Sequence[Sequence[str]], installed: tuple[Deb, ...]
    ) -> Sequence[tuple[Deb, ...]]:
        """As builder.lock.making.Apt."""
        if self._made is None:
            host = network.discover()
            self._made = ContainerApt(
                _seed(self._root),
                connect(self._settings, on_event=self._on_event),
                host,
                debian.archives(self._settings, host),
                store.of_this_machine(),
                self._on_event,
            )
        return self._made(suite, wanted, installed)


def _seed(root: Path) -> osroot.Root:
    """The root whose apt runs: one that the project has locked, else one that the factory has."""
    for folder in (root, templates.PACKAGED.parent):
        for path in sorted((folder / catalogue.IMAGES).glob("os-*.lock")):
            packages = debs.parse(path.read_text(encoding="utf-8"))
            return osroot.Root(path.stem.removeprefix("os-"), packages)
    raise InputError(
        "images/os-<suite>.lock: there is none to start from", "take one from the factory's images/"
    )
