"""What the wheels of a lock carry, compared with the tables that versions are chosen by.

images/device-code.lock keeps what the libraries of each wheel carry, by the wheel's checksum.
`builder lock --verify-device-code` reads it once; it is committed, and true as long as the checksum
is. So `builder lock` and `builder check` judge a lock by its wheels without a download. The file
keeps inventories and no verdicts: those follow today's rule (builder/devicecode/pruning/rule.py).
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import files, network
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.devicecode.inventory import Group, Library
from builder.devicecode.pruning.fatbin import COMPILED, Target
from builder.devicecode.verdict import Audit, Support, carries
from builder.devicecode.verdict import audit as read_paths
from builder.lock import model, pins, python, requirements
from builder.prove.audit import passes
from builder.spec import catalogue, compatibility
from builder.spec.stack import OWN_PYTHON
from builder.tensorflow import releases
from builder.tensorflow.releases import Tables

if TYPE_CHECKING:
    from builder.core.network import BuildNetwork
    from builder.lock.model import Lock
    from builder.lock.pins import Pin
    from builder.spec.catalogue import ImageSpec
    from builder.spec.stack import Stack

FILE = "device-code.lock"
COMMAND = "builder lock --verify-device-code"

_SCHEMA = 1
_WRITTEN = f"Written by `{COMMAND}`: what the locked wheels carry, by their checksums."


@dataclass(frozen=True)
class Wheel:
    """What was read of one wheel: its libraries with device code, at their installed paths.

    sha256: in hex, as in locks. No libraries means that the wheel was read and has none.
    """

    name: str
    version: str
    sha256: str
    libraries: tuple[Library, ...]


Read = Mapping[str, Wheel]
"""The wheels that were read, by their sha256."""


# --- images/device-code.lock ----------------------------------------------------------------------


def read(root: Path) -> Read:
    """The wheels of the committed file; none if there is no file.

    Raises InputError for a file of another form.
    """
    path = root / catalogue.IMAGES / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != _SCHEMA:
            raise KeyError("schema")
        wheels = [_wheel(sha256, value) for sha256, value in content["wheels"].items()]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{catalogue.shown(path)}: is not what {COMMAND} writes ({error})",
            f"take it back from git, or delete it and run {COMMAND}",
        ) from None
    return {wheel.sha256: wheel for wheel in wheels}


def write(root: Path, wheels: Read) -> bool:
    """Write the file, sorted by name. Returns whether anything in it changed."""
    path = root / catalogue.IMAGES / FILE
    lines = [
        f" {json.dumps(wheel.sha256)}: {_text(wheel)}"
        for wheel in sorted(wheels.values(), key=lambda wheel: (wheel.name, wheel.version))
    ]
    head = f'{{"written_by": {json.dumps(_WRITTEN)},\n"schema": {_SCHEMA},\n"wheels": {{\n'
    text = head + ",\n".join(lines) + "\n}}\n"
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        return False
    files.write(path, text)
    return True


def _text(wheel: Wheel) -> str:
    """A library a line, so that a diff shows which one changed."""
    libraries = [
        json.dumps(
            {
                "path": library.path,
                "size": library.size,
                **({"broken": library.broken} if library.broken else {}),
                **({"doubt": library.doubt} if library.doubt else {}),
                **({"stubs": sorted(library.stub_sections)} if library.stub_sections else {}),
                "groups": [
                    [group.section, group.containers, [list(t) for t in group.targets],
                     group.stored, group.code]
                    for group in library.groups
                ],
            },
            separators=(",", ":"),
        )
        for library in wheel.libraries
    ]  # fmt: skip
    head = json.dumps({"name": wheel.name, "version": wheel.version})[:-1]
    inner = "".join(f"\n   {line}," for line in libraries).removesuffix(",")
    return f'{head}, "libraries": [{inner}]}}'


def _wheel(sha256: str, value: Mapping[str, Any]) -> Wheel:
    name, version = str(value["name"]), str(value["version"])
    libraries = tuple(
        Library(
            path=str(one["path"]),
            size=int(one["size"]),
            groups=tuple(
                Group(
                    str(section),
                    tuple(Target(int(k), int(a), str(s)) for k, a, s in targets),
                    int(containers),
                    tuple(map(int, stored)),
                    tuple(map(int, code)),
                )
                for section, containers, targets, stored, code in one["groups"]
            ),
            package=name,
            version=version,
            broken=str(one.get("broken", "")),
            doubt=str(one.get("doubt", "")),
            stub_sections=frozenset(one.get("stubs", ())),
        )
        for one in value["libraries"]
    )
    return Wheel(name, version, sha256, libraries)


# --- judging --------------------------------------------------------------------------------------


def spoken_of(lock: Lock) -> tuple[Pin, ...]:
    """The wheels that the tables have facts about: those of TensorFlow's and NVIDIA's layers.

    What image.yaml's requirements add is judged in the image, by its receipt.
    """
    return tuple(
        pin for file in (model.CUDA, model.TENSORFLOW) for pin in lock.wheels.get(file, ())
    )


def unread(lock: Lock, wheels: Read) -> tuple[Pin, ...]:
    """Those wheels of a lock that the tables have facts about and that were never read."""
    return tuple(pin for pin in spoken_of(lock) if pin.sha256 not in wheels)


def of_known(lock: Lock, wheels: Read) -> Audit:
    """Every library with device code in those wheels of a lock that were read."""
    return Audit(
        tuple(
            library
            for pin in lock.packages.values()
            if pin.sha256 in wheels
            for library in wheels[pin.sha256].libraries
        )
    )


def check(root: Path, targets: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Target -> what the tables, its lock and the wheels that were read say differently.

    Downloads nothing. Looks at locked GPU targets with a base of their own. Raises InputError.
    """
    wheels, tables = read(root), releases.tables()
    holes: dict[str, tuple[str, ...]] = {}
    for target in targets:
        spec = catalogue.load(root, target)
        stack = compatibility.resolve(spec)
        if not _judged(spec, stack) or not (root / catalogue.IMAGES / target / model.FILE).exists():
            continue
        held = model.read(root, target)
        if missing := unread(held, wheels):
            names = ", ".join(f"{pin.name} {pin.version}" for pin in missing[:3])
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            holes[target] = (f"what {names}{more} carries was never read: run {COMMAND} {target}",)
        else:
            holes[target] = contradictions(of_known(held, wheels), stack, tables)
    return holes


