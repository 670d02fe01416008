"""Every version and hash of an image, chosen once and committed: images/<target>/*.lock.

One file a layer, by how often it changes, so that a changed requirement of a user does not fetch
TensorFlow again:

    ../os-<suite>.lock   the packages of the OS root, shared by all targets of a Debian suite
    apt.lock             what Python needs on top of that root
    cuda.lock            NVIDIA's libraries
    tensorflow.lock      TensorFlow and all it needs
    extra.lock           what only image.yaml's requirements bring
    apt-extra.lock       what only image.yaml's apt packages bring
    image.lock           what the others were made from, and their checksums

TensorFlow, its CUDA libraries and libtpu are fixed before a user's requirements are looked at; one
that would move them is refused. Any other library (numpy, setuptools) may move inside the range
that TensorFlow itself accepts; `Lock.moved` and image.lock say which did.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import files, project, templates
from builder.core.errors import FactoryError, InputError
from builder.core.events import OnEvent, ignore, step
from builder.core.retry import Retry
from builder.lock import resolver
from builder.lock.resolver import NoSolution, Pin, Platform
from builder.spec import catalogue
from builder.spec.compatibility import OWN_PYTHON

if TYPE_CHECKING:
    from builder.core.network import BuildNetwork
    from builder.spec.catalogue import ImageSpec
    from builder.spec.compatibility import Stack

FILE = "image.lock"
APT, CUDA, TENSORFLOW, EXTRA, APT_EXTRA = (
    "apt.lock",
    "cuda.lock",
    "tensorflow.lock",
    "extra.lock",
    "apt-extra.lock",
)
WHEELS = (CUDA, TENSORFLOW, EXTRA)
"""The files of Python packages, in the order of their layers."""

PYTHON_PACKAGES = ("python3", "ca-certificates")
"""Debian packages of every own base: the interpreter, and the roots that gs:// is verified with."""

CONFIGURATION = ("accelerator", "tensorflow", "python", "base", "apt", "requirements", "cuda")
"""The fields of image.yaml that decide what is locked. The others change no version."""

OF_TRAINER = "trainer_requirements"
"""The further key of a trainer that has a requirements.txt."""

GLIBC = {"bookworm": 36, "trixie": 40}
"""glibc 2.x of each suite; trixie has 2.41, uv knows 2.40."""

GLIBC_PUBLISHED = 31
"""A published base's is not known: that of Ubuntu 20.04, the oldest among TensorFlow's images."""

DIGEST_TIMEOUT = 3.0
"""Seconds to wait for each answer to the requests that resolve a digest."""

_SCHEMA = 1
_DISTRIBUTIONS = frozenset({"tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly"})
_HEADERS = {
    CUDA: "NVIDIA's libraries.",
    TENSORFLOW: "TensorFlow and all it needs.",
    EXTRA: "What the requirements of image.yaml and of the trainer add.",
    APT: "Debian packages that Python needs on top of the OS root.",
    APT_EXTRA: "Debian packages that image.yaml's `apt` adds.",
}
_WRITTEN = "Written by `builder lock`: change image.yaml, not this file."


@dataclass(frozen=True)
class Root:
    """The OS root: a published image by digest, or one made from exactly these Debian packages.

    digest: of `reference`, None where no registry that holds it could be reached; `open` then says
    so, and the root is made from `packages` (name -> version).
    """

    suite: str
    reference: str
    digest: str | None
    open: str
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """The digest, or the checksum of the packages."""
        return self.digest or _checksum(_versions(self.packages))

    @property
    def name(self) -> str:
        """What `FROM` says."""
        return f"{self.reference}@{self.digest}" if self.digest else self.reference

    @property
    def origin(self) -> str:
        """One line for a person: where the root comes from."""
        made = f"made from {len(self.packages)} packages of Debian {self.suite}"
        return self.name if self.digest else f"{self.reference}, {made}"


