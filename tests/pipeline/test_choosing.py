"""Which root's apt chooses versions."""

import shutil
from pathlib import Path

import pytest

from builder.core import templates
from builder.core.errors import InputError
from builder.core.settings import Settings
from builder.pipeline import choosing

ROOT = Path(__file__).resolve().parents[2]


def test_apt_runs_in_the_projects_locked_root_else_in_the_factorys(tmp_path: Path) -> None:
    own = tmp_path / "images" / "os-trixie.lock"
    own.parent.mkdir()
    shutil.copy(ROOT / "images" / "os-bookworm.lock", own)
    assert choosing._seed(tmp_path).suite == "trixie"
    own.unlink()
    seed = choosing._seed(tmp_path)
    assert (seed.suite, seed.added) == ("bookworm", ())
    assert {"apt", "libc6"} <= {deb.name for deb in seed.required}


def test_without_any_locked_root_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "PACKAGED", tmp_path / "templates")
    with pytest.raises(InputError, match=r"images/os-<suite>\.lock: there is none"):
        choosing.LazyApt(tmp_path, Settings())("bookworm", [("hello",)], ())
