"""What a base is made of: a pure function of the lock, before anything is fetched.

From the bottom: the rootfs (Debian's packages), the wheel layers, the environment. The wheels of
cuda.lock lie below those of the framework's lock and extra.lock. A wheel of BIG bytes or more has a
layer of its own; the smaller ones of a lock file share one, above its big ones. Big ones are sorted
by name, with the framework itself last. So a new one moves one layer, and a new small package a
small one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib import resources
from typing import Any, Final

from builder.config import lockfile
from builder.config.debian_packages import DebianPackage
from builder.config.image_yaml import ImageSpec
from builder.config.lockfile import Lock
from builder.config.pins import Pin
from builder.config.stack import Prune, Stack
from builder.core.errors import InputError
from builder.core.files import hash_of
from builder.facts import frameworks
from builder.facts.frameworks import Exclude, Framework
from builder.image.layer import AssembledImage, Compression, Layer, LayerPlan

APP: Final = "/app"
"""The folder of the training program in an image."""
VENV: Final = "/opt/venv"
"""The Python environment that wheels are installed into."""
LOADER: Final = "usr/lib/x86_64-linux-gnu"
"""A folder that the dynamic loader searches by default: links to NVIDIA's libraries lie there."""
LABELS: Final = "training-image-factory"
"""The prefix of the labels that name what an image is made of."""

BIG: Final = 10_000_000
"""Bytes of a wheel from which on it has a layer of its own."""

ROOTFS_RECIPE: Final = ("2", "1", "1")
"""Raise the last number where rootfs.py makes other bytes from the same packages.
"""
WHEELS_RECIPE: Final = 2
"""Raise it with each change that gives a layer other bytes from the same wheels."""
ENVIRONMENT_RECIPE: Final = "1"
"""Raise it where the environment's layer gets other bytes from the same values."""

HOOK: Final = "training_image_gpu"
"""The module that prints one line when Python starts on a GPU that the image was not pruned for."""

COMPILER: Final = ("libc6", "zlib1g", "libexpat1", "libpython{}-minimal", "python{}-minimal")
"""The Debian packages that bytecode is compiled with; `{}` is the version of Python."""

_WHY: Final = {
    lockfile.CUDA: "NVIDIA's libraries",
    lockfile.EXTRA: "what image.yaml and the trainer add",
}


def site_packages(python: str) -> str:
    """Return the folder of an image's packages; python: "3.11"."""
    return f"{VENV}/lib/python{python}/site-packages"


@dataclass(frozen=True)
class Rootfs:
    suite: str
    required: tuple[DebianPackage, ...]
    """Debian's required ones and apt, with all they need."""
    added: tuple[DebianPackage, ...] = ()
    """Python, the certificates, and what image.yaml adds."""

    @property
    def packages(self) -> tuple[DebianPackage, ...]:
        return tuple(sorted((*self.required, *self.added)))

    def plan(self, compression: Compression) -> LayerPlan:
        texts: list[str] = []
        for packages in (self.required, self.added):
            for deb in sorted(packages):
                texts += [deb.name, deb.version, deb.sha256]
            texts.append("")
        return LayerPlan(
            key=hash_of(*ROOTFS_RECIPE, str(compression), *texts),
            name=f"Debian {self.suite}",
            packages=tuple(f"{deb.name} {deb.version}" for deb in self.packages),
            download=sum(deb.bytes for deb in self.packages),
            why="Debian's required packages, apt, Python, certificates, and image.yaml's `apt`",
        )


@dataclass(frozen=True)
class WheelLayer:
    plan: LayerPlan
    pins: tuple[Pin, ...]
    exclude: tuple[tuple[Exclude, ...], ...]
    """The rules for each of `pins`."""
    python: str
    """"3.11"."""
    keep: str | None
    owners: tuple[str, ...]
    """`keep` and `owners`: the compute capability whose device code stays, and the folders of the
    libraries; None and empty where nothing is pruned."""
    linked: bool
    """Whether the loader has to find its libraries."""
    compression: Compression


