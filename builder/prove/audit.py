"""Which libraries a target, an image, a folder or wheels hold, and whether a GPU runs them.

What is read and how it is judged is builder/devicecode; here is where the files come from:

* an image on the engine: its own Python reads them in a container without network, in a second.
  One that has no Python (3.9 or newer) is streamed out of the engine, which takes half a minute;
* an image in a registry: its layers are streamed, and what each one holds is kept by its digest, so
  that a layer is read once. Nothing is pulled, nothing of it runs.

The wheels of a lock are wheels.py's.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from builder import devicecode, registry
from builder.core import files
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, StepLog, ignore, step
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.devicecode import (
    Audit,
    ComputeCapability,
    Group,
    Library,
    Status,
    Verdict,
    as_dict,
    compute_capability,
    from_files,
)
from builder.devicecode import audit as read_paths
from builder.devicecode.pruning.fatbin import Target
from builder.engine import refusals
from builder.facts import accelerators
from builder.prove.receipts import Check, Problem
from builder.spec import catalogue

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from builder.engine import Engine
    from builder.spec.compatibility import Stack

CHECK = "device-code"
CHECK_VERSION = 1

_PLACE = "device-code"
_NOT_FILES = ("dev", "proc", "run", "sys")
_READ = """
import sys
sys.dont_write_bytecode = True
reader, root, *left_out = sys.argv[1:]
sys.path.insert(0, reader)
import dataclasses, json
from pathlib import Path
from devicecode import from_folder
for top in sorted(Path(root).iterdir()):
    if top.name not in left_out and top.is_dir() and not top.is_symlink():
        for library in from_folder(top):
            print(json.dumps(dataclasses.asdict(library), default=sorted))
