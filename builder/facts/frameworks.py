"""What a framework decides, and which frameworks there are.

A framework is a value with the members of `Framework`. Ours lie in the folders of
builder/frameworks/. One that lives in another distribution is registered there, as an entry point
of the group GROUP; its name is the key of image.yaml. Everything else in the factory asks this
value, and names no framework.

Its methods import what they call when they are called: naming a framework loads no other room.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from builder.core import plugins

if TYPE_CHECKING:  # the types of the rooms above
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack
    from builder.devicecode.library import Library
    from builder.prove.receipts import Defect
    from builder.prove.suite import Suite

GROUP: Final = "training_image_factory.frameworks"
DEFAULT: Final = "tensorflow"
"""The framework of an image.yaml that names none."""
OWN: Final = ("tensorflow", "torch", "jax")

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


@dataclass(frozen=True)
class Part:
    """A file of a wheel that a check needs, and images lack. It goes into a container alone."""

    package: str
    version: str
    sha256: str
    """Of the wheel, in hex."""
    bytes: int
    path: str


class WhyNot(Protocol):
    """Says why a library does not open: it "is not in the image"; "" where it does."""

    def __call__(self, name: str, opener: str = "") -> str:
        """Take its name, and the beginning of the name of what opens it."""
        ...


class Framework(Protocol):
    @property
    @abstractmethod
    def name(self) -> str:
        """The key of image.yaml, and the folder of its libraries below site-packages."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name for a person."""

    @property
    @abstractmethod
    def distributions(self) -> frozenset[str]:
        """Packages that install over each other's files; an image has one of them."""

    @abstractmethod
    def releases(self) -> tuple[str, ...]:
        """Return those that are known, oldest first."""

    @abstractmethod
    def resolve(self, spec: ImageSpec) -> Stack:
        """Return the versions of an image. Raises RefusedError for what cannot work."""

    @abstractmethod
    def suites(self) -> Mapping[str, Suite]:
        """Return the suite of an image by `suite` of image.yaml."""

    needed_by: ClassVar[frozenset[str]] = frozenset()
    """Packages that say that a program uses it."""
    companions: ClassVar[frozenset[str]] = frozenset()
    """Packages that are released together with it, so that their versions move with its own."""
    ended: ClassVar[Mapping[str, str]] = {}
    """The companions that are released no more, each with the last minor release that has one."""
    aliases: ClassVar[frozenset[str]] = frozenset()
    """Its other names, in conda and in the names of images."""
    indexes: ClassVar[frozenset[str]] = frozenset()
    """The addresses of indexes that have its builds, and nothing else of their own."""
    labelled: ClassVar[bool] = False
    """Whether indexes have builds of a release for one CUDA, by a label: 2.14.1+cu126."""
    apt: ClassVar[tuple[str, ...]] = ()
    """Debian's packages that each of its bases has."""
    beside: ClassVar[tuple[str, ...]] = ()
    """PyPI's packages that it uses, and does not ask for."""
    exclude_nvidia: ClassVar[tuple[Exclude, ...]] = ()
    """The rules for NVIDIA's wheels."""
    exclude: ClassVar[tuple[Exclude, ...]] = ()
    """The rules for its own wheels."""
    rendezvous: ClassVar[Mapping[str, str]] = {}
    """The variables by which its processes find each other, each with its value: {host} and {port}
    of the first process, {rank} of this one, {count} of all; empty for a framework that reads
    TF_CONFIG itself."""
    devices: ClassVar[Path | None] = None
    """The module that says where its list of devices is, which is copied into images for the guard
    (trainer/guard/framework.py)."""
    optional: ClassVar[tuple[OptionalLibrary, ...]] = ()
    """Its libraries that one feature alone needs."""
    module: ClassVar[str] = ""
    """A pattern of the compiled module, below site-packages, without which it is not imported."""
    plugins: ClassVar[str] = ""
    """A second folder of its libraries; "" for none."""
    one_bundle: ClassVar[bool] = False
    """Whether it looks for certificates in Debian's place alone."""
    one_host: ClassVar[bool] = False
    """Whether it trains on one host of a TPU alone."""
    loader_imports: ClassVar[tuple[str, ...]] = ()
    """The framework's own modules that its probe `loader` imports."""
    xla_program: ClassVar[str] = ""
    """A program that makes it read the flags of XLA_FLAGS; "" for a framework without XLA."""

    compiler: ClassVar[Part | None] = None
    """What compiles its programs for a GPU that is not there, where it cannot do so itself."""

    def builds(self, release: str, _offered: Collection[str]) -> tuple[str, ...]:
        """Return its builds among the versions that an index lists, the preferred one first."""
        return (release,)

    def environment(self, _packages: Iterable[str], _site: str) -> Mapping[str, str]:
        """Return the variables of an image with these packages, in this site-packages."""
        return {}

    def opened(self, _libraries: Sequence[Library], _why_not: WhyNot) -> Iterable[Defect]:
        """Yield what the framework opens by name in an image for a GPU, and does not get."""
        return ()

    @property
    def lock_file(self) -> str:
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
    return tuple(map(of, plugins.names(GROUP, OWN)))


@cache
def optional() -> tuple[OptionalLibrary, ...]:
    """Return what one feature of some framework alone needs."""
    return tuple(library for framework in every() for library in framework.optional)


def minor(release: str) -> str:
    """Return the minor release that a release belongs to: "0.12" for "0.12.0.1"."""
    return ".".join(release.split(".")[:2])


@cache
def is_known(name: str) -> bool:
    """Return whether a framework has this name. Other distributions are asked for unknown ones."""
    return name in OWN or name in plugins.names(GROUP, OWN)


def of_image(labels: Mapping[str, str]) -> Framework:
    """Return the framework of an image with these labels. Raises KeyError for an unknown one."""
    return of(labels.get(LABEL, DEFAULT))
