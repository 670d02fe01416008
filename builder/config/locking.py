"""Making a lock: every version and hash of an image, chosen once and written to its folder.

Of the Python packages, the framework, its CUDA libraries and libtpu are chosen first, and a
requirement that would move one of them is refused. Any other library (numpy, setuptools) may move
within the range that the framework accepts; image.lock names those that did (`Lock.moved`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from builder.config import debian_packages, image_yaml, listed, lockfile, network, uv
from builder.config.debian_packages import DebianPackage
from builder.config.image_yaml import ImageSpec
from builder.config.lockfile import APT, APT_EXTRA, CUDA, EXTRA, Lock, LockedRootfs, Moved
from builder.config.network import BuildNetwork
from builder.config.pins import Pin
from builder.config.stack import GLIBC, OWN_PYTHON, Stack
from builder.config.uv import NoSolution, Platform
from builder.core import files, project
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore, step
from builder.facts import frameworks

WANTED = ("?essential", "?priority(required)", "apt")
"""The packages of a rootfs, as apt patterns."""

PYTHON_PACKAGES = ("python3", "ca-certificates")
"""Debian packages of every own base: the interpreter, and the certificates for gs://."""


class Apt(Protocol):
    """Chooses versions of Debian packages."""

    def __call__(
        self, suite: str, wanted: Sequence[Sequence[str]], installed: tuple[DebianPackage, ...]
    ) -> Sequence[tuple[DebianPackage, ...]]:
        """Return all that apt installs for each list of names, on top of `installed`."""


def lock(
    root: Path,
    spec: ImageSpec,
    stack: Stack,
    apt: Apt,
    upgrade: bool = False,
    on_event: OnEvent = ignore,
    require: Callable[[Lock], None] = lambda _: None,
    now: Sequence[str] = (),
    tested: Path | None = None,
) -> Lock:
    """Lock a target and write its files.

    Versions that are locked and still fit are kept, unless `upgrade`. Where nothing is stale,
    nothing is resolved or fetched. A new target starts from its neighbours' versions, so that they
    share a base. The old files stay until every new version is known.

    An upgrade takes Python releases of at least uv.AGE.

    apt: chooses Debian packages where some are not locked yet. now: packages of any age. tested: a
    project whose locks a first target starts from.
    require: is called with a lock of new versions before it is written; may raise InputError.
    Raises InputError for a requirement that contradicts the framework or another requirement,
    OutsideError for an index or a mirror that cannot be reached.
    """
    # Targets share the rootfs's file: one run at a time.
    with (
        step(f"lock {spec.name}", on_event) as locking,
        files.locked(root / project.BUILD / ".lock"),
    ):
        made, stale = lockfile.check(root, spec, stack)
        kept = not (upgrade or stale)
        if made is None or not kept:
            locking.error = "refused"  # what is raised says why, and is printed once
            made = _made(root, spec, stack, apt, upgrade, now, tested, locking.log)
            require(made)
            locking.error = None
        lockfile.write(root, made)
        locking.cached = kept
        if kept:
            locking.detail = "unchanged"
        else:
            told = listed.told(stack.distribution, stack.release, network.discover())
            locking.detail = f"{len(made.packages)} Python packages{told}"
    return made