def require(root: Path, stack: Stack, lock: Lock) -> None:
    """Refuse a lock with a wheel that is known not to run on its GPU, before it is written.

    Raises InputError that names the library and what would run. Wheels that were never read pass
    here: `builder check` asks for them, and the image's receipt needs them to be right.
    """
    if not _judged(stack.spec, stack):
        return
    verdict = of_known(lock, read(root)).verdict(stack.compute_capability or "")
    if passes(verdict, stack.spec.allow_ptx) or verdict.status == Support.NO_DEVICE_CODE:
        return
    spoiler = verdict.spoiler
    assert spoiler
    raise InputError(
        f"{catalogue.where(stack.spec, 'cuda' if stack.spec.cuda else 'tensorflow')}: "
        f"{spoiler.library.origin} does not run on {stack.accelerator.name}: {verdict}",
        f"take {verdict.instead}" if verdict.instead else f"see builder explain {stack.spec.name}",
    )


def _judged(spec: ImageSpec, stack: Stack) -> bool:
    return stack.accelerator.kind == "gpu" and spec.has_own_base


# --- reading --------------------------------------------------------------------------------------


def verify(
    root: Path, targets: Sequence[str], on_event: OnEvent = ignore
) -> dict[str, tuple[str, ...]]:
    """Read the wheels of locks, write what they carry, and say where the tables disagree.

    Returns target -> what disagrees, for GPU targets with a base of their own. So does a committed
    inventory that is not what the wheel carries. Wheels that several targets lock are read
    once; wheels that no lock names any more are dropped from the file. Raises InputError,
    OutsideError.
    """
    host, tables = network.discover(), releases.tables()
    known, fresh = read(root), dict[str, Wheel]()
    holes: dict[str, tuple[str, ...]] = {}
    for target in targets:
        spec = catalogue.load(root, target)
        stack = compatibility.resolve(spec)
        if not _judged(spec, stack):
            continue
        held = model.read(root, target)
        if any(pin.sha256 not in fresh for pin in held.packages.values()):
            glibc = requirements.GLIBC[OWN_PYTHON[spec.python]]
            found = of_lock(held, host, glibc, on_event)
            fresh |= by_wheel(held.packages.values(), found)
        wrong = [
            f"{FILE} does not say what {pin.name} {pin.version} carries"
            for pin in held.packages.values()
            if pin.sha256 in known and known[pin.sha256] != fresh[pin.sha256]
        ]
        holes[target] = (*wrong, *contradictions(of_known(held, fresh), stack, tables))
    write(root, {sha256: one for sha256, one in known.items() if _named(root, sha256)} | fresh)
    return holes


def _named(root: Path, sha256: str) -> bool:
    """Whether any lock of the project names this wheel."""
    files = (root / catalogue.IMAGES).glob("*/*.lock")
    return any(f"sha256:{sha256}" in file.read_text(encoding="utf-8") for file in files)