@dataclass(frozen=True)
class Moved:
    """A library that a user's requirement took inside TensorFlow's range to another version."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Chosen:
    """A version and why it is this one (a fact of the compatibility tables)."""

    what: str
    value: str
    source: str


@dataclass(frozen=True)
class Lock:
    """All that an image's content is decided by, besides the trainer and the templates.

    wheels: file name -> pins of that layer; apt: file name -> package -> version. A file that would
    be empty is not there. root is None on a published base.
    """

    target: str
    configuration: Mapping[str, Any]
    tensorflow: str
    python: str
    cuda: str | None
    cudnn: str | None
    root: Root | None
    apt: Mapping[str, Mapping[str, str]]
    wheels: Mapping[str, tuple[Pin, ...]]
    moved: tuple[Moved, ...]
    chosen: tuple[Chosen, ...]
    templates: str

    @property
    def packages(self) -> dict[str, Pin]:
        """Every Python package by name."""
        return {pin.name: pin for pins in self.wheels.values() for pin in pins}

    @property
    def files(self) -> dict[str, str]:
        """File name -> text of what the layers install."""
        texts = {
            name: f"# {_HEADERS[name]}\n# {_WRITTEN}\n{_versions(versions)}"
            for name, versions in self.apt.items()
        }
        for name, pins in self.wheels.items():
            texts[name] = resolver.dump(pins, f"{_HEADERS[name]}\n{_WRITTEN}")
        return texts

    @property
    def document(self) -> str:
        """The text of image.lock: JSON, which is YAML too, and is read ten times as fast."""
        root = self.root and {
            "suite": self.root.suite,
            "reference": self.root.reference,
            "digest": self.root.digest,
            **({} if self.root.digest else {"open": self.root.open}),
            "packages": _checksum(_versions(self.root.packages)),
        }
        content = {
            "written_by": _WRITTEN,
            "schema": _SCHEMA,
            "checksum": _checksum(_canonical(self.configuration)),
            "configuration": dict(self.configuration),
            "tensorflow": self.tensorflow,
            "python": self.python,
            "cuda": self.cuda,
            "cudnn": self.cudnn,
            "root": root,
            "moved": [asdict(one) for one in self.moved],
            "chosen": [asdict(one) for one in self.chosen],
            "files": {name: _checksum(text) for name, text in sorted(self.files.items())},
            "templates": self.templates,
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Staleness:
    """A file that no longer says what it should, and why; `fix` is a command.

    versions: whether versions have to be chosen anew; a changed template only has to be noted.
    """

    file: str
    why: str
    fix: str
    versions: bool = True


def configuration(spec: ImageSpec) -> dict[str, Any]:
    """What image.yaml means for a lock, without comments, order of keys and spelt-out defaults."""
    values = spec.model_dump(mode="json", include=set(CONFIGURATION))
    found = {name: values[name] for name in CONFIGURATION}
    if spec.program.requirements:
        found[OF_TRAINER] = [text for _, text in spec.program.requirements]
    return found


def _requirements(spec: ImageSpec) -> tuple[str, ...]:
    """What image.yaml and the trainer's own folder ask for."""
    own = (text for _, text in spec.program.requirements)
    return tuple(dict.fromkeys((*spec.requirements, *own)))


def read(root: Path, target: str) -> Lock:
    """The lock of a target, as it lies there. Raises InputError where none, or no whole one, is."""
    folder = root / catalogue.IMAGES / target
    command = f"builder lock {target}"
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if content["schema"] != _SCHEMA:
            raise KeyError("schema")
        texts = {name: (folder / name).read_text(encoding="utf-8") for name in content["files"]}
        return _parse(root, target, content, texts)
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).relative_to(root)
        raise InputError(
            f"{missing}: is not there: {target} is not locked", f"run {command}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{catalogue.shown(folder / FILE)}: is not what `builder lock` writes ({error})",
            f"delete it and run {command}, or take it back from git",
        ) from None


def _parse(root: Path, target: str, content: Any, texts: Mapping[str, str]) -> Lock:
    base = content["root"]
    return Lock(
        target=target,
        configuration=content["configuration"],
        tensorflow=content["tensorflow"],
        python=content["python"],
        cuda=content["cuda"],
        cudnn=content["cudnn"],
        root=base
        and Root(
            suite=base["suite"],
            reference=base["reference"],
            digest=base["digest"],
            open=base.get("open", ""),
            packages=_read_versions(os_lock(root, base["suite"]).read_text(encoding="utf-8")),
        ),
        apt={name: _read_versions(texts[name]) for name in (APT, APT_EXTRA) if name in texts},
        wheels={name: resolver.parse(texts[name]) for name in WHEELS if name in texts},
        moved=tuple(Moved(**one) for one in content["moved"]),
        chosen=tuple(Chosen(**one) for one in content["chosen"]),
        templates=content["templates"],
    )