def _made(
    root: Path,
    spec: ImageSpec,
    stack: Stack,
    apt: Apt,
    upgrade: bool,
    now: Sequence[str],
    tested: Path | None,
    say: Callable[[str], None],
) -> Lock:
    """Return a new lock. It keeps the versions of the target's own one, then of its neighbours',
    else of the project `tested`, the one of the same accelerator first; an upgrade keeps none."""
    locks: tuple[Lock, ...] = ()
    limits: dict[str, str] = {}  # variables for uv that say how old a release has to be
    if upgrade:
        age = os.environ.get(uv.EXCLUDE_NEWER) or uv.AGE
        limits = {uv.EXCLUDE_NEWER: age, uv.TAKEN_NOW: " ".join(now)}
    else:
        locks = _locks(root, spec.name)
        if tested and not locks:
            locks = _locks(tested, spec.accelerator.lower())
    wheels, moved = _wheels(stack, network.discover(), locks, limits)
    for library in moved:
        say(f"{library.name} {library.before} -> {library.after}, for image.yaml's requirements")
    rootfs, debian = None, dict[str, tuple[DebianPackage, ...]]()
    if spec.has_own_base:
        suite = OWN_PYTHON.get(stack.python, "")
        known = next(
            (lock.rootfs for lock in locks if lock.rootfs and lock.rootfs.suite == suite), None
        )
        rootfs, debian = _debian(known or _locked_rootfs(root, suite, upgrade), spec, locks, apt)
    return Lock(
        target=spec.name,
        configuration=lockfile.configuration(spec),
        framework=spec.framework,
        release=stack.release,
        python=stack.python,
        cuda=stack.cuda,
        cudnn=stack.cudnn,
        rootfs=rootfs,
        apt=debian,
        wheels=wheels,
        moved=moved,
    )


def _locks(root: Path, first: str) -> tuple[Lock, ...]:
    """Return the locks of a project's targets that have one; `first` comes first."""
    locks = []
    for name in (first, *(name for name in image_yaml.targets(root) if name != first)):
        with contextlib.suppress(InputError):
            locks.append(lockfile.read(root, name))
    return tuple(locks)


def _debian(
    rootfs: LockedRootfs, spec: ImageSpec, locks: Sequence[Lock], apt: Apt
) -> tuple[LockedRootfs, dict[str, tuple[DebianPackage, ...]]]:
    """Return the rootfs with its packages, and the packages on top of it by their file.

    What is locked is kept.
    """
    names = lockfile.configuration(spec)["apt"]
    near = [lock for lock in locks if lock.rootfs == rootfs]
    python = next((lock.apt[APT] for lock in near if APT in lock.apt), ())
    extra = next(
        (lock.apt.get(APT_EXTRA, ()) for lock in near if lock.configuration["apt"] == names), ()
    )
    steps = [(WANTED, rootfs.packages), (PYTHON_PACKAGES, python), (tuple(names), extra)]
    chosen = _chosen(rootfs.suite, [(wanted, kept) for wanted, kept in steps if wanted], apt)
    root, *on_top = (tuple(sorted(packages)) for packages in chosen)
    by_file = {name: each for name, each in zip((APT, APT_EXTRA), on_top, strict=False) if each}
    return replace(rootfs, packages=root), by_file


def _chosen(
    suite: str, steps: Sequence[tuple[tuple[str, ...], tuple[DebianPackage, ...]]], apt: Apt
) -> list[tuple[DebianPackage, ...]]:
    """Return the packages of each step, on top of those before it: the kept ones, else apt's."""
    chosen = [kept for _, kept in itertools.takewhile(lambda step: step[1], steps)]
    ask = [names for names, _ in steps[len(chosen) :]]
    there = tuple(deb for packages in chosen for deb in packages)
    if ask:
        answer = apt(suite, ask, there)
        if not there and any(deb.name == "usrmerge" for deb in answer[0]):
            # Debian 12 has two packages for a merged /usr. The root is made with one:
            # usr-is-merged, which only checks it, is enough.
            answer = apt(suite, [(*ask[0], "usr-is-merged"), *ask[1:]], there)
        for packages in answer:
            chosen.append(tuple(deb for deb in packages if deb not in there))
            there += chosen[-1]
    return chosen


def _locked_rootfs(root: Path, suite: str, upgrade: bool) -> LockedRootfs:
    """Return the rootfs of a Debian suite; without packages where they have to be chosen."""
    path = lockfile.os_lock(root, suite)
    keep = path.is_file() and not upgrade
    packages = debian_packages.parse(path.read_text(encoding="utf-8")) if keep else ()
    return LockedRootfs(suite, packages)


# --- Python packages ------------------------------------------------------------------------------

GLIBC_PUBLISHED = 31
"""The 2.x that is assumed of a published base: that of Ubuntu 20.04, the oldest in use there."""


