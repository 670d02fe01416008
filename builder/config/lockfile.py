"""The lock of an image, and its committed files: images/<target>/*.lock.

There is one file for each layer, by how often the layer changes. A changed requirement of a user
then does not fetch TensorFlow again:

    ../os-<suite>.lock   the packages of the rootfs, shared by all targets of a Debian suite
    apt.lock             what Python needs on top of that root
    cuda.lock            NVIDIA's libraries
    <framework>.lock     TensorFlow, or the framework that image.yaml names, and all it needs
    extra.lock           what the requirements of image.yaml and of the trainer add
    apt-extra.lock       what image.yaml's apt packages add
    image.lock           what the others were made from, and their checksums
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.config import debian_packages, image_yaml, pins
from builder.config.debian_packages import DebianPackage
from builder.config.pins import Pin
from builder.core import files
from builder.core.errors import InputError
from builder.facts import frameworks

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack

FILE = "image.lock"
APT, CUDA, EXTRA, APT_EXTRA = "apt.lock", "cuda.lock", "extra.lock", "apt-extra.lock"

CONFIGURATION = ("accelerator", "release", "python", "base", "apt", "requirements", "cuda")
"""The fields of image.yaml that decide what is locked; `release` bears the framework's name."""

FILES = (CUDA, *(f"{name}.lock" for name in frameworks.OWN), EXTRA, APT, APT_EXTRA)
"""Every file that a lock may have; one that it does not list belongs to no lock."""

PROGRAM_REQUIREMENTS = "trainer_requirements"
"""The key of a lock's configuration for the requirements.txt of the program, where it has one."""

_SCHEMA = 3
_HEADERS = {
    CUDA: "NVIDIA's libraries.",
    EXTRA: "What the requirements of image.yaml and of the trainer add.",
    APT: "Debian packages that Python needs on top of the OS root.",
    APT_EXTRA: "Debian packages that image.yaml's `apt` adds.",
}
_WRITTEN = "Written by `builder lock`: change image.yaml, not this file."


@dataclass(frozen=True)
class LockedRootfs:
    """The rootfs: Debian's required packages of a suite, and apt."""

    suite: str
    packages: tuple[DebianPackage, ...] = ()

    @property
    def packages_checksum(self) -> str:
        return debian_packages.checksum(self.packages)

    @property
    def origin(self) -> str:
        """A few words for a person: what the root is made from."""
        return f"Debian {self.suite}, {len(self.packages)} packages"


