"""The stream of messages of a pull or a push."""

from __future__ import annotations

from typing import Any

import pytest

from builder.engine.transfers import Message, TransferRefused, messages


def layer(name: str, status: str, current: int = 0, total: int = 0) -> dict[str, Any]:
    """A message about a layer, as the engine sends it."""
    detail = {"current": current, "total": total} if total else {}
    return {"id": name, "status": status, "progressDetail": detail}


def test_the_bytes_of_all_layers_are_summed() -> None:
    seen: list[tuple[int, int]] = []
    stream = [
        {"status": "The push refers to repository [127.0.0.1:5000/training]"},
        layer("aa", "Pushing", 512, 1000),
        layer("bb", "Pushing", 700, 600),  # the engine counts what tar adds
        layer("aa", "Pushing", 1000, 1000),
        layer("aa", "Pushed"),
        layer("aa", "Extracting", 5, 10),  # of a pull: no byte travels
    ]
    received = list(messages(stream, lambda current, total: seen.append((current, total))))
    assert seen == [(512, 1000), (1212, 1600), (1600, 1600)]
    assert received[0] == Message("The push refers to repository [127.0.0.1:5000/training]")
    assert received[1] == Message("Pushing", "aa", 1000)
    assert received[-2:] == [Message("Pushed", "aa"), Message("Extracting", "aa")]


@pytest.mark.parametrize(
    "message",
    [
        {"error": "denied", "errorDetail": {"message": "denied"}},
        {"errorDetail": {"message": "denied"}},
    ],
)
def test_a_failure_stands_in_the_stream(message: dict[str, Any]) -> None:
    with pytest.raises(TransferRefused, match=r"^denied$"):
        list(messages([layer("aa", "Pushing", 1, 2), message]))