@dataclass(frozen=True)
class Environment:
    """The top layer: the program's user and folder, the Python environment, the start hook."""

    python: str
    user: int
    """The number of the program's user and group."""
    keep: str | None
    """The compute capability whose device code stays; None where nothing is pruned."""

    def plan(self, rootfs: LayerPlan, compression: Compression) -> LayerPlan:
        """Return the plan of the layer. rootfs: the layer whose accounts it adds to."""
        texts = [text for pair in self.files.items() for text in pair]
        key = hash_of(
            "environment", ENVIRONMENT_RECIPE, rootfs.key, str(self.user), str(compression), *texts
        )
        warning = f", a word at the start beside a GPU other than {self.keep}" if self.keep else ""
        why = f"the user {self.user}, {APP}, {VENV}{warning}"
        return LayerPlan(key, "environment", (), 0, why)

    @property
    def files(self) -> dict[str, str]:
        """Path in the layer -> text, without the accounts."""
        files = {
            f"{VENV}/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n"
            f"version = {self.python}\nexecutable = /usr/bin/python{self.python}\n"
        }
        if self.keep:
            site = site_packages(self.python)
            files[f"{site}/{HOOK}.py"] = pruning_program()["announce.py"]
            files[f"{site}/{HOOK}.pth"] = f'import {HOOK}; {HOOK}.announce("{self.keep}")\n'
        return {path.lstrip("/"): text for path, text in files.items()}


@dataclass(frozen=True)
class BasePlan:
    """A base to assemble: the rootfs, the wheels above it, and the environment on top."""

    rootfs: Rootfs
    wheels: tuple[WheelLayer, ...]
    environment: Environment
    config: Mapping[str, Any]
    """What stands below `config` of the image's configuration."""
    compression: Compression
    compiler: tuple[DebianPackage, ...]
    """The packages that bytecode is compiled with. Nothing in a plan names the target, so that
    targets with the same content share a base."""

    @cached_property
    def layers(self) -> tuple[LayerPlan, ...]:
        rootfs = self.rootfs.plan(self.compression)
        top = self.environment.plan(rootfs, self.compression)
        return (rootfs, *(layer.plan for layer in self.wheels), top)

    @cached_property
    def hash(self) -> str:
        """16 hex digits over all that decides the base's bytes."""
        keys = [layer.key for layer in self.layers]
        return hash_of(json.dumps(self.config, sort_keys=True), *keys)[:16]

    @property
    def tag(self) -> str:
        """The base's tag, the same for every target that shares it."""
        return f"base-{self.hash}"

    @property
    def python(self) -> str:
        return self.environment.python


def plan(spec: ImageSpec, stack: Stack, lock: Lock) -> BasePlan:
    """Return the plan of the base of a target that has its own. Nothing is read or fetched."""
    compression = Compression.of(spec.compression)
    assert lock.rootfs is not None
    added = tuple(deb for packages in lock.apt.values() for deb in packages)
    return BasePlan(
        rootfs=Rootfs(lock.rootfs.suite, lock.rootfs.packages, added),
        wheels=wheel_layers(lock, stack.prune, compression),
        environment=Environment(lock.python, spec.user, stack.prune.keep if stack.prune else None),
        config=image_config(lock),
        compression=compression,
        compiler=compiler(lock),
    )


def compiler(lock: Lock) -> tuple[DebianPackage, ...]:
    """Return the locked Debian packages that bytecode is compiled with; the last is Python itself.

    Raises InputError for a lock that lacks one.
    """
    locked = [*(lock.rootfs.packages if lock.rootfs else ()), *lock.apt.get(lockfile.APT, ())]
    debs = {deb.name: deb for deb in locked}
    names = [name.format(lock.python) for name in COMPILER]
    if missing := [name for name in names if name not in debs]:
        raise InputError(
            f"{lock.target}: its lock has no {missing[0]}, which compiles bytecode",
            f"run builder lock {lock.target}",
        )
    return tuple(debs[name] for name in names)