@dataclass(frozen=True)
class Moved:
    """A library that a user's requirement moves to another version, within TensorFlow's range."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Lock:
    """All that decides an image's content, besides the trainer and the template."""

    target: str
    configuration: Mapping[str, Any]
    """The fields of image.yaml that it was made from."""
    framework: str
    release: str
    python: str
    cuda: str | None
    cudnn: str | None
    rootfs: LockedRootfs | None
    """None on a published base."""
    apt: Mapping[str, tuple[DebianPackage, ...]]
    """File name -> its Debian packages. A file that would be empty is left out."""
    wheels: Mapping[str, tuple[Pin, ...]]
    """File name -> the pins of that layer."""
    moved: tuple[Moved, ...]

    @property
    def wheel_files(self) -> tuple[str, str, str]:
        """The files of Python packages, in the order of their layers."""
        return (CUDA, frameworks.of(self.framework).lock_file, EXTRA)

    @property
    def packages(self) -> dict[str, Pin]:
        return {pin.name: pin for wheels in self.wheels.values() for pin in wheels}

    @property
    def files(self) -> dict[str, str]:
        """File name -> text of what the layers install."""
        known = frameworks.of(self.framework)
        headers = {**_HEADERS, known.lock_file: f"{known.title} and all it needs."}
        texts = {
            name: f"# {headers[name]}\n# {_WRITTEN}\n{debian_packages.dump(packages)}"
            for name, packages in self.apt.items()
        }
        for name, wheels in self.wheels.items():
            texts[name] = pins.dump(wheels, f"{headers[name]}\n{_WRITTEN}")
        return texts

    @property
    def document(self) -> str:
        root = self.rootfs and {
            "suite": self.rootfs.suite,
            "packages": self.rootfs.packages_checksum,
        }
        content = {
            "written_by": _WRITTEN,
            "schema": _SCHEMA,
            "configuration": dict(self.configuration),
            **({"framework": self.framework} if self.framework != frameworks.DEFAULT else {}),
            self.framework: self.release,
            "python": self.python,
            "cuda": self.cuda,
            "cudnn": self.cudnn,
            "root": root,
            "moved": [asdict(library) for library in self.moved],
            "files": {name: checksum(text) for name, text in sorted(self.files.items())},
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def configuration(spec: ImageSpec) -> dict[str, Any]:
    """Return the fields of image.yaml that a lock depends on, with defaults filled in; `apt` with
    what the framework asks for."""
    values = spec.model_dump(mode="json", include=set(CONFIGURATION))
    names = (spec.framework if name == "release" else name for name in CONFIGURATION)
    values[spec.framework] = values["release"]
    values["apt"] = [*frameworks.of(spec.framework).apt, *values["apt"]]
    configured = {name: values[name] for name in names}
    if spec.program_folder.requirements:
        configured[PROGRAM_REQUIREMENTS] = [text for _, text in spec.program_folder.requirements]
    return configured


def read(root: Path, target: str) -> Lock:
    """Return the committed lock of a target. Raises InputError where it is missing or damaged."""
    folder = root / image_yaml.IMAGES / target
    with _explained(root, target):
        content = files.parsed(json.loads, (folder / FILE).read_text(encoding="utf-8"))
        texts = {name: (folder / name).read_text(encoding="utf-8") for name in content["files"]}
    return parse(root, target, content, texts)


def parse(root: Path, target: str, content: Any, texts: Mapping[str, str]) -> Lock:
    """Return the lock in these files. Raises InputError where they are damaged.

    content: the JSON of image.lock. texts: file name -> text of every file that it lists.
    """
    with _explained(root, target):
        if content["schema"] != _SCHEMA:
            raise KeyError("schema")
        base, framework = content["root"], content.get("framework", frameworks.DEFAULT)
        rootfs = base and LockedRootfs(
            base["suite"],
            debian_packages.parse(os_lock(root, base["suite"]).read_text(encoding="utf-8")),
        )
        wheels = (CUDA, frameworks.of(framework).lock_file, EXTRA)
        return Lock(
            target=target,
            configuration=content["configuration"],
            framework=framework,
            release=content[framework],
            python=content["python"],
            cuda=content["cuda"],
            cudnn=content["cudnn"],
            rootfs=rootfs,
            apt={
                name: debian_packages.parse(texts[name])
                for name in (APT, APT_EXTRA)
                if name in texts
            },
            wheels={name: pins.parse(texts[name]) for name in wheels if name in texts},
            moved=tuple(Moved(**library) for library in content["moved"]),
        )


@contextlib.contextmanager
def _explained(root: Path, target: str) -> Iterator[None]:
    """Turn what a missing or damaged file raises into InputError."""
    command, path = f"builder lock {target}", root / image_yaml.IMAGES / target / FILE
    try:
        yield
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).relative_to(root)
        raise InputError(
            f"{missing}: is missing: {target} is not locked", f"run {command}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{image_yaml.shown(path)}: is not what `builder lock` writes ({error})",
            f"delete it and run {command}, or take it back from git",
        ) from None


def os_lock(root: Path, suite: str) -> Path:
    return root / image_yaml.IMAGES / f"os-{suite}.lock"


def write(root: Path, made: Lock) -> None:
    """Write every file of a lock that differs, and delete those that it does not have.

    image.lock comes last: the old one's checksums do not match the new files, so that an
    interrupted run is noticed.
    """
    folder = root / image_yaml.IMAGES / made.target
    texts = {folder / name: text for name, text in made.files.items()}
    if made.rootfs:
        write_rootfs(root, made.rootfs)
    texts[folder / FILE] = made.document
    for path, text in texts.items():
        _write(path, text)
    for name in FILES:
        if name not in made.files:
            (folder / name).unlink(missing_ok=True)


