"""A package that an index has as source alone: copied into a wheel, or refused, and never run."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping

import pytest

from builder.config import pins, sources
from builder.config.pins import Pin
from builder.config.sources import NotPlainError
from builder.image import wheel

INFO = "Metadata-Version: 1.1\nName: some-thing\nVersion: 2.3\n\nWords.\n"
PLAIN = {
    "PKG-INFO": INFO,
    "setup.py": "raise SystemExit('nobody runs this')",
    "src/some_thing.egg-info/PKG-INFO": INFO,
    "src/some_thing.egg-info/top_level.txt": "tests\nsome_thing\nalone\nqueue\n",
    "src/some_thing.egg-info/requires.txt":
        'six\n\n[:python_version<"3.5"]\ntyping>=3\n\n[test]\nmock\n',
    "src/some_thing.egg-info/entry_points.txt": "[console_scripts]\nthing = some_thing:main\n",
    "src/some_thing/__init__.py": "def main(): pass\n",
    "src/some_thing/data/words.txt": "a b\n",
    "src/some_thing/.hidden": "",
    "src/alone.py": "",
    "src/queue/__init__.py": "",
    "tests/test_it.py": "",
    "some_thing/not_this.py": "",
}  # fmt: skip


def tar(files: Mapping[str, str]) -> bytes:
    """An sdist with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"some-thing-2.3/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def zipped(files: Mapping[str, str]) -> bytes:
    """The same as a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"some-thing-2.3/{name}", text)
    return buffer.getvalue()


def made(files: Mapping[str, str]) -> sources.MadeWheel:
    return sources.wheel_of("some-thing", "2.3", tar(files))


def test_a_plain_source_is_a_wheel_that_installs() -> None:
    result = made(PLAIN)
    assert result == sources.wheel_of("some-thing", "2.3", zipped(PLAIN)), "the same bytes"
    installed = wheel.installed(io.BytesIO(result.content), "some-thing", "3.11")
    site = "opt/venv/lib/python3.11/site-packages/"
    info = f"{site}some_thing-2.3.dist-info/"
    assert {path.removeprefix(site) for path in installed if not path.startswith(info)} == {
        "some_thing/__init__.py", "some_thing/data/words.txt", "alone.py", "opt/venv/bin/thing",
    }  # fmt: skip
    assert result.requires == (
        "six", 'typing>=3 ; python_version<"3.5"', 'mock ; extra == "test"'
    )  # fmt: skip
    metadata = installed[f"{info}METADATA"].content().decode()
    assert "\nRequires-Dist: six\n" in metadata and metadata.endswith("\n\nWords.\n")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"setup.py": "setup(ext_modules=[Extension('a', ['a.c'])])"}, "built (ext_modules)"),
        ({"pyproject.toml": '[build-system]\nbuild-backend = "maturin"'}, "built (maturin)"),
        ({"src/some_thing/fast.pyx": ""}, "compiled (some_thing/fast.pyx)"),
        ({"src/some_thing.egg-info/PKG-INFO": INFO.replace("2.3", "2.4")}, "not say its version"),
        ({"src/some_thing.egg-info/top_level.txt": "other"}, "not say which modules"),
        ({"src/some_thing.egg-info/top_level.txt": "../../etc"}, "not say which modules"),
    ],
)
def test_what_has_to_be_run_is_refused(changed: dict[str, str], why: str) -> None:
    with pytest.raises(NotPlainError) as refused:
        made({**PLAIN, **changed})
    assert why in str(refused.value)


def test_what_is_no_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"PK\x03\x04", b"<html>", tar(PLAIN)[:99]):
        with pytest.raises(NotPlainError, match="cannot be read"):
            sources.wheel_of("some-thing", "2.3", content)
    monkeypatch.setattr(sources, "LARGEST", 10)
    for content in (tar(PLAIN), zipped(PLAIN)):
        with pytest.raises(NotPlainError, match="too large"):
            sources.wheel_of("some-thing", "2.3", content)


def test_a_lock_has_the_hashes_of_both() -> None:
    pin = Pin("some-thing", "2.3", "a" * 64, 12, source="b" * 64)
    text = pins.dump([pin], "Packages.")
    assert f"--hash=sha256:{'a' * 64}  # 12 bytes, made from the source sha256:{'b' * 64}\n" in text
    assert pins.parse(text) == (pin,)
