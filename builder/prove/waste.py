"""Where the bytes of an image go that no container needs, and which step of its build made them.

A layer keeps what a later one deletes or writes again. Sizes are unpacked bytes; no byte is counted
twice. The line of a layer is that of the image's history, "" where the history does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from builder.core.errors import FactoryError
from builder.devicecode.images import ImageContent
from builder.devicecode.layers import Layer, visible
from builder.devicecode.library import Library
from builder.devicecode.pruning.fatbin import LINK_INPUT
from builder.devicecode.pruning.rule import ComputeCapability, choose
from builder.registry import manifests

_SAME_STEP: Final = "in the same RUN"
_KINDS: Final = (
    (r"/\.cache/pip/", "pip's cache", "pip install --no-cache-dir"),
    (
        r"/\.cache/uv/",
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
    (r"\.a$", "static libraries", f"delete them {_SAME_STEP}: no program opens them"),
)
"""Files that no container needs: a pattern of their paths, what they are, how to be without."""
_AGAIN: Final = "written again", "give owner and rights where it is written first (COPY --chown)"
_DELETED: Final = "deleted later", f"delete it {_SAME_STEP} that wrote it"
_OTHER_GPUS: Final = (
    "device code of other GPUs",
    "take wheels for this GPU, or let the factory build the base with `prune: all`",
)


@dataclass(frozen=True)
class Waste:
    """Bytes of one kind in one layer. line: the step that made them; example: the largest file;
    fix: how to be without them."""

    kind: str
    size: int
    files: int
    layer: str
    line: str
    example: str
    fix: str

    def __str__(self) -> str:
        line = f" by {' '.join(self.line.split())[:120]}" if self.line else ""
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
    line = _lines(content.layers, content.configuration)
    wasted = [
        Waste(
            kind,
            sum(sizes.values()),
            len(sizes),
            layer,
            line.get(layer, ""),
            max(sizes, key=lambda path: sizes[path]),
            fix,
        )
        for (kind, layer, fix), sizes in rows.items()
    ]
    return tuple(sorted(wasted, key=lambda waste: -waste.size))


def lines(wasted: Sequence[Waste]) -> Iterator[str]:
    """Yield the largest for people, and their sum."""
    shown = [waste for waste in wasted if waste.size >= 1_000_000]
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
    for layer, seen in visible(content.layers):
        kept = {entry.hard for path, entry in layer.files.items() if entry.hard and not _kind(path)}
        for path, entry in layer.files.items():
            if not seen(path):
                size, upper = above.get(path, (-1, ""))
                again = size == entry.size
                yield (
                    path,
                    entry.size,
                    upper if again else layer.diff_id,
                    (_AGAIN if again else _DELETED),
                )
            elif (kind := _kind(path)) and path not in kept:
                yield path, entry.size, layer.diff_id, kind
            elif device and path in libraries:
                yield path, _for_others(libraries[path], device), layer.diff_id, _OTHER_GPUS
        above |= {path: (entry.size, layer.diff_id) for path, entry in layer.files.items()}


def _kind(path: str) -> tuple[str, str] | None:
    return next(((kind, fix) for pattern, kind, fix in _KINDS if re.search(pattern, path)), None)


def _for_others(library: Library, device: ComputeCapability) -> int:
    """Return the bytes of kernels beside those that a device takes."""
    size = 0
    for group in library.groups:
        picked = choose(group.targets, device) if group.section != LINK_INPUT else None
        if picked:
            size += sum(group.stored) - group.stored[group.targets.index(picked)]
    return size


def _lines(layers: Sequence[Layer], configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return the line of the history that made each layer, where there is one for each."""
    try:
        history = manifests.history(configuration)
    except FactoryError:
        return {}
    if len(history) != len(layers):
        return {}
    return {layer.diff_id: line for layer, line in zip(layers, history, strict=True)}
