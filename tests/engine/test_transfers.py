"""What an engine says while it pushes or pulls."""

from __future__ import annotations

from typing import Any

import pytest

from builder.engine.docker import TransferRefused, follow


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
        layer("cc", "Mounted from training"),
    ]
    assert follow(stream, "Pushing", lambda current, total: seen.append((current, total))) == 1600
    assert seen == [(512, 1000), (1212, 1600), (1600, 1600)]


@pytest.mark.parametrize("error", [{"error": "denied"}, {"errorDetail": {"message": "denied"}}])
def test_a_failure_stands_in_the_stream(error: dict[str, Any]) -> None:
    with pytest.raises(TransferRefused, match=r"^denied$"):
        follow([layer("aa", "Pushing", 1, 2), error], "Pushing", lambda *_: None)
