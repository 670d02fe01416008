"""What a framework decides, and which frameworks there are.

A framework is a value: `Framework`. Ours lie in the folders of builder/frameworks/. One that lives
in another distribution is registered there, as an entry point of the group GROUP; its name is the
key of image.yaml. Everything else in the factory asks this value, and names no framework.

Functions of the rooms above (the versions of an image, its checks) are imported when they are
called, by the reference that an entry point has (`later` in builder/core/plugins.py): so this
module imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from builder.core import plugins

GROUP: Final = "training_image_factory.frameworks"
DEFAULT: Final = "tensorflow"
"""The framework of an image.yaml that names none."""
OWN: Final = ("tensorflow", "torch", "jax")
"""The frameworks of this distribution."""

LABEL: Final = "training-image-factory.framework"
"""The label of an image that names its framework; those of DEFAULT have none."""

NVIDIA: Final = "nvidia"
"""The word that the names of CUDA's wheels, and their folder, begin with."""


@dataclass(frozen=True)
class Exclude:
    """A rule about files of wheels that training never loads."""

    wheels: str
    """A pattern of the names of distributions."""
    paths: tuple[str, ...]
    """Patterns of paths below site-packages; `*` stands for a part of a name, `**` for any number
    of folders and names."""
    why: str


@dataclass(frozen=True)
class OptionalLibrary:
    """A library that programs load for one feature alone: an image without kernels in it for its
    GPU is good all the same."""

    name: str
    """The beginning of its file's name."""
    since: str
    """The oldest compute capability whose GPUs have the feature ("8.0"), "" where hardly any
    program asks for it."""
    why: str
    """What it is for."""


@dataclass(frozen=True)
class Framework:
    """A framework."""

    name: str
    """The key of image.yaml, and the folder of its libraries below site-packages."""
    title: str
    """Its name for a person."""
    distributions: frozenset[str]
    """Packages that install over each other's files; an image has one of them."""
    releases: Callable[[], tuple[str, ...]]
    """Returns those that are known, oldest first."""
    resolve: Callable[[Any], Any]
    """Takes an ImageSpec; returns the Stack of an image, or raises RefusedError."""
    suites: Callable[[], Mapping[str, Any]]
    """Returns the Suite of an image by `suite` of image.yaml."""
    needed_by: frozenset[str] = frozenset()
    """Packages that say that a program uses it."""
    apt: tuple[str, ...] = ()
    """Debian's packages that each of its bases has."""
    beside: tuple[str, ...] = ()
    """PyPI's packages that it uses, and does not ask for."""
    exclude_nvidia: tuple[Exclude, ...] = ()
    exclude: tuple[Exclude, ...] = ()
    """`exclude_nvidia` and `exclude`: the rules for NVIDIA's wheels, and for its own."""
    environment: Callable[[Iterable[str], str], Mapping[str, str]] = lambda _packages, _site: {}
    """Returns the variables of an image with these packages; the second value is its
    site-packages."""
    rendezvous: Mapping[str, str] = field(default_factory=dict)
    """The variables by which its processes find each other, each with its value: {host} and {port}
    of the first process, {rank} of this one, {count} of all; empty for a framework that reads
    TF_CONFIG itself."""
    devices: str = ""
    """The module that says where its list of devices is, which is copied into images for the guard
    (trainer/guard/framework.py); "" for none."""
    optional: tuple[OptionalLibrary, ...] = ()
    """Its libraries that one feature alone needs."""
    module: str = ""
    """A pattern of the compiled module, below site-packages, without which it is not imported."""
    opened: Callable[[Any, Callable[..., str]], Iterable[Any]] = lambda _libraries, _why_not: ()
    """Takes the libraries of an image for a GPU, and a function that says why one does not open
    ("is not in the image", "" where it does), asked with its name and the beginning of the name of
    what opens it; yields a Defect for each that the framework opens by name and does not get."""
    one_bundle: bool = False
    """Whether it looks for certificates in Debian's place alone."""
    flags: str = ""
    """A program that makes it read the flags of XLA_FLAGS; "" for a framework without XLA."""
    one_host: bool = False
    """Whether it trains on one host of a TPU alone."""
    plugins: str = ""
    """A second folder of its libraries; "" for none."""
    companions: frozenset[str] = frozenset()
    """Packages that are released together with it, so that their versions move with its own."""
    aliases: frozenset[str] = frozenset()
    """Its other names, in conda and in the names of images."""
    indexes: frozenset[str] = frozenset()
    """The addresses of indexes that have its builds, and nothing else of their own."""

    @property
    def lock_file(self) -> str:
        """The file that locks the framework and all it needs."""
        return f"{self.name}.lock"

    def pruned(self, only: str) -> tuple[str, ...]:
        """Return the folders of the libraries that `prune: ONLY` speaks of."""
        own = (self.name, self.plugins) if self.plugins else (self.name,)
        return (*own, NVIDIA) if only == "all" else own


@cache
def of(name: str) -> Framework:
    """Return a framework by the key of image.yaml. Raises KeyError where there is none."""
    framework: Framework = plugins.load(GROUP, name, OWN, "builder.frameworks.{}:FRAMEWORK")
    return framework


@cache
def every() -> tuple[Framework, ...]:
    """Return all frameworks, ours first."""
    return tuple(map(of, plugins.names(GROUP, OWN)))


@cache
def optional() -> tuple[OptionalLibrary, ...]:
    """Return what one feature of some framework alone needs."""
    return tuple(library for framework in every() for library in framework.optional)


def minor(release: str) -> str:
    """Return the minor release that a release belongs to: "0.12" for "0.12.0.1"."""
    return ".".join(release.split(".")[:2])


def named_in(keys: Iterable[Any]) -> tuple[str, ...]:
    """Return the keys that name a framework. Other distributions are asked for unknown keys."""
    return tuple(key for key in keys if isinstance(key, str) and is_known(key))


@cache
def is_known(name: str) -> bool:
    """Return whether a framework has this name."""
    return name in OWN or name in plugins.names(GROUP, OWN)


def of_image(labels: Mapping[str, str]) -> Framework:
    """Return the framework of an image with these labels. Raises KeyError for an unknown one."""
    return of(labels.get(LABEL, DEFAULT))
