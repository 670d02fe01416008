"""How the hooks of the check `compile` begin: with the module that they wait for."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from builder.frameworks.hook import Finder

LAUNCHER = """\
def main():
    run("train.py")

def run(program):
    raise AssertionError("it starts its processes")

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """What a launcher, `starter.run`, is asked to run in place of its processes."""
    (tmp_path / "starter").mkdir()
    (tmp_path / "starter/__init__.py").write_text("")
    (tmp_path / "starter/run.py").write_text(LAUNCHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    programs: list[str] = []

    def begin(module: Any) -> None:
        module.run = programs.append

    finder = Finder("starter.run", begin, "from starter.run import main\nmain()")
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield programs
    for name in ("starter", "starter.run"):
        sys.modules.pop(name, None)


def test_a_module_that_is_imported_is_begun(ran: list[str]) -> None:
    importlib.import_module("starter.run").main()
    assert ran == ["train.py"]


def test_so_is_one_that_is_the_program(ran: list[str]) -> None:
    """As `python -m starter.run`."""
    runpy.run_module("starter.run", run_name="__main__", alter_sys=True)
    assert ran == ["train.py"]


def test_so_is_one_that_somebody_looked_for_before(ran: list[str]) -> None:
    """As transformers looks whether PyTorch is there."""
    assert util.find_spec("starter.run") is not None
    importlib.import_module("starter.run").main()
    assert ran == ["train.py"]
