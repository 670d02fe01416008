"""What a check of the surroundings found, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. state: "bad" prevents the work, "note" does not."""

    name: str
    state: State
    seen: str
    remedy: str = ""
