"""What `builder prove` says of hostile images: a verdict or an error, in words that are its own."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli.group import app
from builder.core.errors import FactoryError

from . import COMMANDS, IMAGES, MOVES

HANGS = 120
"""Seconds after which a test counts as hung; none takes a tenth of it."""


@pytest.fixture(autouse=True)
def _bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def hung(*_: object) -> None:
        raise TimeoutError("it hangs")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HANGS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", IMAGES)
def test_it_gets_a_verdict_or_an_error_and_commands_nothing(name: str, tmp_path: Path) -> None:
    path, page = tmp_path / "image.tar", tmp_path / "page.html"
    path.write_bytes(IMAGES[name].archive())
    arguments = ["prove", str(path), "--gpu", "v100", "--github", "--html", str(page)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, FactoryError | SystemExit | None), result.exception
    words = result.output
    if isinstance(result.exception, FactoryError):
        words += "\n".join((result.exception.message, result.exception.fix or ""))
    assert re.search(IMAGES[name].says, words), words[-2000:]
    shown = result.output
    assert not COMMANDS.search(shown) and not MOVES.search(shown)
    assert "forged" not in "".join(re.findall(r"^::error::.*|^\S+ +passed +forged", shown, re.M))
    if page.exists():
        text = page.read_text()
        assert "<script>alert" not in text and "<img" not in text and not MOVES.search(text)


@pytest.mark.parametrize("name", [name for name in IMAGES if "the name of" in name])
@pytest.mark.parametrize("form", ["--json", "--sarif"])
def test_data_has_the_same_words_and_is_whole(name: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(IMAGES[name].archive())
    result = CliRunner().invoke(app, ["prove", str(path), "--gpu", "v100", form])
    assert not MOVES.search(result.stdout)
    assert json.loads(result.stdout)