def write_rootfs(root: Path, made: LockedRootfs) -> None:
    header = f"# Debian packages of the OS root, shared by all targets.\n# {_WRITTEN}\n"
    _write(os_lock(root, made.suite), header + debian_packages.dump(made.packages))


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
        files.write(path, text)


def checksum(text: str) -> str:
    """Return `sha256:` and the hash of a text, as image.lock holds it."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


# --- whether a committed lock still fits ----------------------------------------------------------


@dataclass(frozen=True)
class Staleness:
    """A committed file that no longer fits, and why; `fix` names the command that mends it."""

    file: str
    why: str
    fix: str


def check(root: Path, spec: ImageSpec, stack: Stack) -> tuple[Lock | None, tuple[Staleness, ...]]:
    """Return a target's lock, and every file of it that is stale. Nothing is resolved or fetched.

    The lock is None where a file is missing or differs from its checksum.
    """
    folder, lock = root / image_yaml.IMAGES / spec.name, None

    def stale(name: str, why: str) -> Staleness:
        return Staleness(image_yaml.shown(folder / name), why, f"run builder lock {spec.name}")

    try:
        content = files.parsed(json.loads, (folder / FILE).read_text(encoding="utf-8"))
        texts = {
            name: (folder / name).read_text(encoding="utf-8", errors="replace")
            for name in content["files"]
            if (folder / name).is_file()
        }
        changed = _changed_files(folder, content["files"], texts)
        outdated = [*_changed_fields(spec, content["configuration"]), *changed]
        lock = None if changed else parse(root, spec.name, content, texts)
    except FileNotFoundError:
        return None, (stale(FILE, "is missing: never locked"),)
    except (ValueError, KeyError, TypeError, InputError) as error:
        why = getattr(error, "message", None) or f"is not what `builder lock` writes ({error})"
        return None, (stale(FILE, why),)
    if lock and not outdated:
        if lock.python != stack.python:
            why = f"the tables choose Python {stack.python}, locked is {lock.python}"
            outdated.append((FILE, why))
        outdated += _moved_tables(lock, stack)
    if lock and lock.rootfs and lock.rootfs.packages_checksum != content["root"]["packages"]:
        outdated.append((FILE, f"{os_lock(root, lock.rootfs.suite).name} has changed since"))
    return lock, tuple(stale(*each) for each in outdated)


def _changed_fields(spec: ImageSpec, locked: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the fields of the configuration that differ, with both values."""

    def text(value: object) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    now, changed = configuration(spec), []
    for name in {**now, **locked}:
        if locked.get(name) != now.get(name):
            requirements = f"{spec.program.folder}/{image_yaml.REQUIREMENTS}"
            key = requirements if name == PROGRAM_REQUIREMENTS else f"image.yaml's {name}"
            if name == "apt" and (framework := frameworks.of(spec.framework)).apt:
                key += f", with what {framework.title} needs,"
            why = f"{key} is {text(now.get(name))}, locked is {text(locked.get(name))}"
            changed.append((FILE, why))
    return changed


def _changed_files(
    folder: Path, files: Mapping[str, str], texts: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the files that differ from their checksums, and why.

    texts: of those that are there.
    """
    changed = []
    for name, known in files.items():
        if name not in texts:
            changed.append((name, "is missing"))
        elif checksum(texts[name]) != known:
            changed.append((name, "was edited: it is not what was locked"))
    stray = (name for name in FILES if name not in files and (folder / name).exists())
    return [*changed, *((name, "belongs to no lock") for name in stray)]


def _moved_tables(lock: Lock, stack: Stack) -> list[tuple[str, str]]:
    """Return the pins that the compatibility tables no longer choose, by file, and why."""
    packages, own = lock.packages, lock.rootfs is not None
    file = {pin.name: name for name, wheels in lock.wheels.items() for pin in wheels}
    wanted = {**stack.constraints, stack.distribution: stack.release} if own else {}
    moved = []
    for name, version in wanted.items():
        locked = packages[name].version if name in packages else "none"
        if locked != version:
            why = f"the tables choose {name} {version}, locked is {locked}"
            moved.append((file.get(name, lock.wheel_files[1]), why))
    return moved
