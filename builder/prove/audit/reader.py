"""What reading from an engine and from a registry share: the reader's files, its JSON, a stream."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from builder import devicecode
from builder.devicecode.inventory import Group, Library
from builder.devicecode.pruning.fatbin import Target


@cache
def program() -> Mapping[str, bytes]:
    """The files of builder/devicecode, by their path below that folder."""
    folder = Path(devicecode.__file__).parent
    files = sorted(folder.rglob("*.py"))
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def as_library(value: Mapping[str, Any]) -> Library:
    """A Library from the JSON of its fields."""
    groups = tuple(
        Group(
            group["section"],
            tuple(Target(*one) for one in group["targets"]),
            group["containers"],
            tuple(group["stored"]),
            tuple(group["code"]),
        )
        for group in value["groups"]
    )
    return Library(
        **{**value, "groups": groups, "stub_sections": frozenset(value["stub_sections"])}
    )


class Chunks(io.BufferedIOBase):
    """Chunks of bytes as a file that is read once, from front to back."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = sys.maxsize if size is None or size < 0 else size
        parts: list[memoryview] = []
        while wanted:
            if not self._rest:
                chunk = next(self._chunks, None)
                if chunk is None:
                    break
                self._rest = memoryview(chunk)
                continue
            part, self._rest = self._rest[:wanted], self._rest[wanted:]
            wanted -= len(part)
            parts.append(part)
        return b"".join(parts)

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)
