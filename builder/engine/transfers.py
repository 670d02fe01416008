"""What an engine says while it pulls or pushes an image.

It answers 200 before it transfers anything, so only this stream reports a failure (docker-py#3277).
Each message is a JSONMessage of Docker's API: `status` and, for a layer, its `id` and
`progressDetail`; or `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


class TransferRefused(Exception):  # noqa: N818 - the engine's answer, of which a caller makes an error
    """The engine ended the transfer; the text is the engine's."""


def follow(stream: Iterable[Mapping[str, Any]], progress: Callable[[int, int], object]) -> int:
    """Follow a pull or a push to its end; return the bytes of the layers that were pushed.

    progress: called with the bytes of all layers so far, and of those that are known. Raises
    TransferRefused.
    """
    sent: dict[str, int] = {}
    totals: dict[str, int] = {}
    for message in stream:
        if error := message.get("error") or message.get("errorDetail"):
            raise TransferRefused(error["message"] if isinstance(error, Mapping) else str(error))
        layer, detail = str(message.get("id") or ""), message.get("progressDetail") or {}
        if (
            message.get("status") == "Pushing"
            and layer
            and (total := int(detail.get("total") or 0))
        ):
            sent[layer], totals[layer] = int(detail.get("current") or 0), total
            whole = sum(totals.values())
            progress(min(sum(sent.values()), whole), whole)
    return sum(totals.values())
