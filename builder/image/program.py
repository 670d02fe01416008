"""A training image: a program's files as one layer on a base.

Assembling it takes milliseconds, and in a registry no byte of the base travels. Where a Dockerfile
holds further instructions, BuildKit builds the image from a context that `stage` writes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from builder.core import outgoing
from builder.core.errors import InputError
from builder.core.files import EPOCH, hash_of, text_of
from builder.core.project import BUILD, DOCKERFILE, IMAGES, MARKER
from builder.image import start
from builder.image.layer import Compression
from builder.image.layer import assemble as image_of

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack
    from builder.core.events import OnEvent, RunningStep
    from builder.engine import BuiltImage, Engine
    from builder.image.content_store import ContentStore
    from builder.image.layer import AssembledImage, Layer

APP = "app"
"""The folder of a training image's context that becomes /app."""

Rules = tuple[tuple[Path, "GitIgnoreSpec"], ...]
"""What is left out below a folder, as git's ignore files say it."""

LEFT_OUT = frozenset({"__pycache__", "node_modules"})
"""Folders of a program that no training run reads. Hidden files and folders are left out, too, and
a `tests` at the top that holds modules of tests and nothing else."""

MOST_FILES, MOST_BYTES = 20_000, 2_000_000_000
"""What a program may have: its files are held in memory, and become one layer."""

_LEFT_OUT_ENDINGS = (".pyc", ".pyo", ".egg-info", "~", ".swp")