def _wheels(
    stack: Stack, host: BuildNetwork, locks: Iterable[Lock], limits: Mapping[str, str]
) -> tuple[dict[str, tuple[Pin, ...]], tuple[Moved, ...]]:
    """Return the pins of each layer, by the layer's file, and what the user's requirements moved.

    locks: those whose versions are kept where no requirement excludes them, the target's own
    first. limits: variables for uv that say how old a release has to be. Raises InputError for
    requirements that cannot be met, OutsideError where the index cannot be reached.
    """
    like = [lock for lock in locks if lock.framework == stack.spec.framework]
    versions = {n: p.version for lock in reversed(like) for n, p in lock.packages.items()}
    before = {library.name: library.before for lock in reversed(like) for library in lock.moved}
    resolver = _Resolver(stack, {**host.host_environment(), **limits})
    base = resolver.framework(versions | before)
    _check_builds(stack, base, host)
    # A library that was moved goes back once no requirement moves it; until then it stays.
    every = resolver.with_requirements(base, versions | before)
    if any(library.name in before for library in _moved(base, every)):
        every = resolver.with_requirements(base, versions)
    _check_builds(stack, every, host)
    sources = [name for name, pin in every.items() if pin.source]
    if sources and not stack.spec.has_own_base:
        raise InputError(
            f"{image_yaml.where(stack.spec, 'requirements')}: {', '.join(sources)} has no wheel",
            "leave it out, or take base: own, whose wheels may be made of a source",
        )
    known = [pin for lock in locks for pin in lock.packages.values()]
    own = stack.spec.has_own_base
    chosen = every if own else {n: pin for n, pin in every.items() if n not in base}
    pins = uv.with_sizes(chosen, known, host)
    return _layers(pins, base, frameworks.of(stack.spec.framework).lock_file), _moved(base, every)


_SAME_FILES: Final = (
    r"opencv(-contrib)?-python(-headless|-rolling)*",
    r"onnxruntime(-\w+)?|ort-nightly(-gpu)?",
    r"cupy(-cuda\d+x?|-rocm-[\d-]+)?",
    r"faiss-(cpu|gpu)(-cu\d+)?",
    *(rf"{name}(-simd|-binary|-cpu|-gpu|-lts-cpu|-cu\d+)?" for name in (
        "pillow", "psycopg2", "polars", "xgboost", "paddlepaddle", "dgl", "mxnet",
    )),
    r"pycrypto(dome)?",
    r"(tensorboard|tb-nightly)",
    r"(pyjwt|jwt)",
    r"(python-dotenv|dotenv)",
    r"(pymongo|bson)",
    r"(pyserial|serial)",
)  # fmt: skip
"""Distributions of which an environment has one, by patterns of their names: they own the same
modules (the READMEs of opencv-python, "SELECT ONLY ONE OF THEM", onnxruntime, CuPy and faiss say
so). Others the check `contents` finds in the image."""

OTHER_BUILDS = ("cpu", "rocm", "xpu")
"""How the label of a build begins that has no code for NVIDIA's GPUs (torch 2.15.0+cpu)."""


def _check_builds(stack: Stack, pins: Mapping[str, Pin], host: BuildNetwork) -> None:
    """Raise InputError where an index gave a build for another device: by its label, or because
    it does not bring a library that the framework's release is known to bring."""
    if stack.accelerator.kind != "gpu":
        return
    for name, pin in pins.items():
        label = pin.version.partition("+")[2]
        lacks = next((each for each in stack.constraints if each not in pins), "")
        if label.startswith(OTHER_BUILDS):
            what = f"is built for {label}"
        elif name == stack.distribution and lacks:
            what = f"does not bring {lacks}, which {stack.requirement} is known to bring"
        else:
            continue
        index, named = host.index_of(pin.url)
        named = named or next(filter(os.environ.get, ("UV_TORCH_BACKEND", "UV_FIND_LINKS")), "")
        source = f"{index}, which {named} names," if named else index
        raise InputError(
            f"{image_yaml.where(stack.spec, stack.spec.framework)}: {name} {pin.version} of "
            f"{source} {what}: {stack.accelerator.name} needs CUDA",
            f"take that index out of {named}, and lock again" if named else "name another index",
        )


