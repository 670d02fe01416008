"""Where the bytes of an image go that no container needs, and which step of its build made them.

A layer keeps what a later one deletes or writes again. Sizes are unpacked bytes; no byte is counted
twice. The line of a layer is that of the image's history, "" where the history does not fit.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from builder.core.errors import FactoryError
from builder.devicecode.library import Library
from builder.devicecode.pruning.fatbin import LINK_INPUT
from builder.devicecode.pruning.rule import ComputeCapability, choose
from builder.reading.images import ImageContent
from builder.reading.layers import visible
from builder.registry import manifests

LONGEST: Final = 200
"""Characters of a line of the history that are shown."""
_SAME_STEP: Final = "in the same RUN"
_CACHES: Final = (
    (r"/\.cache/pip/", "pip's cache", "pip install --no-cache-dir"),
    (r"/\.cache/pypoetry/", "Poetry's cache", f"poetry cache clear --all . {_SAME_STEP}"),
    (r"/\.npm/_cacache/", "npm's cache", f"npm cache clean --force {_SAME_STEP}"),
    (
        r"/\.cache/uv/|/(archive|builds|sdists|simple|wheels)-v\d+/",  # wherever UV_CACHE_DIR leads
        "uv's cache",
        "set UV_NO_CACHE=1, or mount the cache (RUN --mount=type=cache)",
    ),
    (
        r"/((mini|ana)?(conda|forge|mamba)\d?|opt/\w+)/pkgs/",
        "conda's cache",
        f"conda clean --all --yes {_SAME_STEP}",
    ),
    (
        r"^/var/(lib/apt/lists|cache/(apt|dnf|yum|apk))/",
        "the system's packages",
        f"apt-get clean && rm -rf /var/lib/apt/lists/* {_SAME_STEP}",
    ),
)
"""Files that no container needs: a pattern of their paths, what they are, how to be without."""
_STATIC: Final = (
    r"^(?!/usr/lib/(gcc|x86_64-linux-gnu)/).*\.a$",  # Triton's gcc links with libgcc.a
    "static libraries",
    f"delete them {_SAME_STEP}: no program opens them",
)
_AGAIN: Final = "written again", "give owner and rights where it is written first (COPY --chown)"
_COPIED: Final = "copies of a library", "link to the library that is there (ln -s)"
_DELETED: Final = "deleted later", f"delete it {_SAME_STEP} that wrote it"
_OTHER_GPUS: Final = (
    "device code of other GPUs",
    "take wheels for this GPU, or let the factory build the base with `prune: all`",
)
_FOR_A_CPU: Final = (
    "CUDA in an image for the CPU",
    "take the framework's wheels for the CPU; or name the GPU that it is for with --gpu",
)
CUDA: Final = re.compile(r"lib(cu(blas|dart|dnn|fft|pti|rand|solver|sparse)|nccl|nvJitLink|nvrtc)")


@dataclass(frozen=True)
class Waste:
    """Bytes of one kind in one layer."""

    kind: str
    size: int
    files: int
    layer: str
    line: str
    """The step that made them."""
    example: str
    """The largest file."""
    fix: str

    def __str__(self) -> str:
        line = f" by {self.line}" if self.line else ""
        return (
            f"{self.size / 1e6:>9,.1f} MB  {self.kind}: {self.files} files such as {self.example} "
            f"in layer {self.layer[7:19]}{line}; {self.fix}"
        )


def of_image(content: ImageContent, device: ComputeCapability | None) -> tuple[Waste, ...]:
    """Return what could be saved, the largest first. device: None where no GPU was named."""
    rows: dict[tuple[str, str, str], dict[str, int]] = {}
    for path, size, layer, (kind, fix) in _files(content, device):
        if size:
            rows.setdefault((kind, layer, fix), {})[path] = size
    line = lines_of(content)
    wasted = []
    for (kind, layer, fix), sizes in rows.items():
        total, example = sum(sizes.values()), max(sizes, key=lambda path: sizes[path])
        wasted.append(Waste(kind, total, len(sizes), layer, line[layer], example, fix))
    return tuple(sorted(wasted, key=lambda waste: -waste.size))


def largest(wasted: Sequence[Waste]) -> tuple[Waste, ...]:
    return tuple(waste for waste in wasted if waste.size >= 1_000_000)


def lines(wasted: Sequence[Waste]) -> Iterator[str]:
    shown = largest(wasted)
    if shown:
        total = sum(waste.size for waste in wasted)
        yield f"{total / 1e6:,.1f} MB of the unpacked image could be saved:"
    yield from map(str, shown)


def _files(
    content: ImageContent, device: ComputeCapability | None
) -> Iterator[tuple[str, int, str, tuple[str, str]]]:
    """Yield path, bytes, layer, and kind with fix, of each file that could go or shrink."""
    above: dict[str, tuple[int, str]] = {}  # size and layer of the file that is next above
    libraries = {library.path: library for library in content.libraries}
    copies = _copies(content)
    for layer, seen in visible(content.layers):
        kept = {at.hard for path, at in layer.files.items() if seen(path) and not _kind(path)}
        for path, entry in layer.files.items():
            if path in kept:  # its bytes have another name, which stays
                continue
            if not seen(path) and not _kind(path):
                size, upper = above.get(path, (-1, ""))
                if size == entry.size:
                    yield path, size, upper, _AGAIN
                else:
                    yield path, entry.size, layer.diff_id, _DELETED
            elif kind := _kind(path):
                yield path, entry.size, layer.diff_id, kind
            elif path in copies:
                yield path, libraries[path].size, layer.diff_id, _COPIED
            elif path in libraries and not device:
                if libraries[path].groups or CUDA.match(libraries[path].name):
                    yield path, libraries[path].size, layer.diff_id, _FOR_A_CPU
            elif device and path in libraries:
                yield path, _for_others(libraries[path], device), layer.diff_id, _OTHER_GPUS
        above |= {path: (entry.size, layer.diff_id) for path, entry in layer.files.items()}


def _copies(content: ImageContent) -> set[str]:
    """Return the libraries that hold the bytes of another one, which a lower layer has."""
    place: dict[str, int] = {}
    for number, layer in enumerate(content.layers):
        place |= dict.fromkeys(layer.files, number)
    originals: dict[str, str] = {}
    ordered = sorted(content.libraries, key=lambda library: (place[library.path], library.path))
    return {
        library.path
        for library in ordered
        if library.sha256 and originals.setdefault(library.sha256, library.path) != library.path
    }


def cache(path: str) -> str:
    """Return which package manager's cache a file belongs to; "" where to none."""
    return next((kind for pattern, kind, _ in _CACHES if re.search(pattern, path)), "")


def _kind(path: str) -> tuple[str, str] | None:
    kinds = (*_CACHES, _STATIC)
    return next(((kind, fix) for pattern, kind, fix in kinds if re.search(pattern, path)), None)


def _for_others(library: Library, device: ComputeCapability) -> int:
    """Return the bytes of kernels beside those that a device takes."""
    size = 0
    for group in library.groups:
        picked = choose(group.targets, device) if group.section != LINK_INPUT else None
        if picked:
            size += sum(group.stored) - group.stored[group.targets.index(picked)]
    return size


def lines_of(content: ImageContent) -> dict[str, str]:
    """Return the line of the history that made each layer, on one line and cut off where it is
    long; "" where there is not one for each."""
    try:
        steps = manifests.history(content.configuration)
        history = tuple(textwrap.shorten(step, LONGEST, placeholder=" ...") for step in steps)
    except FactoryError:
        history = ()
    layers = [layer.diff_id for layer in content.layers]
    fits = len(history) == len(layers)
    return dict(zip(layers, history if fits else [""] * len(layers), strict=True))
