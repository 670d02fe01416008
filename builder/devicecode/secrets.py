"""The secrets in a layer: files that look like one, unless a wheel installed them as they are."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import IO

from builder.core import confidential
from builder.devicecode import records

Secrets = tuple[tuple[str, str], ...]
"""Path and kind of each secret."""


class Search:
    """Looks into the files of one layer, one after the other.

    A file that a wheel installed is public as long as it has the size that RECORD gives it.
    """

    def __init__(self) -> None:
        self._suspects: dict[str, tuple[str, int]] = {}
        self._public: dict[str, int] = {}

    def look_into(self, path: str, file: IO[bytes], size: int) -> bytes:
        """Return the content of a file that may be a secret or a record; b"" of a larger one."""
        if records.is_record(path):
            text = file.read(records.LARGEST)
            site = PurePosixPath(path).parent.parent
            for name, _, recorded in records.rows_of(text.decode("utf-8", "replace")):
                self._public[str(site / name)] = recorded
            return text
        content = file.read() if size <= confidential.READ_AT_MOST else b""
        if "/__pycache__/" not in path and (kind := confidential.secret(path, content)):
            self._suspects[path] = kind, size
        return content

    def secrets(self) -> Secrets:
        """Return what was found, once every file of the layer was looked into."""
        return tuple(
            (path, kind)
            for path, (kind, size) in sorted(self._suspects.items())
            if self._public.get(path) != size
        )