"""
"""Run inside an image: a Library a line, as JSON."""


@dataclass(frozen=True)
class Device:
    """A GPU by the name that was asked for."""

    name: str
    capability: ComputeCapability


@dataclass(frozen=True)
class Audited:
    """One source, and the GPUs to judge it for.

    wanted: the source is refused where one of `devices` does not run it; allow_ptx: whether kernels
    that the GPU's machine has to compile first count as running; note: why nothing could be read.
    """

    name: str
    found: Audit
    devices: tuple[Device, ...]
    wanted: bool = False
    allow_ptx: bool = True
    note: str = ""

    @property
    def verdicts(self) -> tuple[tuple[Device, Verdict], ...]:
        return tuple((device, self.found.verdict(device.capability)) for device in self.devices)

    @property
    def refused(self) -> tuple[tuple[Device, Verdict], ...]:
        """The GPUs that were asked for and do not run it."""
        return tuple(
            (device, verdict)
            for device, verdict in self.verdicts
            if self.wanted and not passes(verdict, self.allow_ptx)
        )

    def as_dict(self) -> dict[str, object]:
        """JSON-ready data; `accelerators` stand in the order of `verdicts`."""
        capabilities = [device.capability for device in self.devices]
        return {
            "source": self.name,
            "accelerators": [device.name for device in self.devices],
            "refused": [device.name for device, _ in self.refused],
            **as_dict(self.found, capabilities),
        }


def passes(verdict: Verdict, allow_ptx: bool) -> bool:
    """Whether a GPU runs all of it, without compiling for minutes first unless that is allowed."""
    return verdict.runs and (allow_ptx or verdict.status != Status.PTX)


# --- what the command line names ------------------------------------------------------------------


def audit(
    root: Path | None,
    settings: Settings,
    engine: Callable[[], Engine],
    names: Sequence[str],
    everything: bool = False,
    gpus: Sequence[str] = (),
    on_event: OnEvent = ignore,
) -> tuple[Audited, ...]:
    """Read and judge targets, images, and (all together, as one image would hold them) paths.

    root: of the project, None outside of one; engine: connects, called where one is needed. A
    target is judged for its own accelerator, anything else for every GPU that is known, unless
    `gpus` names some. `everything`: the project's GPU targets, too; those that the engine holds no
    image of are noted. Raises InputError for a name that is nothing, and where nothing could be
    read; OutsideError.
    """
    targets = catalogue.targets(root) if root else ()
    asked = tuple(_device(name) for name in gpus)
    if everything:
        kinds = {name: _accelerator(root, name).kind for name in targets}
        names = (*names, *(name for name in targets if kinds[name] == "gpu"))
    names = tuple(dict.fromkeys(names))
    if not names:
        raise InputError(
            "nothing to audit is named",
            "name a target, an image, a folder or wheels, or write --all",
        )
    paths = [Path(name) for name in names if name not in targets and Path(name).exists()]
    found = []
    if paths:
        with step("audit " + ", ".join(map(str, paths[:3])), on_event):
            every = read_paths(paths)
        what = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        found.append(Audited(what, every, asked or _known(), bool(asked)))
    for name in names:
        if name in targets:
            assert root is not None
            try:
                found.append(_of_target(root, engine, name, asked, on_event))
            except InputError as error:
                if not everything:
                    raise
                found.append(Audited(name, Audit(()), (), note=f"not read ({error.fix})"))
        elif not Path(name).exists():
            found.append(_of_image(settings, engine, name, asked, on_event, targets))
    if all(one.note for one in found):  # of --all: no success where nothing was looked at
        raise InputError(
            f"the engine holds no image of a GPU target ({', '.join(one.name for one in found)}): "
            "nothing was audited",
            f"run builder build {found[0].name}, or name an image in a registry",
        )
    return tuple(found)


def _of_target(
    root: Path,
    engine: Callable[[], Engine],
    target: str,
    asked: tuple[Device, ...],
    on_event: OnEvent,
) -> Audited:
    spec = catalogue.load(root, target)
    accelerator = accelerators.find(spec.accelerator)
    if not asked and not accelerator.compute_capability:
        raise InputError(
            f"{target} is for {accelerator.name}: there is no GPU to audit it for",
            "name one with --gpu, or audit another target",
        )
    there = engine()
    image = there.image(f"{LOCAL_REPOSITORY}:{target}")
    if image is None:
        raise InputError(
            f"{target}: the engine holds no image of it to read", f"run builder build {target}"
        )
    with step(f"audit {target}", on_event):
        every = of_image(there.client, image.image_id)
    return Audited(target, every, asked or (_device(spec.accelerator),), True, spec.allow_ptx)


def _of_image(
    settings: Settings,
    engine: Callable[[], Engine],
    name: str,
    asked: tuple[Device, ...],
    on_event: OnEvent,
    targets: Sequence[str],
) -> Audited:
    try:
        there: Engine | None = engine()
    except OutsideError:  # a registry needs none
        there = None
    image = there.image(name) if there else None
    with step(f"audit {name}", on_event):
        if there and image:
            every = of_image(there.client, image.image_id)
        elif "/" in name or settings.registry:
            short = "/" not in name and settings.registry
            place = f"{settings.registry}:{name}" if short else name
            every = of_registry(registry.parse(place), on_layer=_told(f"audit {name}", on_event))
        else:
            raise InputError(
                f"{name}: no target, no file or folder, and no image on the engine",
                f"targets are {', '.join(targets) or 'none'}; write HOST/REPOSITORY:TAG for an "
                "image in a registry",
            )
    return Audited(name, every, asked or _known(), bool(asked))


def _told(step: str, on_event: OnEvent) -> Callable[[registry.Descriptor, bool], None]:
    def tell(layer: registry.Descriptor, known: bool) -> None:
        what = "read before" if known else f"{layer.size / 1e6:,.1f} MB"
        on_event(StepLog(step, f"layer {layer.digest[7:19]}: {what}"))

    return tell


def _accelerator(root: Path | None, target: str) -> accelerators.Accelerator:
    assert root is not None
    return accelerators.find(catalogue.load(root, target).accelerator)


def _device(name: str) -> Device:
    """A GPU by name (v100) or compute capability (7.0). Raises InputError."""
    if re.fullmatch(r"\d+\.\d", name):
        return Device(name, compute_capability(name))
    known = accelerators.find(name)
    if not known.compute_capability:
        raise InputError(f"{known.name} is no GPU", "name a GPU, for example --gpu V100")
    return Device(known.name, compute_capability(known.compute_capability))


def _known() -> tuple[Device, ...]:
    """One GPU of each compute capability that images are made for."""
    first: dict[str, Device] = {}
    for one in accelerators.accelerators().values():
        if one.compute_capability and not one.refused:
            first.setdefault(one.compute_capability, _device(one.name))
    return tuple(first.values())


# --- an image on the engine -----------------------------------------------------------------------


def of_image(client: docker.DockerClient, image: str) -> Audit:
    """Every library of an image that the engine holds, by reference or id. Raises OutsideError."""
    with refusals(image):
        config = client.images.get(image).attrs.get("Config") or {}
        first = (config.get("Entrypoint") or [""])[0]
        python = first if re.fullmatch(r"python[\d.]*", Path(first).name) else "python3"
        container = client.containers.create(
            image,
            ["-I", "-B", "-c", _READ, f"/{_PLACE}", "/", *_NOT_FILES],
            entrypoint=[python],
            user="0:0",  # files that only root may read are read, too
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=["DAC_READ_SEARCH"],
            security_opt=["no-new-privileges:true"],
            environment={"NVIDIA_VISIBLE_DEVICES": "void"},  # no driver's libraries beside its own
        )
        try:
            container.put_archive("/", _reader())
            return _by_its_python(container) or Audit(tuple(from_files(_files(container))))
        finally:
            container.remove(force=True, v=True)


def _reader() -> bytes:
    """The folder builder/devicecode as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in _program().items():
            entry = tarfile.TarInfo(f"{_PLACE}/devicecode/{name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@cache
def _program() -> Mapping[str, bytes]:
    """The files of builder/devicecode, by their name below it."""
    folder = Path(devicecode.__file__).parent
    files = sorted(folder.rglob("*.py"))
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def _by_its_python(container: Container) -> Audit | None:
    """What the image's own Python read; None where it has none that can."""
    from docker.errors import APIError

    try:
        container.start()
    except APIError as error:
        if "executable file not found" in str(error) or "no such file" in str(error):
            return None
        raise
    if container.wait()["StatusCode"] != 0:
        return None
    return _answer(container.logs(stdout=True, stderr=False).decode())


def _answer(text: str) -> Audit:
    """What _READ printed."""
    return Audit(tuple(_library(json.loads(line)) for line in text.splitlines()))


def _library(value: Mapping[str, Any]) -> Library:
    """A Library from the JSON of its fields."""
    groups = tuple(
        Group(
            group["section"],
            tuple(Target(*one) for one in group["targets"]),
            group["containers"],
            tuple(group["stored"]),
            tuple(group["code"]),
        )
        for group in value["groups"]
    )
    return Library(
        **{**value, "groups": groups, "stub_sections": frozenset(value["stub_sections"])}
    )


def _files(container: Container) -> Iterator[tuple[str, IO[bytes]]]:
    """Every file of a container that is not running, as its layers come to together."""
    chunks, _ = container.get_archive("/", chunk_size=1 << 20)
    with tarfile.open(fileobj=_Stream(chunks), mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file:
                yield f"/{member.name.removeprefix('./').lstrip('/')}", file


# --- an image in a registry -----------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """What one layer of an image brings, and what it hides of the layers below. Absolute paths.

    removed: by whiteouts, with all below them; emptied: folders of which the layers below show
    nothing; files: all that is no folder, which hides what had its name.
    """

    removed: frozenset[str]
    emptied: frozenset[str]
    files: frozenset[str]
    libraries: tuple[Library, ...]


def of_registry(
    reference: registry.Reference,
    kept_in: Path | None = None,
    on_layer: Callable[[registry.Descriptor, bool], None] = lambda *_: None,
) -> Audit:
    """Every library of an image (of its linux/amd64 part) in a registry, layer by layer.

    A layer does not say what it holds, so each one that this machine has not seen yet is streamed;
    what was found in it is kept by its digest in `kept_in` (by default the user's cache), and a
    layer that several images share is read once. on_layer: called with each layer, and whether it
    was known. Raises InputError where there is no such image, OutsideError, CheckFailed.
    """
    folder = kept_in or files.cache_home() / "layers"
    with registry.Registry(reference.host) as client:
        found = client.manifest(reference.repository, reference.target)
        if found and found.is_index:
            found = client.manifest(reference.repository, _amd64(reference, found.content))
        if found is None or "layers" not in found.content:
            raise InputError(f"{reference}: there is no such image", "correct its name")
        read = []
        for layer in map(registry.Descriptor.read, found.content["layers"]):
            known = _remembered(folder, layer.digest)
            on_layer(layer, known is not None)
            if known is None:
                try:
                    with client.stream(reference.repository, layer) as chunks:
                        known = read_layer(cast(IO[bytes], _Stream(chunks)))
                except (tarfile.TarError, EOFError, gzip.BadGzipFile, ValueError) as error:
                    raise CheckFailed(
                        f"{reference}: a layer cannot be unpacked: {error}", "push the image again"
                    ) from error
                _remember(folder, layer.digest, known)
            read.append(known)
    return Audit(merge(reversed(read)))


def _kept(folder: Path, digest: str) -> Path:
    """Where a layer's content is kept: by its digest, and by the program that read it."""
    return folder / f"{digest.removeprefix('sha256:')}-{_reader_version()}.json.gz"


@cache
def _reader_version() -> str:
    return files.hash_of(*(content.decode() for content in _program().values()))[:16]


def _remembered(folder: Path, digest: str) -> Layer | None:
    try:
        content = json.loads(gzip.decompress(_kept(folder, digest).read_bytes()))
        return Layer(
            frozenset(content["removed"]),
            frozenset(content["emptied"]),
            frozenset(content["files"]),
            tuple(map(_library, content["libraries"])),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None  # never read, or torn: read it (again)


def _remember(folder: Path, digest: str, layer: Layer) -> None:
    text = json.dumps(asdict(layer), default=sorted)
    files.write(_kept(folder, digest), gzip.compress(text.encode(), mtime=0))


def _amd64(reference: registry.Reference, index: Mapping[str, Any]) -> str:
    for one in index.get("manifests") or ():
        platform = one.get("platform") or {}
        if (platform.get("os"), platform.get("architecture")) == ("linux", "amd64"):
            return str(one["digest"])
    raise InputError(f"{reference}: has no image for linux/amd64", "audit another one")


def read_layer(packed: IO[bytes]) -> Layer:
    """The content of a layer in tar form, read to its very end: a digest covers all of it.

    Whiteouts as in the OCI image specification 1.1, "Layer filesystem changeset": `.wh.NAME` hides
    NAME in the layers below, `.wh..wh..opq` all that its folder holds there. Raises ValueError,
    EOFError, tarfile.TarError for what cannot be unpacked.
    """
    removed: set[str] = set()
    emptied: set[str] = set()
    files: set[str] = set()

    def members(archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
        for member in archive:
            path = PurePosixPath("/", member.name.removeprefix("./"))
            if path.name == ".wh..wh..opq":
                emptied.add(str(path.parent))
            elif path.name.startswith(".wh."):
                removed.add(str(path.parent / path.name.removeprefix(".wh.")))
            elif not member.isdir():
                files.add(str(path))
                file = archive.extractfile(member) if member.isfile() else None
                if file:
                    yield str(path), file

    with _tar(packed) as archive:
        libraries = tuple(from_files(members(archive)))
    while packed.read(1 << 20):
        pass
    return Layer(frozenset(removed), frozenset(emptied), frozenset(files), libraries)


def merge(layers: Iterable[Layer]) -> tuple[Library, ...]:
    """The libraries that a container would see, of layers topmost first."""
    hidden: set[str] = set()  # and all below them
    emptied: set[str] = set()  # all below them
    seen = []
    for layer in layers:
        for library in layer.libraries:
            above = set(map(str, PurePosixPath(library.path).parents))
            if library.path not in hidden and not above & hidden and not above & emptied:
                seen.append(library)
        hidden |= layer.removed | layer.files
        emptied |= layer.emptied
    return tuple(seen)


@contextlib.contextmanager
def _tar(packed: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """A layer as a tar archive, whatever it is compressed with."""
    import zstandard

    head = packed.read(4)
    whole: Any = _Stream(_again(head, packed))
    try:
        if head.startswith(b"\x1f\x8b"):
            whole = gzip.GzipFile(fileobj=whole)
        elif head == b"\x28\xb5\x2f\xfd":
            whole = zstandard.ZstdDecompressor().stream_reader(whole, read_across_frames=True)
        with tarfile.open(fileobj=whole, mode="r|") as archive:
            yield archive
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _again(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield head
    while block := rest.read(1 << 20):
        yield block


class _Stream(io.BufferedIOBase):
    """Chunks of bytes as a file that is read once, front to back."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = sys.maxsize if size is None or size < 0 else size
        parts: list[memoryview] = []
        while wanted:
            if not self._rest:
                chunk = next(self._chunks, None)
                if chunk is None:
                    break
                self._rest = memoryview(chunk)
                continue
            part, self._rest = self._rest[:wanted], self._rest[wanted:]
            wanted -= len(part)
            parts.append(part)
        return b"".join(parts)

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)


# --- what is left ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Package:
    """The libraries of one distribution ("" where none claims them), largest first. In bytes;
    `device_code` is what of `size` is kernels, as they are stored."""

    name: str
    libraries: tuple[Library, ...]

    @property
    def size(self) -> int:
        return sum(library.size for library in self.libraries)

    @property
    def device_code(self) -> int:
        return sum(map(device_code, self.libraries))


def device_code(library: Library) -> int:
    """Bytes of kernels in a library, as they are stored."""
    return sum(sum(group.stored) for group in library.groups)


def left(found: Audit) -> tuple[Package, ...]:
    """The libraries of an image by package, largest first."""
    packages: dict[str, list[Library]] = {}
    for library in found.libraries:
        owner = f"{library.package} {library.version}" if library.package else ""
        packages.setdefault(owner, []).append(library)
    made = [
        Package(name, tuple(sorted(libraries, key=lambda library: -library.size)))
        for name, libraries in packages.items()
    ]
    return tuple(sorted(made, key=lambda package: -package.size))


# --- the receipt ----------------------------------------------------------------------------------


def check(found: Audit, stack: Stack, target: str, seconds: float) -> Check:
    """What stands in a receipt: each library's status on the target's GPU, and what spoils it."""
    verdict = found.verdict(stack.compute_capability or "")
    problems = []
    if not passes(verdict, stack.spec.allow_ptx):
        slow = f" (about {verdict.ptx_seconds:.0f} s to compile at the first start)"
        names = stack.accelerator.name
        problems.append(
            Problem(
                message=f"on {names} ({verdict}{slow if verdict.status == Status.PTX else ''})",
                fix=_instead(verdict, target),
            )
        )
    return Check(
        name=CHECK,
        version=CHECK_VERSION,
        passed=not problems,
        seconds=round(seconds, 2),
        problems=tuple(problems),
        seen={
            "compute_capability": str(verdict.device),
            "status": str(verdict.status),
            "ptx_seconds": round(verdict.ptx_seconds, 1),
            "libraries": {
                finding.library.path: str(finding.status)
                for finding in verdict.findings
                if finding.status != Status.NO_DEVICE_CODE
            },
            "without_device_code": sum(
                finding.status == Status.NO_DEVICE_CODE for finding in verdict.findings
            ),
            "bytes": sum(library.size for library in found.libraries if library.groups),
        },
    )


def _instead(verdict: Verdict, target: str) -> str:
    if verdict.instead:
        return f"take {verdict.instead}"
    if verdict.status == Status.NO_DEVICE_CODE:
        return "no library holds any: see that TensorFlow's CUDA packages are in the lock"
    return f"see builder audit {target}, and builder explain {target} for where it comes from"


# --- for people -----------------------------------------------------------------------------------


def table(found: Sequence[Audited]) -> tuple[str, ...]:
    """Libraries down, GPUs (or targets, where there are several) across, then the verdicts."""
    many = len(found) > 1
    columns = [
        (f"{one.name}:{device.name}" if many and len(one.devices) > 1 else
         one.name if many else device.name, verdict)
        for one in found
        for device, verdict in one.verdicts
    ]  # fmt: skip
    cells: dict[str, dict[int, str]] = {}
    for number, (_, verdict) in enumerate(columns):
        for finding in verdict.findings:
            if finding.status != Status.NO_DEVICE_CODE:
                text = str(finding.status)
                if finding.status == Status.PTX:
                    size, seconds = finding.ptx_bytes / 1e6, finding.ptx_seconds
                    text += f" ({size:.0f} MB, about {seconds:.0f} s)"
                # the same library of images with different Pythons is one row
                below = re.sub(r"^.*/(site|dist)-packages/", "", finding.library.path)
                cells.setdefault(below, {})[number] = text
    names = _short(cells)
    lines = [["", *(title for title, _ in columns)]] if cells else []
    lines += [
        [names[path], *(row.get(number, "-") for number in range(len(columns)))]
        for path, row in sorted(cells.items(), key=lambda item: names[item[0]])
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    for one in found:
        if one.note:
            shown.append(f"{one.name}: {one.note}")
        for device, verdict in one.verdicts:
            before = f"{one.name}: " if many else ""
            shown.append(f"{before}{device.name} {verdict}")
            if verdict.instead:
                shown.append(f"    instead: {verdict.instead}")
    return tuple(shown)


def _short(paths: Iterable[str]) -> dict[str, str]:
    """Each path's file name, or all of it where two have the same."""
    every = [(path, PurePosixPath(path).name) for path in paths]
    names = [name for _, name in every]
    return {path: name if names.count(name) == 1 else path for path, name in every}


def require(found: Sequence[Audited]) -> None:
    """Raise CheckFailed where a source does not run on a GPU that was asked for."""
    refused = [(one, device, verdict) for one in found for device, verdict in one.refused]
    if refused:
        one, device, verdict = refused[0]
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise CheckFailed(f"{one.name}: {device.name} {verdict}{more}", _instead(verdict, one.name))


__all__ = [
    "CHECK",
    "CHECK_VERSION",
    "Audited",
    "Device",
    "Layer",
    "audit",
    "check",
    "device_code",
    "left",
    "merge",
    "of_image",
    "of_registry",
    "passes",
    "read_layer",
    "require",
    "table",
]
