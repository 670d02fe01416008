"""Take out of installed libraries what one accelerator can't run. Files keep their size.

In every container of `.nv_fatbin` and `__nv_relfatbin` the entries that stay move to the
container's start, its size shrinks to theirs, and the rest is zeroed: addresses, sections and the
table of containers stay as they are, so the loader sees no difference, and zeros compress to
nothing when the layer is stored and pulled.

What stays for a device:
* cubins of its major compute capability up to its own minor. All of them: cuBLAS documents that the
  lower minors of a major are needed, and one with sm_86 alone failed in the field.
* PTX that the device can compile, in containers that have no cubin for it. Elsewhere the driver
  never looks at PTX (rule.py), and nothing here sets CUDA_FORCE_PTX_JIT.
* every kind of entry that is neither cubin nor PTX.

What is not touched: every other section. Containers in `.ldata`, `.data`, `.cask_resource` and
`.rodata` are found through tables of the library's own, and no library has been shown to live with
a change there.

A container may end up empty: the driver then answers CUDA_ERROR_NO_BINARY_FOR_GPU, the same as for
a container that holds code for other devices only (rule.py).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from . import elf
from .elf import LIBRARY_NAME, Buffer
from .errors import CheckFailed, InputError, Malformed
from .fatbin import COMPILED, ELF, LINK_INPUT, PTX, Container, Entry, containers
from .rule import ComputeCapability, choose, runs

TENSORFLOW, ALL = "tensorflow", "all"
OWNERS = {TENSORFLOW: ("tensorflow",), ALL: ("tensorflow", "nvidia")}
"""The folders below site-packages whose libraries each choice prunes."""

EULA = (
    "NVIDIA's libraries are modified too, which the limitations of the CUDA EULA forbid "
    "(https://docs.nvidia.com/cuda/eula/): you asked for it with `all`, and answer for it"
)

PRUNED = "training_image_pruned.csv"
"""What pruning changed: a line `path,sha256=HASH,size` for each library, as wheels' RECORD has it.
It lies in the folder that was pruned, and its paths are relative to that. The audit compares them.
"""

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Pruned:
    """One library after pruning. Sizes in bytes; `changed` is False where nothing had to go."""

    path: Path
    changed: bool
    size: int
    entries_kept: int
    entries_gone: int
    bytes_kept: int
    bytes_gone: int


def stays(entry: Entry, container: Container, device: ComputeCapability) -> bool:
    """Whether an entry is kept for a device."""
    target = entry.target
    if entry.kind == ELF:
        return (
            target.architecture // 10 == device.major and target.architecture <= device.architecture
        )
    if entry.kind == PTX:
        picked = choose([other.target for other in container.entries], device)
        return runs(target, device) and picked is not None and picked.kind == PTX
    return True


def libraries(folder: Path, only: str) -> Iterator[Path]:
    """The libraries below a folder that `only` (tensorflow, all) speaks of. Raises InputError."""
    if only not in OWNERS:
        raise InputError(f"--only {only}: no such choice", f"write one of {', '.join(OWNERS)}")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", "name the folder the packages are in")
    for parent, folders, names in os.walk(folder):
        folders.sort()
        if _owner(Path(parent), folder) in OWNERS[only]:
            for name in sorted(names):
                path = Path(parent, name)
                if LIBRARY_NAME.search(name) and not path.is_symlink():
                    yield path


def prune(
    folder: Path,
    device: ComputeCapability,
    only: str = TENSORFLOW,
    on_file: Callable[[Pruned], None] | None = None,
) -> tuple[Pruned, ...]:
    """Prune every library below a folder; on_file is called after each that has device code.

    Raises InputError, Malformed (nothing was changed in that library) and CheckFailed. A library
    that was pruned before is left alone.
    """
    done = []
    for path in libraries(folder, only):
        pruned = prune_file(path, device)
        if pruned.entries_kept or pruned.entries_gone:
            if pruned.changed:
                record(folder, path)
            done.append(pruned)
            if on_file:
                on_file(pruned)
    return tuple(done)


def record(folder: Path, path: Path) -> None:
    """Write down what a library is now, in the record of the folder that was pruned."""
    place, name = folder / PRUNED, path.relative_to(folder).as_posix()
    known: dict[str, list[str]] = {}
    if place.is_file():
        rows = csv.reader(place.read_text(encoding="utf-8").splitlines())
        known = {row[0]: row for row in rows if row}
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total.update(block)
    digest = base64.urlsafe_b64encode(total.digest()).decode().rstrip("=")
    known[name] = [name, f"sha256={digest}", str(path.stat().st_size)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(known[one] for one in sorted(known))
    temporary = place.with_name(f".{PRUNED}")
    temporary.write_text(text.getvalue(), encoding="utf-8")
    temporary.replace(place)


def prune_file(path: Path, device: ComputeCapability) -> Pruned:
    """Prune one library: written beside it under a temporary name, verified, then renamed."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != elf.MAGIC:
            return Pruned(path, False, size, 0, 0, 0, 0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as before:
            try:
                plan = _plan(before, device)
                result = _sum(path, size, plan)
                if result.changed:
                    _replace(path, before, plan)
            except Malformed as error:
                raise Malformed(f"{path}: {error.message}", error.fix) from error
    return result


Plan = list[tuple[Container, tuple[Entry, ...]]]
"""Each container that may be pruned, and the entries of it that stay."""


def _plan(data: Buffer, device: ComputeCapability) -> Plan:
    """What stays. A section of which nothing would stay is left as it is: it is a stub, or the
    library is not for this device, and the audit has to see which.
    """
    plan = [
        (container, tuple(e for e in container.entries if stays(e, container, device)))
        for container in containers(data)
        if container.section in (COMPILED, LINK_INPUT)
    ]
    with_something = {container.section for container, kept in plan if kept}
    return [
        (container, kept if container.section in with_something else container.entries)
        for container, kept in plan
    ]


def _sum(path: Path, size: int, plan: Plan) -> Pruned:
    kept = [entry for _, entries in plan for entry in entries]
    all_entries = [entry for container, _ in plan for entry in container.entries]
    bytes_kept = sum(entry.size for entry in kept)
    return Pruned(
        path=path,
        changed=len(kept) < len(all_entries),
        size=size,
        entries_kept=len(kept),
        entries_gone=len(all_entries) - len(kept),
        bytes_kept=bytes_kept,
        bytes_gone=sum(entry.size for entry in all_entries) - bytes_kept,
    )


def _replace(path: Path, before: mmap.mmap, plan: Plan) -> None:
    handle, name = tempfile.mkstemp(prefix=".pruning-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "r+b") as out:
            _write(before, out, plan)
            out.flush()
            with mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ) as after:
                verify(before, after, plan)
        shutil.copystat(path, temporary)
        owner = path.stat()
        os.chown(temporary, owner.st_uid, owner.st_gid)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(before: Buffer, out: BinaryIO, plan: Plan) -> None:
    """The library with the plan carried out. What is zeroed is never written: it stays a hole."""
    out.truncate(len(before))
    at = 0
    for container, kept in plan:
        if len(kept) == len(container.entries):
            continue
        _copy(before, out, at, container.offset + 8)
        out.write(sum(entry.size for entry in kept).to_bytes(8, "little"))
        for entry in kept:
            _copy(before, out, entry.offset, entry.offset + entry.size)
        out.seek(container.end)
        at = container.end
    _copy(before, out, at, len(before))


def _copy(before: Buffer, out: BinaryIO, start: int, end: int) -> None:
    for at in range(start, end, _BLOCK):
        out.write(before[at : min(at + _BLOCK, end)])


def verify(before: Buffer, after: Buffer, plan: Plan) -> None:
    """Whether `after` is `before` with exactly the plan carried out. Raises CheckFailed.

    Read again from the written bytes: every container that was there is there and holds the entries
    that stay, byte for byte; no byte changed anywhere else. That only zeros follow a container's
    entries is the reader's own rule.
    """
    if len(before) != len(after):
        raise _wrong("the file's size changed")
    planned = {container.offset: (container, kept) for container, kept in plan}
    end_of_last = 0
    for found in containers(after):
        if found.offset not in planned:
            continue
        container, kept = planned.pop(found.offset)
        if not _same(before, after, end_of_last, end_of_last, container.offset + 8 - end_of_last):
            raise _wrong(f"bytes before the container at {container.offset:#x} changed")
        if len(found.entries) != len(kept):
            raise _wrong(f"the container at {found.offset:#x} holds {len(found.entries)} entries")
        for old, new in zip(kept, found.entries):  # noqa: B905 - Python 3.9
            if old.size != new.size or not _same(before, after, old.offset, new.offset, old.size):
                raise _wrong(f"the entry at {old.offset:#x} changed when it moved")
        end_of_last = container.end
    if not _same(before, after, end_of_last, end_of_last, len(before) - end_of_last):
        raise _wrong("bytes after the last container changed")


def _wrong(what: str) -> CheckFailed:
    return CheckFailed(
        f"pruning went wrong, the library was left as it was: {what}",
        "build with prune: off, and report the library's version",
    )


def _same(before: Buffer, after: Buffer, at: int, to: int, size: int) -> bool:
    for done in range(0, size, _BLOCK):
        step = min(_BLOCK, size - done)
        if before[at + done : at + done + step] != after[to + done : to + done + step]:
            return False
    return True


def _owner(parent: Path, folder: Path) -> str:
    """The folder below site-packages that a library lies in: the package that owns it."""
    parts = parent.resolve().parts
    for root in ("site-packages", "dist-packages"):
        if root in parts:
            below = parts[len(parts) - parts[::-1].index(root) :]
            return below[0] if below else ""
    below = parent.relative_to(folder).parts
    return below[0] if below else ""
