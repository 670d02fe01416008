"""Making wheel layers: downloaded, unpacked, dropped, pruned, compiled and packed in one pass.

Several are made at once, one for each processor, while the wheels of the next come. They are begun
in their order in the base, so that an engine can unpack the lower ones while the others are made
(builder/bases/ahead.py). What is downloaded is removed with the last layer that needs it.
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

from builder.bases import bytecode, wheel
from builder.bases.bytecode import Compiler
from builder.bases.download import KEPT, Wheels
from builder.bases.layer import Layer
from builder.bases.store import Store
from builder.bases.tarball import LayerWriter, folders_above
from builder.bases.wheel import Installed
from builder.bases.wheels import LOADED, WheelLayer
from builder.core import files
from builder.core.errors import InputError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.devicecode.pruning.prune import OWNERS, PRUNED, TENSORFLOW, prune_file
from builder.devicecode.pruning.rule import compute_capability

AHEAD = 3
"""Layers whose wheels are downloaded while others are made."""

_BLOCK = 1 << 20


class _Stopped(Exception):  # noqa: N818 - another layer's error is the reason
    """Another layer failed, so this one is not needed any more."""


def make(
    layers: Sequence[WheelLayer],
    store: Store,
    wheels: Wheels,
    compiler: Compiler,
    on_event: OnEvent = ignore,
    told: Callable[[Layer], None] = lambda _: None,
) -> tuple[Layer, ...]:
    """The layers, made where the store lacks them; those of several bases may be made together.

    They are begun in this order. told: gets each layer as soon as the store has it.
    Raises OutsideError for a wheel that cannot be had or is damaged, InputError where there is
    nothing to prune. Then, and whatever else ends the run, the store has the layers that were
    whole, and a later run goes on.
    """
    wheels.folder.mkdir(parents=True, exist_ok=True)
    wheels.tidy()
    files.remove_older(store.folder.glob(".new.*"), KEPT)
    distinct = {layer.plan.key: layer for layer in layers}
    making = _Making(store, wheels, compiler, on_event, list(distinct.values()), told)
    pool = ThreadPoolExecutor((os.cpu_count() or 1) + AHEAD)
    try:
        futures = {key: pool.submit(making.one, layer) for key, layer in distinct.items()}
        done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
        for failed in (one for one in done if one.exception()):
            if not isinstance(failed.exception(), _Stopped):
                failed.result()
        return tuple(futures[layer.plan.key].result() for layer in layers)
    finally:
        making.stop.set()
        pool.shutdown(cancel_futures=True)


@dataclass
class _Making:
    """One run: what its threads share."""

    store: Store
    wheels: Wheels
    compiler: Compiler
    on_event: OnEvent
    layers: list[WheelLayer]
    told: Callable[[Layer], None]
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.slots = threading.Semaphore(os.cpu_count() or 1)
        self.uses = Counter(pin.sha256 for layer in self.layers for pin in layer.pins)
        self.counting = threading.Lock()

    def one(self, layer: WheelLayer) -> Layer:
        """A layer from the store, or made. A process that makes the same one is waited for."""
        key = layer.plan.key
        with files.locked(self.store.folder / "keys" / f"{key}.lock"):
            found = self.store.find(key) or self._made(layer)
        self.told(found)
        with self.counting:  # a wheel goes with the last layer of this run that needs it
            self.uses.subtract(pin.sha256 for pin in layer.pins)
            for pin in layer.pins:
                if not self.uses[pin.sha256]:
                    self.wheels.forget(pin)
        return found

    def _made(self, layer: WheelLayer) -> Layer:
        with contextlib.ExitStack() as stack:
            running = stack.enter_context(step(layer.plan.name, self.on_event))
            opened = self._fetched(layer, running, stack)
            stack.enter_context(self.slots)
            home = tempfile.TemporaryDirectory(prefix="pruning-", dir=self.wheels.folder)
            scratch = Path(stack.enter_context(home))
            out = stack.enter_context(self.store.writing())
            layer_made = write(layer, opened, self.compiler, out, scratch, self._check)
            running.detail = f"{layer_made.blob.size / 1e6:,.0f} MB"
            return self.store.keep(out, layer_made)

    def _fetched(
        self, layer: WheelLayer, running: RunningStep, stack: contextlib.ExitStack
    ) -> list[IO[bytes]]:
        """The wheels of a layer, open for reading until the stack ends."""
        opened: list[IO[bytes]] = []
        before = 0
        for pin in layer.pins:

            def told(here: int, before: int = before) -> None:
                self._check()
                running.progress(before + here, layer.plan.download)

            opened.append(stack.enter_context(self.wheels.fetch(pin, told)))
            before += opened[-1].seek(0, os.SEEK_END)
        return opened

    def _check(self) -> None:
        if self.stop.is_set():
            raise _Stopped


def write(
    layer: WheelLayer,
    opened: Sequence[IO[bytes]],
    compiler: Compiler,
    out: IO[bytes],
    scratch: Path,
    check: Callable[[], None] = lambda: None,
) -> Layer:
    """Write a layer to a file.

    opened: its wheels, in the order of its pins. scratch: a folder for the libraries that are
    pruned, one at a time. check: is called between pieces, and may raise.
    """
    found = _installed(layer, opened)
    found |= _compiled(layer, found, compiler)
    seen = _Seen()
    if layer.keep:
        found = _pruned(layer, found, scratch, seen)
    links = _links(layer, found) if layer.linked else {}
    writer = LayerWriter(out, layer.compression)
    for name in sorted({*found, *links, *folders_above([*found, *links])}):
        check()
        if name in found:
            file = found[name]
            writer.file(name, _checked(file.pieces(), check), file.size, file.mode)
        elif name in links:
            writer.link(name, links[name])
        else:
            writer.folder(name)
    for name, text in seen.records(layer.python).items():  # known when the libraries are written
        writer.file(name, text.encode())
    if layer.only == TENSORFLOW and not seen.device_code:
        raise InputError(
            f"{layer.plan.name}: none of its libraries has device code that could be pruned",
            "write prune: off in image.yaml",
        )
    return writer.close(layer.plan.key)


def _checked(pieces: Iterable[bytes], check: Callable[[], None]) -> Iterator[bytes]:
    for piece in pieces:
        check()
        yield piece


def _installed(layer: WheelLayer, opened: Sequence[IO[bytes]]) -> dict[str, Installed]:
    """What all wheels of a layer install."""
    found: dict[str, Installed] = {}
    owners: dict[str, str] = {}
    for pin, drops, file in zip(layer.pins, layer.drops, opened, strict=True):
        for one in wheel.installed(file, pin.name, layer.python, drops).values():
            wheel.add(found, one, pin.name, owners.setdefault(one.path, pin.name))
    for folder in folders_above(found):
        if folder in found:
            raise wheel.refused(owners[folder], f"/{folder} is a file and a folder")
    return found


def _compiled(
    layer: WheelLayer, found: Mapping[str, Installed], compiler: Compiler
) -> dict[str, Installed]:
    """The bytecode of every source below site-packages."""
    site = wheel.site_packages(layer.python) + "/"
    sources = {
        f"/{path}": file.content()
        for path, file in found.items()
        if path.endswith(".py") and f"/{path}".startswith(site)
    }
    made = (
        wheel.made(bytecode.place(path[1:], layer.python), code)
        for path, code in compiler.compile(sources).items()
    )
    return {file.path: file for file in made}


@dataclass
class _Seen:
    """What came of pruning. changed: path -> the record's hash and size of each changed library."""

    device_code: bool = False
    changed: dict[str, tuple[str, int]] = field(default_factory=dict)

    def records(self, python: str) -> dict[str, str]:
        """Path -> text of the records that the audit compares the libraries with.

        Each lies in a folder that no other wheel has: `tensorflow`, `nvidia/cudnn`.
        """
        site = wheel.site_packages(python).lstrip("/")
        folders: dict[str, list[str]] = {}
        for path, (digest, size) in sorted(self.changed.items()):
            first, second, *_ = path.removeprefix(f"{site}/").split("/")
            owner = f"{first}/{second}" if first == "nvidia" else first
            line = f"{path.removeprefix(f'{site}/{owner}/')},{digest},{size}\n"
            folders.setdefault(f"{site}/{owner}/{PRUNED}", []).append(line)
        return {path: "".join(lines) for path, lines in folders.items()}