def image_config(lock: Lock) -> dict[str, Any]:
    """Return what stands below `config` of a base's configuration (OCI image specification,
    config.md)."""
    assert lock.rootfs is not None
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {
        "PATH": f"{VENV}/bin:{system}",
        "VIRTUAL_ENV": VENV,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    labels = {"root": lock.rootfs.origin, lock.framework: lock.release, "python": lock.python}
    if lock.cuda:
        # The driver is the host's: NVIDIA's container toolkit mounts it because of NVIDIA_*, and
        # Google's nodes put it at the path.
        environment |= {
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
        labels |= {"cuda": lock.cuda, "cudnn": lock.cudnn or ""}
    framework = frameworks.of(lock.framework)
    environment |= framework.environment(lock.packages, site_packages(lock.python))
    return {
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {f"{LABELS}.{name}": value for name, value in labels.items()},
        "WorkingDir": APP,
        "Cmd": ["bash"],
    }


# --- wheel layers ---------------------------------------------------------------------------------


def wheel_layers(
    lock: Lock, prune: Prune | None, compression: Compression | None = None
) -> tuple[WheelLayer, ...]:
    """Return the wheel layers of a lock, in their order in the base. No wheel is read.

    prune: what device code stays; None where nothing is pruned.
    """
    compression, python = compression or Compression(), compiler(lock)[-1].version
    return tuple(
        _wheel_layer(lock, file, pins, prune, compression, python)
        for file in lock.wheel_files
        for pins in _grouped(lock.framework, lock.wheels.get(file, ()))
    )


def _grouped(framework: str, pins: Sequence[Pin]) -> Iterator[tuple[Pin, ...]]:
    """Yield the wheels of each layer of one lock file."""
    big = [pin for pin in pins if (pin.bytes or 0) >= BIG]
    for pin in sorted(big, key=lambda pin: (_first_word(pin) == framework, pin.name)):
        yield (pin,)
    if small := tuple(sorted((pin for pin in pins if pin not in big), key=lambda pin: pin.name)):
        yield small


def _wheel_layer(
    lock: Lock,
    file: str,
    pins: tuple[Pin, ...],
    prune: Prune | None,
    compression: Compression,
    python: str,
) -> WheelLayer:
    framework = frameworks.of(lock.framework)
    only = framework.name if file == framework.lock_file else prune.only if prune else None
    # the first word of a distribution's name is that of the folder its libraries lie in
    owners = framework.pruned(only) if prune and only and file != lockfile.EXTRA else ()
    pruned = prune if any(_first_word(pin) in owners for pin in pins) else None
    exclude = tuple(exclude_rules(framework, file, pin.name) for pin in pins)
    linked = file == lockfile.CUDA
    excluded = ((pin, rule) for pin, each in zip(pins, exclude, strict=True) for rule in each)
    # what an image prints when it starts is no part of the layer
    texts = ((name, text) for name, text in pruning_program().items() if name != "announce.py")
    program = (_quoted(name, text) for name, text in texts)
    key = hash_of(
        f"wheels {WHEELS_RECIPE}",
        *(f"{pin.name} {pin.version} {pin.sha256}" for pin in pins),
        *(f"{pin.name}: {rule.paths}" for pin, rule in excluded),
        *((f"keep {pruned.keep} {only}", *program) if pruned else ()),
        *((f"links in {LOADER}",) if linked else ()),
        f"python {lock.python} {python}",
        str(compression),
    )
    sizes = [pin.bytes for pin in pins]
    packages = tuple(f"{pin.name} {pin.version}" for pin in pins)
    return WheelLayer(
        plan=LayerPlan(
            key=key,
            name=packages[0] if len(pins) == 1 else f"{len(pins)} small wheels of {file}",
            packages=packages,
            download=None if None in sizes else sum(size or 0 for size in sizes),
            why=_WHY.get(file, f"{framework.title} and all it needs")
            + (f", device code for {pruned.keep}" if pruned else ""),
        ),
        pins=pins,
        exclude=exclude,
        python=lock.python,
        keep=pruned.keep if pruned else None,
        owners=owners if pruned else (),
        linked=linked,
        compression=compression,
    )


def exclude_rules(framework: Framework, lock_file: str, wheel: str) -> tuple[Exclude, ...]:
    """Return the exclude rules for a wheel of a lock file, by its name.

    They speak of the wheels of cuda.lock and of the framework's lock alone: what image.yaml and the
    trainer add comes whole. A test trains, and sees that nothing of what is excluded is loaded.
    """
    by_file = {lockfile.CUDA: framework.exclude_nvidia, framework.lock_file: framework.exclude}
    known = by_file.get(lock_file, ())
    return tuple(rule for rule in known if fnmatchcase(wheel, rule.wheels))


@cache
def pruning_program() -> Mapping[str, str]:
    """Return file name -> text of builder/devicecode/pruning, sorted by name."""
    folder = resources.files("builder.devicecode.pruning")
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py")
    }


@cache
def _quoted(name: str, text: str) -> str:
    return f"{name} {text!r}"


def _first_word(pin: Pin) -> str:
    return pin.name.partition("-")[0]


# --- what a build takes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """What some bases take. A layer or a package that several of them share counts once."""

    layers: int
    missing: int
    download: int
    """Bytes of packages, and of layers that a registry has."""
    unknown: int
    """How many packages are not in it, because no index told their size."""

    def __str__(self) -> str:
        more = f" and {self.unknown} packages of unknown size" if self.unknown else ""
        head = f"{self.missing} of {self.layers} layers to make: " if self.missing else ""
        if not self.missing and not self.download:
            return "every layer is there"
        return f"{head}{self.download / 1e6:,.0f} MB{more} to download"


@dataclass(frozen=True)
class Availability:
    stored: Mapping[str, Layer]
    """In the content store."""
    offered: Mapping[str, Layer]
    """In the registry."""
    missing: Mapping[str, LayerPlan]
    """In neither; to be made."""
    refused: tuple[str, ...] = ()
    """The names of those that the content store has with other bytes than the lock says."""
    remake: frozenset[str] = frozenset()
    """The keys of entries of the content store that do not count in this run."""
    whole: Mapping[str, AssembledImage] = field(default_factory=dict)
    """The bases, by hash, whose manifest the registry has, and so all of their layers."""

    def of(self, plans: Iterable[BasePlan]) -> Availability:
        """Return where the layers of these bases are, without others."""
        keys = {layer.key for plan in plans for layer in plan.layers}
        stored = {key: layer for key, layer in self.stored.items() if key in keys}
        offered = {key: layer for key, layer in self.offered.items() if key in keys}
        missing = {key: layer for key, layer in self.missing.items() if key in keys}
        return replace(self, stored=stored, offered=offered, missing=missing)

    def estimate(self, plans: Iterable[BasePlan]) -> Estimate:
        sizes: dict[str, int | None] = {}
        for plan in plans:
            if plan.layers[0].key in self.missing:
                sizes |= {deb.sha256: deb.bytes for deb in plan.rootfs.packages}
            for layer in plan.wheels:
                if layer.plan.key in self.missing:
                    sizes |= {deb.sha256: deb.bytes for deb in plan.compiler}
                    sizes |= {pin.sha256: pin.bytes for pin in layer.pins}
        packages = sum(size or 0 for size in sizes.values())
        return Estimate(
            layers=len(self.stored) + len(self.offered) + len(self.missing),
            missing=len(self.missing),
            download=packages + sum(layer.blob.size for layer in self.offered.values()),
            unknown=sum(size is None for size in sizes.values()),
        )
