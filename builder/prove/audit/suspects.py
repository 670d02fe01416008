"""Which files of a layer are secrets: what looks like one, unless a wheel installed it as it is."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO

from builder.core import confidential
from builder.devicecode import records


@dataclass(frozen=True)
class LayerSecret:
    """A secret in a layer of an image. kind: what it is. layer: the layer's digest."""

    path: str
    kind: str
    layer: str

    def __str__(self) -> str:
        return f"layer {self.layer[:19]} holds {self.kind}: {self.path}"


@dataclass
class Suspects:
    """The files of one layer that may be secrets, while it is read.

    A file that a wheel installed is public as long as it has the size that RECORD gives it.
    """

    _found: dict[str, tuple[str, int]] = field(default_factory=dict)
    _public: dict[str, int] = field(default_factory=dict)

    def look_into(self, path: str, file: IO[bytes], size: int) -> bytes:
        """The content of a file that may be a secret or a record; b"" of a larger one."""
        if records.is_record(path):
            text = file.read(records.LARGEST)
            site = PurePosixPath(path).parent.parent
            for row in csv.reader(text.decode("utf-8", "replace").replace("\0", "").splitlines()):
                if len(row) == 3 and row[2].isdecimal() and row[2].isascii():
                    self._public[str(site / row[0])] = int(row[2])
            return text
        content = file.read() if size <= confidential.READ_AT_MOST else b""
        if "/__pycache__/" not in path and (kind := confidential.secret(path, content)):
            self._found[path] = kind, size
        return content

    def secrets(self) -> tuple[tuple[str, str], ...]:
        """Path and kind of each secret, once every file of the layer was looked into."""
        return tuple(
            (path, kind)
            for path, (kind, size) in sorted(self._found.items())
            if self._public.get(path) != size
        )