def by_wheel(pins: Iterable[Pin], found: Audit) -> dict[str, Wheel]:
    """The libraries that were found, by the wheel that they come from."""
    return {
        pin.sha256: Wheel(
            pin.name,
            pin.version,
            pin.sha256,
            tuple(
                dataclasses.replace(library, version=pin.version, sha256="")
                for library in sorted(found.libraries, key=lambda library: library.path)
                if library.package == pin.name
                and (library.groups or library.broken or library.doubt)
            ),
        )
        for pin in pins
    }


def of_lock(lock: Lock, host: BuildNetwork, glibc: int, on_event: OnEvent = ignore) -> Audit:
    """Every library in the wheels of a lock, which are installed together into a temporary folder.

    Downloads gigabytes if uv's cache does not hold them yet. Raises OutsideError.
    """
    pinned = pins.dump(lock.packages.values(), lock.target)
    home = files.cache_home()
    home.mkdir(parents=True, exist_ok=True)
    reading = step(f"{lock.target}: read {len(lock.packages)} wheels", on_event)
    with reading, tempfile.TemporaryDirectory(prefix="wheels-", dir=home) as scratch:
        requirements, site = Path(scratch, "requirements.txt"), Path(scratch, "site-packages")
        requirements.write_text(pinned)
        command = [python.uv_program(), "pip", "install", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--requirement", str(requirements), "--target", str(site)]
        command += ["--python", sys.executable, "--python-version", lock.python]
        command += ["--python-platform", f"x86_64-manylinux_2_{glibc}", "--only-binary", ":all:"]
        done = subprocess.run(
            command, env=host.host_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise OutsideError(
                f"{lock.target}: the wheels of its lock cannot be installed: {said.strip()}",
                "check that the package index can be reached and the disk has 8 GB free",
            )
        found = read_paths([site])
    below = str(site) + "/"
    return Audit(
        tuple(
            dataclasses.replace(library, path=library.path.removeprefix(below))
            for library in found.libraries
        )
    )


def contradictions(found: Audit, stack: Stack, tables: Tables) -> tuple[str, ...]:
    """Where the compatibility tables and the wheels say different things, a line each."""
    problems = []
    name = stack.accelerator.name
    verdict = found.verdict(stack.compute_capability or "")
    if not passes(verdict, stack.spec.allow_ptx):
        problems.append(f"builder/facts takes these versions for {name}, the wheels say: {verdict}")
    release = next(r for r in tables.releases if stack.tensorflow in r.versions)
    said = set()
    for one in release.capabilities:
        kind, _, number = one.partition("_")
        said |= {f"sm_{number}", one} if kind == "compute" else {one}
    own = [library for library in _with_code(found) if library.package == "tensorflow"]
    problems += _differences(
        f"tensorflow.yaml: TensorFlow {stack.tensorflow}", said, own, union=True
    )
    cudnn = [library for library in _with_code(found) if "cudnn" in library.package]
    row = None
    for candidate in tables.cudnn:
        if cudnn and _version(candidate.since) <= _version(cudnn[0].version):
            row = candidate
    if cudnn and row is None:
        problems.append(f"cuda.yaml: no row knows cuDNN {cudnn[0].version}")
    elif row is not None:
        said = {f"sm_{one.replace('.', '')}" for one in row.capabilities}
        problems += _differences(f"cuda.yaml: cuDNN {cudnn[0].version}", said, cudnn, union=False)
    return tuple(problems)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _with_code(found: Audit) -> list[Library]:
    """The libraries with kernels that the driver chooses from."""
    return [
        library
        for library in found.libraries
        if COMPILED in {group.section for group in library.groups} - library.stub_sections
    ]


def _differences(where: str, said: set[str], libraries: list[Library], union: bool) -> list[str]:
    """The targets that a table names and the libraries lack, and those that the table lacks.

    union: the table names what any of the libraries has, PTX included. Otherwise it names the
    machine code that every one of them has.
    """
    if not libraries:
        return [f"{where}: the wheels hold no library of it with device code"]
    sets = [set(carries(library, COMPILED)) for library in libraries]
    if union:
        has = set().union(*sets)
    else:
        has = {one for one in set.intersection(*sets) if one.startswith("sm_")}
    problems = []
    if lacking := sorted(said - has):
        which = [library.name for library, held in zip(libraries, sets, strict=True) if said - held]
        problems.append(f"{where} is said to carry {', '.join(lacking)}: not in {which[0]}")
    if untold := sorted(has - said):
        problems.append(f"{where} carries {', '.join(untold)}, of which the table says nothing")
    return problems