def os_lock(root: Path, suite: str) -> Path:
    """The file of the OS root's packages."""
    return root / catalogue.IMAGES / f"os-{suite}.lock"


# --- is it still right? --------------------------------------------------------------------------


def check(root: Path, spec: ImageSpec, stack: Stack) -> tuple[Staleness, ...]:
    """Every file of the lock that is stale, with the reason; nothing is resolved or fetched."""

    folder = root / catalogue.IMAGES / spec.name
    fix = f"run builder lock {spec.name}"
    path = folder / FILE
    if not path.is_file():
        return (Staleness(catalogue.shown(path), "is missing: never locked", fix),)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        held, files = content["configuration"], content["files"]
        changed = _changed_files(folder, files)
        lock = None if changed else read(root, spec.name)
    except (ValueError, KeyError, TypeError, InputError) as error:
        why = getattr(error, "message", None) or f"is not what `builder lock` writes ({error})"
        return (Staleness(catalogue.shown(path), str(why), fix),)
    now = configuration(spec)
    stale = [
        Staleness(
            catalogue.shown(path),
            f"{_key(spec, name)} is {_text(now.get(name))}, locked is {_text(held.get(name))}",
            fix,
        )
        for name in (*CONFIGURATION, OF_TRAINER)
        if held.get(name) != now.get(name)
    ]
    stale += [Staleness(catalogue.shown(folder / name), why, fix) for name, why in changed]
    if lock is None:
        return tuple(stale)
    if not stale:
        stale += [
            Staleness(catalogue.shown(folder / name), why, fix)
            for name, why in _moved_tables(lock, stack)
        ]
    if lock.root and _checksum(_versions(lock.root.packages)) != content["root"]["packages"]:
        stale.append(
            Staleness(
                catalogue.shown(path),
                f"{os_lock(root, lock.root.suite).name} has changed since",
                fix,
            )
        )
    if lock.templates != templates.checksum(root):
        stale.append(
            Staleness(
                catalogue.shown(path), "the Dockerfile templates have changed since", fix, False
            )
        )
    return tuple(stale)


def _key(spec: ImageSpec, name: str) -> str:
    if name == OF_TRAINER:
        return f"{spec.trainer.package}/{catalogue.REQUIREMENTS}"
    return f"image.yaml's {name}"


def _changed_files(folder: Path, files: Mapping[str, str]) -> list[tuple[str, str]]:
    found = []
    for name, checksum in files.items():
        path = folder / name
        if not path.is_file():
            found.append((name, "is missing"))
        elif _checksum(path.read_text(encoding="utf-8", errors="replace")) != checksum:
            found.append((name, "was edited: it is not what was locked"))
    known = (*WHEELS, APT, APT_EXTRA)
    found += [(n, "belongs to no lock") for n in known if n not in files and (folder / n).exists()]
    return found


def _moved_tables(lock: Lock, stack: Stack) -> list[tuple[str, str]]:
    """Pins that the compatibility tables no longer choose."""
    packages, own = lock.packages, lock.root is not None
    file = {pin.name: name for name, pins in lock.wheels.items() for pin in pins}
    wanted = {**stack.constraints, stack.tensorflow_package: stack.tensorflow} if own else {}
    return [
        (
            file.get(name, TENSORFLOW),
            f"the tables choose {name} {version}, locked is "
            f"{packages[name].version if name in packages else 'none'}",
        )
        for name, version in wanted.items()
        if name not in packages or packages[name].version != version
    ]


# --- make it -------------------------------------------------------------------------------------


