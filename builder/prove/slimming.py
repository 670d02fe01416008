"""What an image can be without: what no container sees, caches, the device code of other GPUs, and
CUDA's libraries that nothing loads.

Only the layers are read. A second copy of one of CUDA's libraries becomes a link to the copy that
is loaded, so that a program finds it by each of its names and paths.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from builder.audit.audited import Gpu
from builder.core.errors import CheckFailed, InputError
from builder.devicecode.dynamic import Dynamic
from builder.devicecode.library import Group, Library
from builder.devicecode.pruning.fatbin import (
    COMPILED,
    FLAG_ARCHITECTURE_SPECIFIC,
    FLAG_FAMILY_SPECIFIC,
    LINK_INPUT,
    Container,
    Entry,
)
from builder.devicecode.pruning.prune import stays
from builder.devicecode.pruning.rule import ComputeCapability
from builder.devicecode.verdict import holding
from builder.facts.frameworks import NVIDIA
from builder.prove import waste
from builder.prove.checks import loader
from builder.prove.image import Image
from builder.reading.layers import visible

LEAST: Final = 1_000_000
"""Bytes that a layer has to lose: one that is written anew is shared with no other image."""
HIDDEN: Final = "a later layer has deleted it, or written it again"
OTHER_GPUS: Final = "device code of other GPUs"
SECOND: Final = "a second copy"
FOR_A_CPU: Final = "CUDA that nothing loads"

_CACHED: Final = re.compile(r"/(?:pkgs|(?:archive|builds|sdists|simple|wheels)-v\d+)/")
"""What lies in the root of a cache of conda's or uv's."""
_FLAGS: Final = {"": 0, "a": FLAG_ARCHITECTURE_SPECIFIC, "f": FLAG_FAMILY_SPECIFIC}


@dataclass(frozen=True)
class FileChange:
    """What becomes of one file of one layer."""

    layer: str
    """The layer's diff id."""
    path: str
    action: Literal["remove", "link", "prune"]
    why: str
    before: int
    """Bytes of the file."""
    after: int
    """Bytes that stay: of a library that is pruned, those that do not become zeros."""
    to: str = ""
    """Where the link leads."""


@dataclass(frozen=True)
class SlimmingPlan:
    changes: tuple[FileChange, ...]
    left: Mapping[str, str]
    """Library -> why it is left as it is."""


def plan(image: Image, nvidia: bool, programs: Mapping[str, Dynamic]) -> SlimmingPlan:
    """Return what the image can be without.

    nvidia: whether NVIDIA's own libraries are pruned, too. programs: what the loader reads of its
    executables; asked for where `doubled` names something. Raises InputError where no GPU is named
    for an image that holds device code, CheckFailed where nothing in it runs on the GPU.
    """
    left: dict[str, str] = {}
    changes = [*_unneeded(image), *_cuda(image, programs, left)]
    gone = {change.path for change in changes if change.why != HIDDEN}
    _check(image, gone)
    if image.gpu:
        changes += _pruned(image, image.gpu, nvidia, {(c.layer, c.path) for c in changes}, left)
    return SlimmingPlan(tuple(_worth_it(image, changes)), left)


def _worth_it(image: Image, changes: Sequence[FileChange]) -> Iterator[FileChange]:
    """Yield the changes of layers that lose enough. What a layer hides below it stays hidden."""
    sizes = Counter[str]()
    for each in changes:
        sizes[each.layer] += each.before - each.after
    kept = [each for each in changes if sizes[each.layer] >= LEAST]
    goes = {(each.layer, each.path) for each in kept if each.action == "remove"}
    below: dict[str, set[str]] = {}
    for layer in image.content.layers:
        for path in layer.files:
            below.setdefault(path, set()).add(layer.diff_id)
    for each in kept:
        stays = {at for at in below[each.path] if (at, each.path) not in goes}
        if each.action != "remove" or each.why == HIDDEN or not stays:
            yield each