@dataclass(frozen=True)
class File:
    """The content of one file, and whether it may be executed."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class ImageConfig:
    """What a training image sets on top of its base's configuration."""

    environment: Mapping[str, str]
    labels: Mapping[str, str]
    user: str
    entrypoint: tuple[str, ...]

    def on(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return `config` of the image's configuration, from that of its base."""
        pairs = (variable.partition("=") for variable in config.get("Env") or ())
        environment = {name: value for name, _, value in pairs} | dict(self.environment)
        result = {
            **config,
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": {**(config.get("Labels") or {}), **self.labels},
            "User": self.user,
            "Entrypoint": list(self.entrypoint),
        }
        result.pop("Cmd", None)  # as BuildKit does: a base's command belongs to its own entry point
        return result


@dataclass(frozen=True)
class ImagePlan:
    """A training image to make: an AssembledPlan or a BuiltPlan."""

    dockerfile: str
    files: Mapping[str, File]
    """The build context, by name."""

    @cached_property
    def hash(self) -> str:
        """16 hex digits over the Dockerfile, which names the base, and its context."""
        return hash_of(self.dockerfile, *_texts(self.files))[:16]


@dataclass(frozen=True)
class AssembledPlan(ImagePlan):
    """A training image whose Dockerfile copies the program onto its base: the factory makes it by
    itself, and BuildKit the same one."""

    config: ImageConfig
    compression: Compression


@dataclass(frozen=True)
class BuiltPlan(ImagePlan):
    """A training image that BuildKit has to build: its Dockerfile has further instructions."""

    installs: bool
    """Whether it installs packages, because its base is a published image."""


def files(root: Path, spec: ImageSpec, stack: Stack) -> dict[str, File]:
    """Return the files of a target's program, and of the start hook, by their name in the context.

    Raises InputError for a file that is not the project's own.
    """
    root = spec.program.home(root)
    source = root / spec.program.folder
    # `python -m` starts in /app
    to = PurePosixPath(APP) if spec.program_folder.flat else PurePosixPath(APP, source.name)
    copied = {f"{APP}/{name}": File(content) for name, content in start.files(stack).items()}
    for path in walk(source):
        check(root, path)
        is_executable = bool(path.stat().st_mode & 0o100)
        name = to / path.relative_to(source).as_posix()
        copied[str(name)] = File(path.read_bytes(), is_executable)
    return copied


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files of a program's folder that its image gets, sorted.

    Of the root of a repository or a project, what git ignores is left out, too, and build/ and
    images/ of a project. Raises InputError for a link back to a folder above it, and for more files
    or bytes than a program has.
    """
    total = 0
    for number, path in enumerate(_below(folder, (folder.resolve(),), _rules(folder)), 1):
        total += path.stat().st_size if path.is_file() else 0
        if number > MOST_FILES or total > MOST_BYTES:
            much = f"more than {MOST_FILES:,} files or {MOST_BYTES / 1e9:g} GB"
            raise InputError(
                f"{folder.name}: the program's folder holds {much} (up to {path.name})",
                "keep data out of it: a job reads records, and writes to its job folder",
            )
        yield path


def check(root: Path, path: Path) -> None:
    """Refuse a file of a program that must not be in an image. Raises InputError.

    A link must not bring in what is left out, such as `../.git/config`.
    """
    outgoing.check(root, path, lambda real: any(map(_left_out, real.parts)))


def assemble(plan: AssembledPlan, base: AssembledImage, store: ContentStore) -> AssembledImage:
    """Return the training image: the program's files on top of its base.

    Their layer is in the store, and the image under its digest.
    """
    from builder.registry import manifests

    layer = _layer(store, plan.files, plan.compression)
    config = manifests.configuration_in(base.configuration).get("config") or {}
    history = f"builder: {APP} copied to /{APP}"
    image = image_of([(layer, history)], plan.config.on(config), base)
    store.keep_image(image.digest.removeprefix("sha256:"), image)
    return image


def stage(plan: ImagePlan, folder: Path) -> Path:
    """Write the build context of an image below `folder`; return the Dockerfile's path in it.

    The same plan gives the same context: contents, names, modes and dates. The context's own folder
    is named by its hash. BuildKit updates a context of the same name as an earlier one file by
    file, and a folder in which a file changed would then have today's date.
    """
    context = folder / f"image-{plan.hash}"
    for name, file in {**plan.files, DOCKERFILE: File(plan.dockerfile.encode())}.items():
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)
    # Leaves first: writing into a folder would set its date again.
    for path in sorted([context, *context.rglob("*")], reverse=True):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (EPOCH, EPOCH))
    return context / DOCKERFILE


def build(
    engine: Engine,
    plan: ImagePlan,
    reference: str,
    destination: Literal["engine", "registry"],
    no_cache: bool,
    on_event: OnEvent,
) -> BuiltImage:
    """Let BuildKit build a training image under `reference`, on its base in that repository.

    Raises OutsideError for a step that failed, and for an engine that cannot build.
    """
    from builder.config import uv
    from builder.config.debian import build_secrets
    from builder.engine import buildx

    with tempfile.TemporaryDirectory(prefix="image-") as scratch:
        dockerfile = stage(plan, Path(scratch))
        installs = isinstance(plan, BuiltPlan) and plan.installs
        request = buildx.BuildRequest(
            dockerfile=dockerfile,
            context=dockerfile.parent,
            tags=(reference,),
            contexts={"uv": str(Path(uv.uv_program()).parent)} if installs else {},
            build_args={"REPOSITORY": reference.rsplit(":", 1)[0]},
            secrets=build_secrets() if installs else {},
            destination=destination,
            no_cache=no_cache,
        )
        return buildx.build(engine, request, on_event)


def _layer(store: ContentStore, files: Mapping[str, File], compression: Compression) -> Layer:
    """Return the layer of the files and the folders that they lie in; all are root's."""
    from builder.image.tarball import LayerWriter, folders_above

    key = hash_of("program", str(compression), "(0, 0)", *_texts(files))
    if layer := store.find(key):
        return layer
    with store.writing() as out:
        writer = LayerWriter(out, compression)
        for name in sorted({*files, *folders_above(files)}):
            if name in files:
                mode = 0o755 if files[name].executable else 0o644
                writer.file(name, files[name].content, mode=mode)
            else:
                writer.folder(name)
        return store.keep(out, writer.close(key))


def _texts(files: Mapping[str, File]) -> Iterator[str]:
    """Yield texts that are equal for equal files: name, mode and hash of each."""
    for name, file in sorted(files.items()):
        yield from (name, str(file.executable), hashlib.sha256(file.content).hexdigest())


def name_left_out(folder: Path, copying: RunningStep) -> None:
    """Say at a step what an image does not get of a program's folder, the largest first."""
    left = sorted(left_out(folder).items(), key=lambda each: -each[1][1])
    lines = [f"{path} {size / 1e6:.1f} MB" for path, (_, size) in left]
    for line in lines:
        copying.log(f"left out: {line}")
    if lines:
        more = f" and {len(lines) - 6} more (builder --verbose)" if lines[6:] else ""
        copying.detail += f"; left out: {', '.join(lines[:6])}{more}"


def left_out(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what an image does not get of a program's folder, but hidden files and caches: a
    folder or a file -> its files and bytes."""
    kept, found = {*walk(folder)}, dict[str, tuple[int, int]]()
    waiting = [folder]
    while waiting:
        for path in sorted(waiting.pop(0).iterdir()):
            if _left_out(path.name) or path.name in LEFT_OUT or path.is_symlink() or path in kept:
                continue
            if path.is_dir() and any(each.is_relative_to(path) for each in kept):
                waiting.append(path)
                continue
            inside = [path] if path.is_file() else list(path.rglob("*"))
            sizes = [each.lstat().st_size for each in inside if not each.is_dir()]
            found[path.relative_to(folder).as_posix()] = (len(sizes), sum(sizes))
    return found


def _rules(folder: Path) -> Rules:
    """Return what the root of a repository or a project leaves out; () for another folder."""
    is_project = (folder / MARKER).is_file()
    if not is_project and not (folder / ".git").exists():
        return ()
    from pathspec import GitIgnoreSpec

    own = (f"/{MARKER}", f"/{BUILD}/", f"/{IMAGES}/") if is_project else ()
    return ((folder, GitIgnoreSpec.from_lines(own)),)


def _below(folder: Path, above: tuple[Path, ...], rules: Rules) -> Iterator[Path]:
    if rules and (text := text_of(folder / ".gitignore")):
        from pathspec import GitIgnoreSpec

        rules = (*rules, (folder, GitIgnoreSpec.from_lines(text.splitlines())))
    for path in sorted(folder.iterdir()):
        if _left_out(path.name) or any(
            spec.match_file(path.relative_to(base).as_posix() + "/" * path.is_dir())
            for base, spec in rules
        ):
            continue
        if not path.is_dir():
            yield path
        elif path.name not in LEFT_OUT and (above[1:] or not _is_tests(path)):
            real = path.resolve()
            if real in above:
                raise InputError(
                    f"{path}: this link leads back to a folder above it", "remove the link"
                )
            yield from _below(path, (*above, real), rules)


def _is_tests(folder: Path) -> bool:
    """Return whether a folder holds modules of tests and nothing else: no data of a split."""
    names = ("test_*.py", "*_test.py", "conftest.py", "__init__.py")
    return (
        folder.name in {"test", "tests"}
        and any(any(folder.glob(name)) for name in names)
        and all(path.is_dir() or path.suffix in {".py", ".pyc"} for path in folder.rglob("*"))
    )


def _left_out(name: str) -> bool:
    return name.startswith(".") or name.endswith(_LEFT_OUT_ENDINGS)
