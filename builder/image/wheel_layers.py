"""Making wheel layers: downloaded, unpacked, pruned, compiled and packed in one pass.

Several are made at once, one for each processor, while the wheels of the next come. They are begun
in their order in the base, so that an engine can unpack the lower ones while the others are made
(builder/image/loading.py). What is downloaded is removed with the last layer that needs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from builder.config.pins import Pin
from builder.core.errors import InputError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.devicecode.pruning.prune import PRUNED, prune_file
from builder.devicecode.pruning.rule import compute_capability
from builder.facts.frameworks import Exclude
from builder.image import bytecode, wheel
from builder.image.bytecode import BytecodeCompiler
from builder.image.content_store import ContentStore
from builder.image.download import Wheels
from builder.image.layer import Layer
from builder.image.plan import LOADER, WheelLayer, site_packages
from builder.image.tarball import LayerWriter, folders_above, pieces
from builder.image.wheel import InstalledFile

READ_AHEAD = 3
"""Layers whose wheels are downloaded while others are made."""

OnLayer = Callable[[Layer], object]
"""Gets each layer as soon as the store has it, from any thread."""


class _Stopped(Exception):
    """Another layer failed, so this one is not needed any more."""


@dataclass
class Making:
    """A run that makes layers, and what its threads share."""

    store: ContentStore
    wheels: Wheels
    compiler: BytecodeCompiler
    on_event: OnEvent = ignore
    on_layer: OnLayer = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends the run; it is set before anything is waited for where the run ends early."""

    def __post_init__(self) -> None:
        self.processors = threading.Semaphore(os.cpu_count() or 1)
        self.uses = Counter[str]()
        self.counting = threading.Lock()
        self.alike = Counter[_Files]()
        self.compiled: dict[_Files, dict[str, InstalledFile]] = {}
        self.compiling = threading.Lock()

    def make(self, layers: Sequence[WheelLayer]) -> tuple[Layer, ...]:
        """Return the layers, made where the store lacks them; those of several bases at once.

        They are begun in this order. Raises OutsideError for a wheel that cannot be had or is
        damaged, InputError where there is nothing to prune. Then, and whatever else ends the run,
        the store has the layers that were whole, and a later run goes on.
        """
        self.wheels.folder.mkdir(parents=True, exist_ok=True)
        self.wheels.tidy()
        self.store.sweep()
        distinct = {layer.plan.key: layer for layer in layers}
        self.uses.update(pin.sha256 for layer in distinct.values() for pin in layer.pins)
        self.alike.update(map(_files, distinct.values()))
        pool = ThreadPoolExecutor((os.cpu_count() or 1) + READ_AHEAD)
        try:
            futures = {key: pool.submit(self.make_layer, layer) for key, layer in distinct.items()}
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for future in done:
                if future.exception() and not isinstance(future.exception(), _Stopped):
                    future.result()
            return tuple(futures[layer.plan.key].result() for layer in layers)
        except BaseException:
            self.stop.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def make_layer(self, layer: WheelLayer) -> Layer:
        """Return a layer from the store, or make it. A process that makes it is waited for."""
        with self.store.lock(layer.plan.key, self._check), contextlib.ExitStack() as stack:
            made = self.store.find(layer.plan.key)
            if made is None:
                running = stack.enter_context(step(layer.plan.name, self.on_event))
                opened = [
                    stack.enter_context(self.wheels.fetch(pin, self._progress(running, layer, n)))
                    for n, pin in enumerate(layer.pins)
                ]
                stack.enter_context(self.processors)
                home = tempfile.TemporaryDirectory(prefix="pruning-", dir=self.wheels.folder)
                scratch = Path(stack.enter_context(home))
                out = stack.enter_context(self.store.writing())
                made = write(layer, opened, self.compile, out, scratch, self._check)
                running.detail = f"{made.blob.size / 1e6:,.0f} MB"
                self.store.keep(out, made)
        self.on_layer(made)
        with self.counting:  # a wheel goes with the last layer of this run that needs it
            self.uses.subtract(pin.sha256 for pin in layer.pins)
            for pin in layer.pins:
                if not self.uses[pin.sha256]:
                    self.wheels.forget(pin)
        return made

    def compile(
        self, layer: WheelLayer, content: Mapping[str, InstalledFile]
    ) -> dict[str, InstalledFile]:
        """Return the bytecode of a layer's files; made once for layers that are pruned for several
        GPUs."""
        files = _files(layer)
        if self.alike[files] < 2:
            return _compiled(layer, content, self.compiler, self._check)
        with self.compiling:
            if files not in self.compiled:
                self.compiled[files] = _compiled(layer, content, self.compiler, self._check)
            return self.compiled[files]

    def _progress(
        self, running: RunningStep, layer: WheelLayer, number: int
    ) -> Callable[[int], None]:
        """Return what takes the bytes of a layer's wheel that are here."""
        before = sum(pin.bytes or 0 for pin in layer.pins[:number])

        def progress(count: int) -> None:
            self._check()
            running.progress(before + count, layer.plan.download)

        return progress

    def _check(self) -> None:
        if self.stop.is_set():
            raise _Stopped


_Files = tuple[tuple[Pin, ...], tuple[tuple[Exclude, ...], ...], str]
"""What decides the files of a layer before they are pruned."""


def _files(layer: WheelLayer) -> _Files:
    return layer.pins, layer.exclude, layer.python


