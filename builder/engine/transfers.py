"""What an engine tells of a pull or a push: its stream of messages.

The engine's answer is 200 before anything is transferred, so a failure stands in the stream alone
(docker-py#3277). Each message is a JSONMessage of Docker's API: `status` and, for a layer, its `id`
and `progressDetail`; or `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_MOVING: Final = ("Downloading", "Pushing")


class Refused(Exception):  # noqa: N818 - the engine's answer, which the caller makes an error of
    """The engine ended the transfer. Its text is what the engine said."""


@dataclass(frozen=True)
class Told:
    """One message. layer: the engine's short id, "" for words about the whole transfer.

    total: bytes of the layer, 0 where the engine does not say.
    """

    status: str
    layer: str = ""
    total: int = 0


def told(
    stream: Iterable[Mapping[str, Any]], progress: Callable[[int, int], object] = lambda *_: None
) -> Iterator[Told]:
    """The messages of a transfer, as they come.

    progress: called with the bytes of all layers so far, and of those that are known. Raises
    Refused.
    """
    amounts: dict[str, tuple[int, int]] = {}
    for message in stream:
        if error := message.get("error") or message.get("errorDetail"):
            raise Refused(error.get("message", "") if isinstance(error, Mapping) else str(error))
        status, layer = str(message.get("status") or ""), str(message.get("id") or "")
        detail = message.get("progressDetail") or {}
        total = int(detail.get("total") or 0) if status in _MOVING else 0
        if layer and total:
            amounts[layer] = (int(detail.get("current") or 0), total)
            current, whole = (sum(column) for column in zip(*amounts.values(), strict=True))
            progress(min(current, whole), whole)
        yield Told(status, layer, total)
