"""The check of advisories on a schedule: the file of its build, and the documented trigger."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli import app
from builder.cloudbuild.trigger_table import declared
from builder.core.settings import load_cloud
from tests.emulators.osv import Osv, serving

FILE = "cloudbuild.advisories.yaml"


@pytest.fixture
def osv() -> Iterator[Osv]:
    with serving() as service:
        yield service


def test_cloud_build_accepts_the_file(root: Path) -> None:
    done = CliRunner().invoke(app, ["cloud", "validate", str(root / FILE)])
    assert done.exit_code == 0 and "0 errors, 0 warnings" in done.output


def test_its_step_is_a_command_of_ours(
    root: Path, osv: Osv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    (line,) = re.findall(r"python -m builder (.*)", (root / FILE).read_text())
    words = [osv.address if word == "$OSV" else word for word in shlex.split(line)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert osv.asked


def test_the_trigger_of_the_documents_starts_it(root: Path, project: Path) -> None:
    text = (root / "docs" / "trust.md").read_text()
    (table,) = re.findall(r"(?m)^    \[\[cloud\.trigger\]\]\n(?:    .+\n)+", text)
    (project / "builder.toml").write_text(table)
    shutil.copy(root / FILE, project)
    trigger = declared(project, load_cloud(project, environ={}))["advisories"]
    assert trigger["pubsubConfig"] == {"topic": "projects/my-project/topics/advisories"}
    assert trigger["gitFileSource"]["path"] == FILE
