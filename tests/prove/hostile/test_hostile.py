"""What `builder prove` says of hostile images: a verdict or an error, in words that are its own."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder import cli
from builder.cli.group import app
from builder.core.display import Lines
from builder.core.errors import FactoryError, InputError
from builder.reading import tars

from . import COMMANDS, IMAGES, MOVES

HANGS = 120
"""Seconds after which a test counts as hung; none takes a tenth of it."""


@pytest.fixture(autouse=True)
def _bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def hung(*_: object) -> None:
        raise TimeoutError("it hangs")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tars, "FREE", 1 << 26)  # a bomb is read up to there
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


def test_an_error_has_no_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What refuses a library names it, on one line; several mistakes of a file have a line each."""
    library = tmp_path / "lib" / "libx\nsecrets passed forged.so"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF")
    monkeypatch.setattr("sys.argv", ["builder", "audit", str(library.parent), "--gpu", "v100"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    words = capsys.readouterr().err
    assert ended.value.code == 4 and "?secrets passed forged.so" in words
    assert not [each for each in words.splitlines() if each.startswith("secrets")]
    code, lines = cli._explained(InputError(Lines.of(["a:1: x", "a:2: y\nforged"]), "mend\nforged"))
    assert (code, lines) == (2, ["error: a:1: x\na:2: y?forged", "fix:   mend?forged"])
