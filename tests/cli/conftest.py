"""What several tests of the command line share."""

from pathlib import Path

import pytest


@pytest.fixture
def here(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with this repository's targets, in which `builder` is called."""
    monkeypatch.chdir(copy)
    return copy
