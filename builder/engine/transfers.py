"""The messages with which an engine reports a pull or a push.

The engine answers 200 before it transfers anything, so only this stream reports a failure
(docker-py#3277). Each message is a JSONMessage of Docker's API: `status` and, for a layer, its `id`
and `progressDetail`; or `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_MOVING: Final = ("Downloading", "Pushing")


class TransferRefused(Exception):  # noqa: N818 - the engine's answer, of which a caller makes an error
    """The engine ended the transfer; the text is the engine's."""


@dataclass(frozen=True)
class Message:
    """One message. layer: the engine's short id, "" in a message about the whole transfer.

    total: bytes of the layer, 0 where the engine does not say.
    """

    status: str
    layer: str = ""
    total: int = 0


def messages(
    stream: Iterable[Mapping[str, Any]], progress: Callable[[int, int], object] = lambda *_: None
) -> Iterator[Message]:
    """Yield the messages of a transfer as they come.

    progress: called with the bytes of all layers so far, and of those that are known. Raises
    TransferRefused.
    """
    amounts: dict[str, tuple[int, int]] = {}
    for message in stream:
        if error := message.get("error") or message.get("errorDetail"):
            text = error.get("message", "") if isinstance(error, Mapping) else str(error)
            raise TransferRefused(text)
        status, layer = str(message.get("status") or ""), str(message.get("id") or "")
        detail = message.get("progressDetail") or {}
        total = int(detail.get("total") or 0) if status in _MOVING else 0
        if layer and total:
            amounts[layer] = (int(detail.get("current") or 0), total)
            current, whole = (sum(column) for column in zip(*amounts.values(), strict=True))
            progress(min(current, whole), whole)
        yield Message(status, layer, total)
