"""The documents name files that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from builder.config.image_yaml import ImageSpec
from tests import ROOT

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FOLDERS = "builder|docs|examples|images|jobs|requirements|tests|tools|trainer"
PATH = re.compile(rf"(?:{FOLDERS})/[\w./<>{{}},*-]*|[\w-]+\.(?:md|toml)|Makefile")
"""A path of this repository, from its root."""
PLACEHOLDER = re.compile(r"<[\w-]+>")
"""`images/<target>/image.yaml` stands for any target."""


LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
"""A link to another file."""


def paths(text: str) -> list[str]:
    """Paths in backticks, targets of links, and documents that a sentence or a table names."""
    quoted = [word for words in re.findall(r"`([^`\n]+)`", text) for word in words.split()]
    found = [word for word in quoted if PATH.fullmatch(word)]
    named = re.findall(r"\bdocs/[\w-]+\.md", text)
    return list(dict.fromkeys([*found, *LINK.findall(text), *named]))


def expanded(path: str) -> list[str]:
    """`a/{b,c}.py` -> `a/b.py`, `a/c.py`."""
    match = re.search(r"\{([^}]*)\}", path)
    if match is None:
        return [path]
    choices = match.group(1).split(",")
    return [
        one
        for choice in choices
        for one in expanded(path[: match.start()] + choice + path[match.end() :])
    ]


def exists(path: str) -> bool:
    """Whether a file matches, from the root or beside the documents.

    What git ignores is made by a command, and counts.
    """
    pattern = PLACEHOLDER.sub("*", path).rstrip("/")
    if any(ROOT.glob(pattern)) or any((ROOT / "docs").glob(pattern)):
        return True
    asked = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
    return asked.returncode == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_files_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [path for written in paths(text) for path in expanded(written) if not exists(path)]
    assert not missing


def test_every_field_of_image_yaml_is_explained() -> None:
    text = (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
    _, _, table = text.partition("\n## What image.yaml may say\n")
    first = re.findall(r"^\| (`.*?) \|", table.partition("\n## ")[0], re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(first)) == list(ImageSpec.file_keys())


def test_the_tests_to_copy_exist() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    names = re.findall(r"`(test_\w+)`", text)
    files = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    assert names and [name for name in names if f"def {name}(" not in files] == []


def test_every_document_is_reached_from_the_readme() -> None:
    reached, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        here = ahead.pop()
        reached.add(here)
        named = {(ROOT / "docs" / Path(path).name) for path in paths(here.read_text("utf-8"))}
        ahead += [path for path in named & set(DOCUMENTS) if path not in reached]
    assert reached == set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_is_wrapped_and_read_in_ten_minutes(document: Path) -> None:
    """At 100 columns; tables and code stand as they are. At 240 words a minute (Brysbaert 2019, How
    many words do we read per minute?), without the code."""
    lines = document.read_text(encoding="utf-8").splitlines()
    text = [line for line in lines if not line.startswith("    ")]
    assert [line for line in text if len(line) > 100 and not line.startswith("|")] == []
    assert len([word for line in text for word in line.split() if re.search(r"\w", word)]) <= 2400