def doubled(image: Image) -> dict[tuple[int, str], list[Library]]:
    """Return CUDA's libraries by machine and name: those that lie there twice; for the CPU, all."""
    found: dict[tuple[int, str], list[Library]] = {}
    hard = {entry.hard for layer in image.content.layers for entry in layer.files.values()}
    for each in image.content.libraries:
        entry = image.tree.files.get(each.path)
        # bytes with a second name stay; a path through a link is another file's
        apart = entry and not entry.hard and each.path not in hard
        elsewhere = "/stubs/" in each.path or waste.cache(each.path)
        if not (_is_nvidias(each) and apart and each.dynamic) or elsewhere:
            continue
        if image.tree.resolve(each.path) == each.path:
            name = each.dynamic.soname or each.name
            found.setdefault((each.dynamic.machine, name), []).append(each)
    return {key: each for key, each in found.items() if each[1:] or not image.gpu}


def _check(image: Image, gone: set[str]) -> None:
    with_code = [
        each
        for each in image.content.libraries
        if each.path not in gone and any(group.section not in each.stubs for group in each.groups)
    ]
    if image.gpu is None:
        if with_code:
            raise InputError(
                f"{with_code[0].path} holds code for GPUs, and none is named to keep it for",
                "name the GPU of the image: --gpu t4",
            )
        return
    own = [each for each in with_code if not _is_nvidias(each)]
    if not any(holding(each, image.gpu.capability) for each in own or with_code):
        raise CheckFailed(
            f"no library has code for {image.gpu.name} ({image.gpu.capability}): it would not run",
            "name the GPU that it is for, or take a release whose libraries hold code for this one",
        )


# --- files ----------------------------------------------------------------------------------------


def _unneeded(image: Image) -> Iterator[FileChange]:
    """Yield what no container sees, and caches. What shares its bytes with a file that stays does
    stay, and so does what would uncover a lower layer's folder, or lies below a link: in another
    folder, once it is unpacked."""
    layers, in_use = image.content.layers, _in_use(image)
    links = {path for layer in layers for path, at in layer.files.items() if at.link}
    goes: dict[tuple[str, str], str] = {}
    shown = set[tuple[str, str]]()  # an image may have a layer twice
    for layer, seen in visible(layers):
        for path in layer.files:
            at = layer.diff_id, path
            if not links.isdisjoint(_above(path)):
                shown.add(at)
            elif not seen(path):
                goes.setdefault(at, HIDDEN)
            else:
                shown.add(at)
                if (kind := waste.cache(path)) and not in_use(path, kind):
                    goes[at] = kind
    goes = {at: why for at, why in goes.items() if why != HIDDEN or at not in shown}
    stay, folders = set[str](), set[str]()
    for layer in layers:
        stay |= layer.files.keys() & folders
        folders |= layer.folders.keys()
        files = layer.files.items()
        stay |= {entry.hard for path, entry in files if (layer.diff_id, path) not in goes}
    for layer in layers:
        for path, entry in layer.files.items():
            if (why := goes.get((layer.diff_id, path))) and path not in stay:
                yield FileChange(layer.diff_id, path, "remove", why, entry.size, 0)


def _in_use(image: Image) -> Callable[[str, str], bool]:
    """Return what tells whether a file that looks like a cache's is needed.

    A link leads there (uv's link mode), a variable or the command names its folder, uv itself
    starts the program, or it is another folder of that name.
    """
    tree, config = image.tree, image.config
    words = [str(each) for key in ("Entrypoint", "Cmd") for each in config.get(key) or ()]
    starts_uv = any(posixpath.basename(word) in ("uv", "uvx") for word in words)
    for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
        words += image.environment.get(name, "").split(":")
    places = {word for word in words if word.startswith("/") and word != "/"}
    links = (path for path, at in tree.files.items() if at.link and not waste.cache(path))
    places |= {real for path in links if (real := tree.resolve(path))}

    def in_use(path: str, kind: str) -> bool:
        if path in places or not places.isdisjoint(_above(path)):
            return True
        root = _CACHED.split(path)[0]
        if kind.startswith("conda"):
            return f"{root}/conda-meta" not in tree.folders
        is_uvs = "/.cache/uv/" in path or f"{root}/CACHEDIR.TAG" in tree.files
        return kind.startswith("uv") and (starts_uv or not is_uvs)

    return in_use


