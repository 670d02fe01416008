"""How long a hostile job file is refused for: every file of tests/jobs/test_hostile_files.py.

Each goes through `builder job render`, once as a whole process and once in a process that has done
it before. A file that is not refused with exit code 2 ends the run.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import Row, bytecode, load, report, seconds
from builder.core.project import find_root
from tests.jobs.test_hostile_files import SYNTAX, VALUES

BAR = 1.0
"""Seconds within which a file has to be refused."""
WORDS = ("job", "render", "bad")


def main() -> int:
    """Measure, print, write results/hostile.json."""
    files = {**SYNTAX, **VALUES}
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        project = _project(Path(name))
        environment = bytecode(project / "bytecode")

        def process(text: str) -> float:
            (project / "jobs/bad.yaml").write_text(text)
            words = [sys.executable, "-m", "builder", *WORDS]

            def run() -> None:
                done = subprocess.run(words, cwd=project, env=environment, capture_output=True)
                _check(done.returncode, text)

            return seconds(run)

        process("")  # compiles the bytecode, and does not count
        whole = {name: process(text) for name, text in files.items()}
        inside = {name: _inside(project, text) for name, text in files.items()}
    rows = [*_rows("a process each", whole), *_rows("in one process", inside)]
    report("hostile", rows, {"load": load(), "files": len(files)}, whole=whole, inside=inside)
    return 0


def _rows(how: str, spent: dict[str, float]) -> list[Row]:
    slowest = max(spent, key=lambda name: spent[name])
    told = "one run of each file; refused with exit code 2"
    return [
        Row(f"median, {how}", statistics.median(spent.values()), None, "", told),
        Row(f"slowest, {how}: {slowest}", spent[slowest], None, "", told, bar=BAR, bar_of="ours"),
    ]


def _project(folder: Path) -> Path:
    """A project with the targets of this one, and no job but the hostile one."""
    root = find_root(Path(__file__).parent)
    shutil.copytree(root / "images", folder / "images")
    shutil.copytree(root / "trainer", folder / "trainer")
    (folder / "builder.toml").write_text('registry = "us-central1-docker.pkg.dev/p-1/t/i"\n')
    (folder / "jobs").mkdir()
    return folder


def _inside(project: Path, text: str) -> float:
    """Seconds of the same command in this process."""
    from builder import cli

    (project / "jobs/bad.yaml").write_text(text)

    def run() -> None:
        kept = sys.argv
        sys.argv = ["builder", *WORDS]
        quiet = io.StringIO()
        try:
            with contextlib.chdir(project), contextlib.redirect_stderr(quiet):
                cli.main()
        except SystemExit as left:
            _check(left.code, text)
        else:
            _check(0, text)
        finally:
            sys.argv = kept

    return seconds(run)


def _check(code: object, text: str) -> None:
    if code != 2:
        raise RuntimeError(f"exit code {code}, and not 2, for {text[:200]!r}")