def _pruned(
    layer: WheelLayer, found: Mapping[str, Installed], scratch: Path, seen: _Seen
) -> dict[str, Installed]:
    """The files, of which the libraries that carry device code lose what the GPU cannot run.

    A library is unpacked and pruned when its content is asked for; `seen` gets what came of it.
    """
    site = wheel.site_packages(layer.python).lstrip("/") + "/"
    owners = OWNERS[layer.only or TENSORFLOW]

    def library(path: str) -> bool:
        below = path.removeprefix(site)
        return below.partition("/")[0] in owners and bool(LIBRARY_NAME.search(below))

    def pieces(file: Installed) -> Iterator[bytes]:
        at = scratch / "library.so"
        with at.open("wb") as out:
            out.writelines(file.pieces())
        result = prune_file(at, compute_capability(layer.keep or ""))
        seen.device_code |= bool(result.entries_kept or result.entries_gone)
        total = hashlib.sha256()
        with at.open("rb") as pruned:
            while block := pruned.read(_BLOCK):
                total.update(block)
                yield block
        if result.changed:
            seen.changed[file.path] = (wheel.recorded(total.digest()), result.size)
        at.unlink()

    return {
        path: replace(file, pieces=partial(pieces, file)) if library(path) else file
        for path, file in found.items()
    }


def _links(layer: WheelLayer, found: Mapping[str, Installed]) -> dict[str, str]:
    """A link to each of NVIDIA's libraries where the loader looks.

    cuDNN looks for libnvrtc, and TensorFlow for libnvJitLink, where neither wheel puts it.
    """
    site = re.escape(wheel.site_packages(layer.python).lstrip("/"))
    libraries = (re.fullmatch(rf"{site}/nvidia/[^/]+/lib/([^/]+)", path) for path in sorted(found))
    return {
        f"{LOADED}/{match[1]}": f"/{match.string}"
        for match in libraries
        if match and LIBRARY_NAME.search(match[1])
    }