def _moved(base: Mapping[str, Pin], every: Mapping[str, Pin]) -> tuple[Moved, ...]:
    return tuple(
        Moved(name, pin.version, every[name].version)
        for name, pin in base.items()
        if name in every and every[name].version != pin.version
    )


def _layers(
    pins: Mapping[str, Pin], base: Mapping[str, Pin], framework: str
) -> dict[str, tuple[Pin, ...]]:
    """Return the pins by the file of their layer. base: what the framework needs; framework: its
    file."""
    layers: dict[str, list[Pin]] = {CUDA: [], framework: [], EXTRA: []}
    for name in sorted(pins):
        layer = EXTRA if name not in base else CUDA if name.startswith("nvidia-") else framework
        layers[layer].append(pins[name])
    return {name: tuple(wheels) for name, wheels in layers.items() if wheels}


@dataclass(frozen=True)
class _Resolver:
    stack: Stack
    environment: Mapping[str, str]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The framework, and what it uses without saying so."""
        return (self.stack.requirement, *frameworks.of(self.stack.spec.framework).beside)

    @property
    def requirements(self) -> tuple[str, ...]:
        spec = self.stack.spec
        return tuple(
            dict.fromkeys(
                (*spec.requirements, *(text for _, text in spec.program_folder.requirements))
            )
        )

    def resolve(
        self,
        requirements: Iterable[str],
        versions: Mapping[str, str],
        constraints: Mapping[str, str] | None = None,
    ) -> dict[str, Pin]:
        """Return what `uv.resolve` does on the platform of the image. versions: those preferred."""
        own, python = self.stack.spec.has_own_base, self.stack.python
        platform = Platform(python, GLIBC[OWN_PYTHON[python]] if own else GLIBC_PUBLISHED)
        return uv.resolve(requirements, platform, self.environment, constraints, versions)

    def framework(self, versions: Mapping[str, str]) -> dict[str, Pin]:
        stack, spec = self.stack, self.stack.spec
        try:
            return self.resolve(self.wanted, versions, stack.constraints)
        except NoSolution as error:
            fix = f"see builder explain {spec.name}"
            for index in frameworks.of(spec.framework).indexes if "+" in stack.release else ():
                label = stack.release.partition("+")[2]
                fix = f"name an index that has this build in UV_INDEX, such as {index}/{label}"
            if "only unsupported wheel variants" in str(error):
                fix = "name an index that has the plain wheel: uv reads variants in preview alone"
            raise InputError(
                f"{image_yaml.where(spec, spec.framework)}: {stack.requirement} cannot be "
                f"installed for Python {stack.python}: {error}",
                fix,
            ) from None

    def fixed(self, base: Mapping[str, Pin]) -> dict[str, str]:
        """Return the versions that no requirement may move: the framework's, NVIDIA's libraries',
        libtpu's."""
        names = {self.stack.distribution, "libtpu", *self.stack.constraints}
        return {
            name: pin.version
            for name, pin in base.items()
            if name in names or name.startswith("nvidia-")
        }

    def with_requirements(
        self, base: dict[str, Pin], versions: Mapping[str, str]
    ) -> dict[str, Pin]:
        """Return all packages with the user's requirements.

        Raises InputError that names the one at fault.
        """
        if not self.requirements:
            return base

        def resolve(*requirements: str) -> dict[str, Pin]:
            return self.resolve([*self.wanted, *requirements], versions, self.fixed(base))

        spec, distribution = self.stack.spec, self.stack.distribution
        try:
            every = resolve(*self.requirements)
        except NoSolution as together:
            for requirement in self.requirements:
                try:
                    resolve(requirement)
                except NoSolution as alone:
                    raise self.unmet(base, requirement, alone) from None
            raise InputError(
                f"{image_yaml.where(spec, 'requirements')}: they contradict each other: {together}",
                "loosen or remove one of them",
            ) from None
        for family in _SAME_FILES:
            if len(same := [name for name in every if re.fullmatch(family, name)]) > 1:
                raise self.overlapping(every, same, resolve)
        twins = ((name, self.twin(name, base)) for name in every if name not in base)
        for second, twin in twins:
            if twin:  # it installs over the files of the framework or of a CUDA library
                brings = (name for name in self.requirements if second in resolve(name))
                requirement = next(brings, self.requirements[0])
                raise InputError(
                    f'{self.where(requirement)}: "{requirement}" brings {second}, whose files would'
                    f" replace those of {twin}",
                    f"leave it out of {spec.name}, or name a package that works with"
                    f" {distribution}",
                )
        return every

    def overlapping(
        self, every: Mapping[str, Pin], same: list[str], resolve: Callable[..., dict[str, Pin]]
    ) -> InputError:
        """Return the error for packages that own the same files. What another requirement needs
        stays; else the build for this accelerator, then the larger one, then that without a
        window."""
        gpu = self.stack.accelerator.kind == "gpu"
        by = {
            name: next((text for text in self.requirements if name in resolve(text)), name)
            for name in same
        }
        direct = {name for name in same if re.match(rf"{name}(?![\w.-])", by[name].lower())}
        order = [("gpu", "cuda")] * gpu + [("contrib",), ("headless",)]
        worth = {name: [any(word in name for word in words) for words in order] for name in same}
        kept = max(same, key=lambda name: (name not in direct, worth[name]))
        first, *others = (f"{name} {every[name].version}" for name in sorted(same))
        out = ", ".join(by[name] for name in same if name != kept)
        return InputError(
            f"{self.where(by[same[0]])}: {first} and {', '.join(others)} install the same files, "
            "and what comes last breaks the other",
            f'leave out "{out}"; {kept} stays' + f", which {by[kept]} needs" * (kept not in direct),
        )

    def twin(self, name: str, base: Mapping[str, Pin]) -> str:
        """Return the package whose files `name` would replace; "" for none."""
        if name in frameworks.of(self.stack.spec.framework).distributions:
            return self.stack.distribution
        stem = re.sub(r"-cu\d+$", "", name)
        same = (package for package in base if re.sub(r"-cu\d+$", "", package) == stem)
        return next(same, "") if stem.startswith("nvidia-") else ""

    def unmet(self, base: Mapping[str, Pin], requirement: str, reason: NoSolution) -> InputError:
        """Return the error for a requirement that cannot be met: what it would move, or uv's
        reason."""
        stack, framework = self.stack, self.stack.spec.framework
        versions = {name: pin.version for name, pin in base.items()}
        alone: dict[str, Pin] = {}
        with contextlib.suppress(NoSolution):
            alone = self.resolve([requirement], versions)
        fixed = self.fixed(base)
        moves = [
            f"{name} {versions[name]} to {alone[name].version}"
            for name in sorted(versions, key=lambda name: (name not in fixed, name))
            if name in alone and alone[name].version != versions[name]
        ]
        twin = alone.get(framework)
        if twin and framework not in versions and twin.version != stack.release:
            moves.insert(0, f"{stack.distribution} {stack.release} to {twin.version}")
        what = f"would move {', '.join(moves)}" if moves else f"cannot be met: {reason}"
        if uv.SOURCE_ALONE in str(reason):
            fix = "leave it out, or take a release that has a wheel: images hold no compiler"
            return InputError(f'{self.where(requirement)}: "{requirement}": {reason}', fix)
        return InputError(
            f'{self.where(requirement)}: "{requirement}" {what}',
            f"leave it out or loosen it: {stack.distribution} {stack.release} and what it was "
            f"tested with stay (builder explain {stack.spec.name})"
            + ("; another CUDA library is image.yaml's key cuda" if "nvidia-" in what else ""),
        )

    def where(self, requirement: str) -> str:
        """Return the file, line and field of one requirement."""
        spec = self.stack.spec
        for where, text in spec.program_folder.requirements:
            if text == requirement:
                return where
        with contextlib.suppress(OSError):
            for number, line in enumerate(spec.source.read_text(encoding="utf-8").splitlines(), 1):
                if requirement in line:
                    return f"{image_yaml.shown(spec.source)}:{number}: requirements"
        return image_yaml.where(spec, "requirements")