def _above(path: str) -> Iterator[str]:
    """Yield the folders above a path, the highest first."""
    return itertools.accumulate(path.split("/")[1:-1], "{}/{}".format, initial="")


def _cuda(
    image: Image, programs: Mapping[str, Dynamic], left: dict[str, str]
) -> Iterator[FileChange]:
    """Yield CUDA's libraries that nothing loads: beside a copy that is loaded, or for the CPU."""
    groups = doubled(image)
    if not groups:
        return
    every = {each.path: each for copies in groups.values() for each in copies}
    taken, not_followed = loader.taken(image, every.keys(), programs)
    if not_followed:
        left |= dict.fromkeys(every, f"not followed: {not_followed}")
        return
    if not image.gpu and taken & every.keys():
        left |= dict.fromkeys(
            sorted(taken & every.keys()), "something loads it, so all of CUDA stays"
        )
        return
    removed = set[str]()
    for copies in groups.values():
        loaded = next((each.path for each in copies if each.path in taken), "")
        for each in copies:
            if each.path in taken or (image.gpu and not loaded):
                continue
            at = image.tree.layer[each.path]
            if image.gpu:
                yield FileChange(at, each.path, "link", SECOND, each.size, 0, loaded)
            else:
                removed.add(each.path)
                yield FileChange(at, each.path, "remove", FOR_A_CPU, each.size, 0)
    for path, entry in image.tree.files.items():
        if entry.link and image.tree.resolve(path) in removed:
            yield FileChange(image.tree.layer[path], path, "remove", FOR_A_CPU, 0, 0)


# --- device code ----------------------------------------------------------------------------------


def _pruned(
    image: Image, gpu: Gpu, nvidia: bool, gone: set[tuple[str, str]], left: dict[str, str]
) -> Iterator[FileChange]:
    """Yield the libraries that hold code of other GPUs. left: gets those that stay as they are."""
    merged = {each.path: each for each in image.content.libraries}
    for layer, seen in visible(image.content.layers):
        names: dict[str, list[str]] = {}
        for path, entry in layer.files.items():
            names.setdefault(entry.hard or path, []).append(path)
        for each in layer.libraries:
            paths = [path for path in names.get(each.path, ()) if path in merged and seen(path)]
            if (layer.diff_id, each.path) in gone or not paths:
                continue
            library = merged[paths[0]]
            kept = "NVIDIA's, pruned with --nvidia alone" if _is_nvidias(library) else ""
            why = library.broken or library.doubt or kept * (not nvidia)
            size = prunable(library, gpu.capability)
            if why and (size or library.broken or library.doubt):
                left[paths[0]] = why
            elif size:
                after = each.size - size
                yield FileChange(layer.diff_id, each.path, "prune", OTHER_GPUS, each.size, after)


def _is_nvidias(library: Library) -> bool:
    return library.package.startswith(NVIDIA) or bool(waste.CUDA.match(library.name))


def prunable(library: Library, device: ComputeCapability) -> int:
    """Return the bytes that builder/devicecode/pruning/prune.py takes out of a library."""
    size = 0
    for section in (COMPILED, LINK_INPUT):
        groups = [_container(group) for group in library.groups if group.section == section]
        entries = [(each, stays(each, group, device)) for group in groups for each in group.entries]
        if any(kept for _, kept in entries):
            size += sum(each.size for each, kept in entries if not kept)
    return size


def _container(group: Group) -> Container:
    entries = (
        Entry(0, target.kind, target.architecture, _FLAGS[target.suffix], 0, stored, 0, 0)
        for target, stored in zip(group.targets, group.stored, strict=True)
    )
    return Container(group.section, 0, 0, tuple(entries))