def lock(
    root: Path,
    spec: ImageSpec,
    stack: Stack,
    upgrade: bool = False,
    on_event: OnEvent = ignore,
    require: Callable[[Lock], None] = lambda _: None,
) -> Lock:
    """Lock a target and write its files; what is there and still fits is kept unless `upgrade`.

    require: called with new versions before anything is written; may raise InputError.

    Where nothing is stale, nothing is resolved or fetched. A new target starts from what its
    neighbours have, so that they share a base. The old files stay until every new one is known.

    Raises InputError for a requirement that contradicts TensorFlow or another one, OutsideError for
    an index or a mirror that cannot be reached.
    """
    # Targets share the OS root's file: one run at a time.
    with (
        step(f"lock {spec.name}", on_event) as locking,
        files.locked(root / project.BUILD / ".lock"),
    ):
        if kept := not upgrade and not any(s.versions for s in check(root, spec, stack)):
            made = read(root, spec.name)
        else:
            made = _make(root, spec, stack, upgrade, locking.log)
            require(made)
        made = replace(made, templates=templates.checksum(root))
        _write(root, made)
        locking.cached = kept
        locking.detail = "unchanged" if kept else f"{len(made.packages)} Python packages"
    return made


def _make(
    root: Path, spec: ImageSpec, stack: Stack, upgrade: bool, say: Callable[[str], None]
) -> Lock:
    from builder.core import network

    host = network.discover()
    held = _held(root, spec, upgrade)
    wheels, moved = _wheels(spec, stack, host, held)
    for one in moved:
        say(f"{one.name} {one.before} -> {one.after}, for image.yaml's requirements")
    own = spec.base == catalogue.OWN
    os_root = _root(root, spec, held, upgrade, say) if own else None
    return Lock(
        target=spec.name,
        configuration=configuration(spec),
        tensorflow=stack.tensorflow,
        python=stack.python,
        cuda=stack.cuda,
        cudnn=stack.cudnn,
        root=os_root,
        apt=_apt(spec, os_root, held) if os_root else {},
        wheels=wheels,
        moved=moved,
        chosen=tuple(Chosen(f.statement, f.value, f.source) for f in stack.facts),
        templates="",
    )


def _held(root: Path, spec: ImageSpec, upgrade: bool) -> tuple[Lock, ...]:
    """The locks whose versions are kept: the target's own, then its neighbours'."""
    found = []
    for name in (spec.name, *(n for n in catalogue.targets(root) if n != spec.name)):
        if not upgrade:
            with contextlib.suppress(InputError):
                found.append(read(root, name))
    return tuple(found)


# --- Python packages -----------------------------------------------------------------------------


def _wheels(
    spec: ImageSpec, stack: Stack, host: BuildNetwork, held: Iterable[Lock]
) -> tuple[dict[str, tuple[Pin, ...]], tuple[Moved, ...]]:
    """The pins of each layer, and what the user's requirements moved."""
    environment = host.host_environment()
    like = [lock for lock in held if stack.tensorflow_package in lock.packages]
    versions = {n: p.version for lock in reversed(like) for n, p in lock.packages.items()}
    before = {one.name: one.before for lock in reversed(like) for one in lock.moved}
    try:
        base = resolver.resolve(
            [stack.tensorflow_requirement],
            _platform(spec),
            environment,
            stack.constraints,
            versions | before,
        )
    except NoSolution as error:
        raise InputError(
            f"{catalogue.where(spec, 'tensorflow')}: {stack.tensorflow_requirement} cannot be "
            f"installed for Python {spec.python}: {error}",
            f"see builder explain {spec.name}",
        ) from None
    every = base
    if _requirements(spec):
        # What was moved goes back where no requirement moves it any longer; else it stays there.
        every = _with_requirements(spec, stack, environment, base, versions | before)
        if any(
            name in every and name in base and every[name].version != base[name].version
            for name in before
        ):
            every = _with_requirements(spec, stack, environment, base, versions)
    moved = tuple(
        Moved(name, pin.version, every[name].version)
        for name, pin in base.items()
        if name in every and every[name].version != pin.version
    )
    known = [pin for lock in held for pin in lock.packages.values()]
    own = spec.base == catalogue.OWN
    chosen = every if own else {n: pin for n, pin in every.items() if n not in base}
    pins = resolver.with_sizes(chosen, known, str(host.ca) if host.ca else None)
    layers: dict[str, list[Pin]] = {CUDA: [], TENSORFLOW: [], EXTRA: []}
    for name in sorted(pins):
        layer = EXTRA if name not in base else CUDA if name.startswith("nvidia-") else TENSORFLOW
        layers[layer].append(pins[name])
    return {name: tuple(found) for name, found in layers.items() if found}, moved


