"""The secrets in a layer: files that look like one, unless a package installed them as they are."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import IO, Final

from builder.core import confidential
from builder.devicecode import records

Secrets = tuple[tuple[str, str], ...]
"""Path and kind of each secret."""

_SUMS: Final = re.compile(r"/var/lib/dpkg/(info|status\.d)/[^/]+\.md5sums$")
"""Where dpkg, and distroless images, keep the MD5 of each file that a package brought."""


class Search:
    """Looks into the files of one layer, one after the other.

    A file that a wheel installed is public as long as it has the size that RECORD gives it, one of
    a Debian package as long as it has its checksum.
    """

    def __init__(self) -> None:
        self._suspects: dict[str, tuple[str, int, str]] = {}
        self._public: dict[str, int] = {}
        self._sums: dict[str, str] = {}

    def look_into(self, path: str, file: IO[bytes], size: int) -> bytes:
        """Return the content of a file that may be a secret or a record; b"" of a larger one."""
        if records.is_record(path):
            text = file.read(records.LARGEST)
            site = PurePosixPath(path).parent.parent
            for name, _, recorded in records.rows_of(text.decode("utf-8", "replace")):
                self._public[str(site / name)] = recorded
            return text
        if _SUMS.search(path):
            text = file.read(records.LARGEST)
            for line in text.decode("utf-8", "replace").splitlines():
                checksum, _, name = line.partition("  ")
                self._sums[f"/{name}"] = checksum
            return text
        content = file.read() if size <= confidential.READ_AT_MOST else b""
        if "/__pycache__/" not in path and (kind := confidential.secret(path, content)):
            self._suspects[path] = kind, size, hashlib.md5(content).hexdigest()
        return content

    def secrets(self) -> Secrets:
        """Return what was found, once every file of the layer was looked into."""
        return tuple(
            (path, kind)
            for path, (kind, size, checksum) in sorted(self._suspects.items())
            if self._public.get(path) != size
            # where /lib is a link to /usr/lib, a package may name the file by the link
            and checksum not in (self._sums.get(path), self._sums.get(path.removeprefix("/usr")))
        )