def write(
    layer: WheelLayer,
    opened: Sequence[IO[bytes]],
    compile_files: Callable[[WheelLayer, Mapping[str, InstalledFile]], dict[str, InstalledFile]],
    out: IO[bytes],
    scratch: Path,
    check: Callable[[], None] = lambda: None,
) -> Layer:
    """Write a layer to a file.

    opened: its wheels, in the order of its pins. compile_files: returns the bytecode of its files
    by path. scratch: a folder for the libraries that are
    pruned, one at a time. check: is called between pieces, and may raise.
    """
    content = _installed(layer, opened)
    content |= compile_files(layer, content)
    pruning = _Pruning(layer, scratch)
    if layer.keep:
        content = {path: pruning.pruned(file) for path, file in content.items()}
    links = _links(layer, content) if layer.linked else {}
    writer = LayerWriter(out, layer.compression)
    for name in sorted({*content, *links, *folders_above([*content, *links])}):
        check()
        if name in content:
            file = content[name]
            writer.file(name, _checked(file.pieces(), check), file.size, file.mode)
        elif name in links:
            writer.link(name, links[name])
        else:
            writer.folder(name)
    for name, text in pruning.records().items():  # known when the libraries are written
        writer.file(name, text.encode())
    if len(layer.owners) == 1 and not pruning.device_code:
        raise InputError(
            f"{layer.plan.name}: none of its libraries has device code that could be pruned",
            "write prune: off in image.yaml",
        )
    return writer.close(layer.plan.key)


def _checked(content: Iterable[bytes], check: Callable[[], None]) -> Iterator[bytes]:
    for piece in content:
        check()
        yield piece


def _installed(layer: WheelLayer, opened: Sequence[IO[bytes]]) -> dict[str, InstalledFile]:
    content: dict[str, InstalledFile] = {}
    owners: dict[str, str] = {}
    for pin, exclude, file in zip(layer.pins, layer.exclude, opened, strict=True):
        for installed in wheel.installed(file, pin.name, layer.python, exclude).values():
            wheel.add(content, installed, pin.name, owners.setdefault(installed.path, pin.name))
    for folder in folders_above(content):
        if folder in content:
            raise wheel.bad_wheel(owners[folder], f"/{folder} is a file and a folder")
    return content


def _compiled(
    layer: WheelLayer,
    content: Mapping[str, InstalledFile],
    compiler: BytecodeCompiler,
    check: Callable[[], None],
) -> dict[str, InstalledFile]:
    """Return the bytecode of every source below site-packages, by path."""
    site = site_packages(layer.python) + "/"
    sources = {
        f"/{path}": file.content()
        for path, file in content.items()
        if path.endswith(".py") and f"/{path}".startswith(site)
    }
    compiled = {
        bytecode.path_of(path[1:], layer.python): code
        for path, code in compiler.compile(sources, check).items()
    }
    return {path: InstalledFile.of(path, code) for path, code in compiled.items()}


class _Pruning:
    """Libraries that lose the device code which the layer's GPU cannot run.

    device_code: whether any library had some. changed: path -> the record's hash and size of each
    changed library. Both are known when the content of the libraries was read.
    """

    def __init__(self, layer: WheelLayer, scratch: Path) -> None:
        self.keep, self.scratch = layer.keep or "", scratch
        self.site = site_packages(layer.python).lstrip("/") + "/"
        self.owners = layer.owners
        self.device_code = False
        self.changed: dict[str, tuple[str, int]] = {}

    def pruned(self, file: InstalledFile) -> InstalledFile:
        """Return a file that is pruned when its content is read, if it is such a library."""
        below = file.path.removeprefix(self.site)
        is_library = below.partition("/")[0] in self.owners and LIBRARY_NAME.search(below)
        return replace(file, pieces=partial(self._pieces, file)) if is_library else file

    def _pieces(self, file: InstalledFile) -> Iterator[bytes]:
        library = self.scratch / "library.so"
        with library.open("wb") as out:
            out.writelines(file.pieces())
        result = prune_file(library, compute_capability(self.keep))
        self.device_code |= bool(result.entries_kept or result.entries_gone)
        digest = hashlib.sha256()
        with library.open("rb") as pruned:
            for piece in pieces(pruned):
                digest.update(piece)
                yield piece
        if result.changed:
            self.changed[file.path] = (wheel.recorded(digest.digest()), result.size)
        library.unlink()

    def records(self) -> dict[str, str]:
        """Return path -> text of the records that the audit compares the libraries with.

        Each lies in a folder that no other wheel has: `tensorflow`, `nvidia/cudnn`.
        """
        lines: dict[str, list[str]] = {}
        for path, (digest, size) in sorted(self.changed.items()):
            first, second, *_ = path.removeprefix(self.site).split("/")
            owner = self.site + (f"{first}/{second}" if first == "nvidia" else first)
            line = f"{path.removeprefix(f'{owner}/')},{digest},{size}\n"
            lines.setdefault(f"{owner}/{PRUNED}", []).append(line)
        return {path: "".join(of_one) for path, of_one in lines.items()}


def _links(layer: WheelLayer, content: Mapping[str, InstalledFile]) -> dict[str, str]:
    """Return a link to each of NVIDIA's libraries where the loader looks.

    cuDNN looks for libnvrtc, and a framework for libnvJitLink, where neither wheel puts it.
    """
    site = re.escape(site_packages(layer.python).lstrip("/"))
    libraries = (
        re.fullmatch(rf"{site}/nvidia/[^/]+/lib/([^/]+)", path) for path in sorted(content)
    )
    return {
        f"{LOADER}/{match[1]}": f"/{match.string}"
        for match in libraries
        if match and LIBRARY_NAME.search(match[1])
    }
