"""The files that a container of an image would see, by path, with links followed."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from builder.devicecode.layers import Entry, Layer, visible

_LINKS: Final = 40
"""Links that Linux follows on the way to one file (path_resolution(7))."""
_FOLDER: Final = Entry(0, 0o755, 0, 0)


class Tree:
    """The files of these layers, the lowest first.

    files, folders: by path; a folder that no layer describes has the rights that an unpacked one
    gets. layer: the diff id of the layer that has a file. hooks: see `Layer`.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.files: dict[str, Entry] = {}
        self.folders: dict[str, Entry] = {}
        self.layer: dict[str, str] = {}
        self.hooks: dict[str, str] = {}
        for layer, seen in visible(layers):
            present = {path: entry for path, entry in layer.files.items() if seen(path)}
            self.files |= present
            self.layer |= dict.fromkeys(present, layer.diff_id)
            hooks = {path: layer.hooks.get(at.hard or path, "") for path, at in present.items()}
            self.hooks |= {path: lines for path, lines in hooks.items() if lines}
            folders = {path: entry for path, entry in layer.folders.items() if seen(path)}
            self.folders = folders | self.folders
        for path in (*self.files, *self.folders):
            for parent in PurePosixPath(path).parents:
                self.folders.setdefault(str(parent), _FOLDER)
        self.folders.setdefault("/", _FOLDER)  # an image may have no file

    def resolve(self, path: str) -> str | None:
        """Return where a path leads once every link is followed, None where nothing is there."""
        at, rest, links = "/", path.split("/"), 0
        while rest:
            at = posixpath.normpath(posixpath.join(at, rest.pop(0)))
            entry = self.files.get(at)
            if entry and entry.link:
                links += 1
                if links > _LINKS:
                    return None
                rest = [*entry.link.split("/"), *rest]
                at = "/" if entry.link.startswith("/") else posixpath.dirname(at)
        return at if at in self.files or at in self.folders else None

    def named(self, name: str) -> Iterator[str]:
        """Yield the files of this name, wherever they lie."""
        return (path for path in self.files if path.endswith(f"/{name}"))

    def program(self, word: str, search: str, folder: str = "/") -> str | None:
        """Return the file that a command starts. search: PATH; folder: where it is started."""
        places = [folder] if "/" in word else search.split(":")
        files = (self.resolve(posixpath.join(place, word)) for place in places)
        return next((file for file in files if file in self.files), None)
