"""The body of a request that is a file: its bytes are checked while they are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from builder.core.errors import CheckFailed
from builder.registry.manifests import Descriptor

_PIECE: Final = 1 << 18


@dataclass(frozen=True)
class FileBody:
    """A blob in a file. It can be sent again: each time it is read from its start.

    sent: called with the number of bytes that were given out.
    """

    path: Path
    blob: Descriptor
    sent: Callable[[int], object]

    def __len__(self) -> int:
        return self.blob.size

    def __iter__(self) -> Iterator[bytes]:
        """The pieces. The last one is only given out where all have the blob's digest, so that a
        registry never gets other bytes whole. Raises CheckFailed where they have not."""
        seen = hashlib.sha256()
        with self.path.open("rb") as file:
            while piece := file.read(_PIECE):
                seen.update(piece)
                if file.tell() >= self.blob.size:
                    break
                yield piece
                self.sent(file.tell())
        if f"sha256:{seen.hexdigest()}" != self.blob.digest:
            raise CheckFailed(
                f"{self.path}: its bytes are not those of {self.blob.digest}",
                "remove this file: it is made or fetched again",
            )
        yield piece
        self.sent(self.blob.size)