def _platform(spec: ImageSpec) -> Platform:
    glibc = GLIBC[OWN_PYTHON[spec.python]] if spec.base == catalogue.OWN else GLIBC_PUBLISHED
    return Platform(spec.python, glibc)


def _fixed(stack: Stack, base: Mapping[str, Pin]) -> dict[str, str]:
    """What no requirement of a user may move: TensorFlow, NVIDIA's libraries, libtpu."""
    names = {stack.tensorflow_package, "libtpu", *stack.constraints}
    return {
        name: pin.version
        for name, pin in base.items()
        if name in names or name.startswith("nvidia-")
    }


def _with_requirements(
    spec: ImageSpec,
    stack: Stack,
    environment: Mapping[str, str],
    base: Mapping[str, Pin],
    versions: Mapping[str, str],
) -> dict[str, Pin]:
    """All packages with the user's requirements, or InputError that names the one in the way."""

    def resolve(*requirements: str) -> dict[str, Pin]:
        wanted = [stack.tensorflow_requirement, *requirements]
        return resolver.resolve(wanted, _platform(spec), environment, _fixed(stack, base), versions)

    try:
        every = resolve(*_requirements(spec))
    except NoSolution as together:
        for requirement in _requirements(spec):
            try:
                resolve(requirement)
            except NoSolution as alone:
                raise _refused(spec, stack, environment, base, requirement, alone) from None
        raise InputError(
            f"{catalogue.where(spec, 'requirements')}: they contradict each other: {together}",
            "loosen or remove one of them",
        ) from None
    if second := _second(every, base, stack):
        requirement = next(
            (one for one in _requirements(spec) if second in resolve(one)), _requirements(spec)[0]
        )
        raise InputError(
            f'{_where(spec, requirement)}: "{requirement}" brings {second}, whose files would '
            f"replace those of {_twin(second, base, stack)}",
            f"leave it out of {spec.name}, or name a package that works with "
            f"{stack.tensorflow_package}",
        )
    return every


def _second(every: Mapping[str, Pin], base: Mapping[str, Pin], stack: Stack) -> str | None:
    """A package that installs over the files of TensorFlow or of a CUDA library."""
    return next((name for name in every if name not in base and _twin(name, base, stack)), None)


def _twin(name: str, base: Mapping[str, Pin], stack: Stack) -> str:
    """The package whose files `name` would replace; "" for none."""
    if name in _DISTRIBUTIONS:
        return stack.tensorflow_package
    stem = re.sub(r"-cu\d+$", "", name)
    if stem.startswith("nvidia-"):
        return next((one for one in base if re.sub(r"-cu\d+$", "", one) == stem), "")
    return ""


def _refused(
    spec: ImageSpec,
    stack: Stack,
    environment: Mapping[str, str],
    base: Mapping[str, Pin],
    requirement: str,
    reason: NoSolution,
) -> InputError:
    """What one requirement wants of the packages that TensorFlow brings."""
    held = {name: pin.version for name, pin in base.items()}
    try:
        alone = resolver.resolve([requirement], _platform(spec), environment, None, held)
    except NoSolution:
        alone = {}
    fixed = _fixed(stack, base)
    moves = [
        f"{name} {held[name]} to {alone[name].version}"
        for name in sorted(held, key=lambda name: (name not in fixed, name))
        if name in alone and alone[name].version != held[name]
    ]
    tensorflow = alone.get("tensorflow")
    if tensorflow and "tensorflow" not in held and tensorflow.version != stack.tensorflow:
        moves.insert(0, f"{stack.tensorflow_package} {stack.tensorflow} to {tensorflow.version}")
    what = f"would move {', '.join(moves)}" if moves else f"cannot be met: {reason}"
    return InputError(
        f'{_where(spec, requirement)}: "{requirement}" {what}',
        f"leave it out or loosen it: {stack.tensorflow_package} {stack.tensorflow} and what it was "
        f"tested with stay (builder explain {spec.name})"
        + ("; another CUDA library is image.yaml's key cuda" if "nvidia-" in what else ""),
    )


