"""What a framework decides, and which frameworks there are.

A framework is a value: `Framework`. Ours lie in the folders beside this file. One that lives in
another distribution is registered there, as an entry point of the group GROUP; its name is the key
of image.yaml. Everything else in the factory asks this value, and names no framework.

What needs the rooms above (the versions, the suites) is a function that is called there, so that
this module imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack
    from builder.prove.suite import Suite

GROUP: Final = "training_image_factory.frameworks"
DEFAULT: Final = "tensorflow"
"""The framework of an image.yaml that names none."""
OWN: Final = ("tensorflow", "torch")
"""The frameworks of this distribution."""

LABEL: Final = "training-image-factory.framework"
"""The label of an image that names its framework; those of DEFAULT have none."""

NVIDIA: Final = "nvidia"
"""The word that the names of CUDA's wheels, and their folder, begin with."""


@dataclass(frozen=True)
class Exclude:
    """A rule about files of wheels that training never loads.

    wheels: a pattern of the names of distributions. paths: patterns of paths below site-packages;
    `*` stands for a part of a name, `**` for any number of folders and names. megabytes: what it
    takes away, unpacked, of the versions that it was written for; None where nobody measured it.
    """

    wheels: str
    paths: tuple[str, ...]
    megabytes: float | None
    why: str


@dataclass(frozen=True)
class Framework:
    """A framework.

    name: the key of image.yaml, and the folder of its libraries below site-packages. title: its
    name for a person. short: what stands before its release in a matrix's targets.
    distributions: packages that install over each other's files; an image has one of them.
    releases: returns those that are known, oldest first; the last is taken where none is written.
    resolve: returns the versions of an image, or raises RefusedError. suites: returns the checks of
    an image by `suite` of image.yaml. exclude: the rules for NVIDIA's wheels, and for its own.
    environment: returns the variables of an image with these packages; the second value is its
    site-packages.
    """

    name: str
    title: str
    short: str
    distributions: frozenset[str]
    releases: Callable[[], tuple[str, ...]]
    resolve: Callable[[ImageSpec], Stack]
    suites: Callable[[], Mapping[str, Suite]]
    exclude_nvidia: tuple[Exclude, ...] = ()
    exclude: tuple[Exclude, ...] = ()
    environment: Callable[[Iterable[str], str], Mapping[str, str]] = lambda _packages, _site: {}

    @property
    def lock_file(self) -> str:
        """The file that locks the framework and all it needs."""
        return f"{self.name}.lock"

    def pruned(self, only: str) -> tuple[str, ...]:
        """Return the folders of the libraries that `prune: ONLY` speaks of."""
        return (self.name, NVIDIA) if only == "all" else (self.name,)


@cache
def of(name: str) -> Framework:
    """Return a framework by the key of image.yaml. Raises KeyError where there is none."""
    own = EntryPoint(name, f"builder.frameworks.{name}:FRAMEWORK", GROUP)
    for point in (own,) if name in OWN else entry_points(group=GROUP, name=name):
        framework: Framework = point.load()
        return framework
    raise KeyError(name)


def named_in(keys: Iterable[Any]) -> tuple[str, ...]:
    """Return the keys that name a framework. Other distributions are asked for unknown keys."""
    return tuple(key for key in keys if isinstance(key, str) and is_known(key))


@cache
def is_known(name: str) -> bool:
    """Return whether a framework has this name."""
    return name in OWN or bool(entry_points(group=GROUP, name=name))


def of_image(labels: Mapping[str, str]) -> Framework:
    """Return the framework of an image with these labels. Raises KeyError for an unknown one."""
    return of(labels.get(LABEL, DEFAULT))
