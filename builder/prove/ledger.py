"""What a proof used, each beside its limit: a receipt shows that nothing went on without an end."""

from __future__ import annotations

from dataclasses import dataclass, field

from builder.prove.receipts import Spent
from builder.reading import tars
from builder.reading.images import ImageContent


@dataclass
class Ledger:
    """The most that one container, or one layer, used of each."""

    _most: dict[str, Spent] = field(default_factory=dict)

    def note(self, what: str, used: float, limit: float) -> None:
        """Take over what was used now, unless there was more before."""
        before = self._most.get(what)
        if before is None or used > before.used:
            self._most[what] = Spent(what=what, used=round(used, 1), limit=limit)

    def read(self, content: ImageContent) -> None:
        """Take over what the layers of an image unpacked to."""
        for layer in content.layers:
            size = sum(entry.size for entry in layer.files.values())
            self.note("bytes of a layer's files", size, tars.UNPACKED)
            self.note("entries of a layer", len(layer.files) + len(layer.folders), tars.MOST)

    @property
    def rows(self) -> tuple[Spent, ...]:
        return tuple(self._most.values())