def _where(spec: ImageSpec, requirement: str) -> str:
    """File, line and field of one requirement."""
    place = catalogue.where(spec, "requirements")
    for where, text in spec.program.requirements:
        if text == requirement:
            return where
    with contextlib.suppress(OSError):
        for number, line in enumerate(spec.source.read_text(encoding="utf-8").splitlines(), 1):
            if requirement in line:
                return f"{catalogue.shown(spec.source)}:{number}: requirements"
    return place


# --- Debian --------------------------------------------------------------------------------------


def _root(
    root: Path, spec: ImageSpec, held: Iterable[Lock], upgrade: bool, say: Callable[[str], None]
) -> Root:
    """The OS root of the spec's Debian suite: the one that other targets have, else a new one."""
    suite = OWN_PYTHON[spec.python]
    for lock in held:
        if lock.root and lock.root.suite == suite:
            return lock.root
    reference = f"debian:{suite}-slim"
    digest = resolve_digest(reference)
    today = datetime.now(UTC).date().isoformat()
    open_ = "" if digest else f"no reachable registry could resolve {reference} on {today}"
    if open_:
        say(f"{open_}: the root is made from Debian's packages")
    path = os_lock(root, suite)
    if path.is_file() and not upgrade:
        packages = _read_versions(path.read_text(encoding="utf-8"))
    else:
        from builder.lock import osroot

        packages = osroot.resolve(suite)
    return Root(suite, reference, digest, open_, packages)


def _apt(spec: ImageSpec, os_root: Root, held: Iterable[Lock]) -> dict[str, dict[str, str]]:
    """The Debian packages of each apt layer; a version that is locked already is kept."""
    from builder.lock.debian import Packages

    known = {
        name: version
        for lock in reversed([one for one in held if one.root == os_root])
        for versions in lock.apt.values()
        for name, version in versions.items()
    }
    debian = Packages(os_root.suite)
    there = dict(os_root.packages)
    found = {}
    for file, names in ((APT, PYTHON_PACKAGES), (APT_EXTRA, spec.apt)):
        closure = debian.closure(names, installed=there) if names else {}
        new = {name: version for name, version in closure.items() if there.get(name) != version}
        there |= new
        if new:
            found[file] = {name: known.get(name, version) for name, version in new.items()}
    return found


@cache
def resolve_digest(reference: str) -> str | None:
    """The digest of a public image, asked of its registry without a login.

    None where the registry cannot be reached or does not have the image. An answer is waited for
    DIGEST_TIMEOUT seconds.
    """
    from builder import registry

    where = registry.parse(reference)
    client = registry.Registry(
        where.host, Retry(attempts=1), anonymous=True, timeout=DIGEST_TIMEOUT
    )
    try:
        with client:
            digest = client.head(where.repository, where.target)
    except FactoryError:
        return None
    return digest if re.fullmatch(r"sha256:[0-9a-f]{64}", digest or "") else None


# --- files ---------------------------------------------------------------------------------------


def _write(root: Path, made: Lock) -> None:
    """Every file, image.lock last: until it is there, the checksums tell an interrupted run."""
    folder = root / catalogue.IMAGES / made.target
    texts = {folder / name: text for name, text in made.files.items()}
    if made.root:
        header = f"# Debian packages of the OS root, shared by all targets.\n# {_WRITTEN}\n"
        texts[os_lock(root, made.root.suite)] = header + _versions(made.root.packages)
    texts[folder / FILE] = made.document
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
            files.write(path, text)
    for name in (*WHEELS, APT, APT_EXTRA):
        if name not in made.files:
            (folder / name).unlink(missing_ok=True)


def _versions(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}={version}\n" for name, version in sorted(versions.items()))


def _read_versions(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: version for name, _, version in (line.partition("=") for line in lines)}


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _checksum(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
