"""Which targets a build has to make, and what it means not to know."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from builder import registry
from builder.config import image_yaml
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.pipeline import changes, make, verify

ELSEWHERE = Settings(registry="h.example.com/team/training")


def test_where_the_registry_cannot_tell_a_target_counts_as_changed(copy: Path) -> None:
    def change(settings: Settings) -> tuple[bool, str]:
        (change,) = changes.changed(copy, settings, ["cpu"])
        return change.changed, change.why

    assert change(Settings()) == (True, "no registry to compare with")
    changed, why = change(Settings(registry="127.0.0.1:9/team/training"))
    assert changed and "the registry cannot say" in why
    (copy / "images/cpu/cuda.lock").write_text("")
    changed, why = change(ELSEWHERE)
    assert changed and why.startswith("cannot be prepared: images/cpu/")
    with pytest.raises(InputError, match="no target is called 'v10'"):
        changes.changed(copy, Settings(), ["v10"])


def test_the_receipt_in_the_registry_decides(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, kept = make.prepare(root, "cpu").inputs, {"made_at": "today", "verdict": "proven"}
    monkeypatch.setattr(registry.Registry, "head", lambda *_: "sha256:x")
    for receipt, changed, why in (
        (SimpleNamespace(inputs=inputs, **kept), False, "the registry has it, today: proven"),
        (SimpleNamespace(inputs="x", made_at="today"), True, "made from other files"),
        (CheckFailed("no receipt refers to it"), True, "not proven in the registry"),
        (OutsideError("no answer"), True, "the registry cannot say"),
    ):
        raised = receipt if isinstance(receipt, Exception) else None
        answer = Mock(return_value=SimpleNamespace(receipt=receipt), side_effect=raised)
        monkeypatch.setattr(verify, "verify", answer)
        (change,) = changes.changed(root, ELSEWHERE, ["cpu"])
        assert change.changed is changed and change.why.startswith(why)


# --- the files that a trigger watches -------------------------------------------------------------

READ: list[str] = []
sys.addaudithook(
    lambda event, arguments: READ.append(str(arguments[0])) if event == "open" else None
)


def matches(glob: str, name: str) -> bool:
    """Match as Cloud Build does: Go's filepath.Match, and ** for any number of folders."""
    pattern = re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return bool(re.fullmatch(pattern.replace(r"\?", "[^/]"), name))


@pytest.mark.parametrize("target", ["cpu", "v100-jax"])
def test_every_file_that_decides_a_target_starts_its_trigger(copy: Path, target: str) -> None:
    program = image_yaml.load(copy, target).program.folder
    (copy / "shared").mkdir()
    (copy / "shared/util.py").write_text("")
    (copy / program / "util.py").symlink_to(copy / "shared/util.py")
    READ.clear()
    make.prepare(copy, target)
    files = {Path(name) for name in READ if name.startswith(f"{copy}/") and Path(name).is_file()}
    names = {file.resolve().relative_to(copy.resolve()).as_posix() for file in files}
    globs = changes.touching(copy)[target]
    assert {f"images/{target}/image.yaml", "images/layers.lock", "shared/util.py"} <= names
    assert any(name.startswith(f"{program}/") for name in names)
    assert [name for name in sorted(names) if not any(matches(g, name) for g in globs)] == []
    others = [f"images/{target}2/image.yaml", "README.md", "docs/a/b.md", "tests/test_a.py"]
    assert [name for name in others if any(matches(g, name) for g in globs)] == []


def test_a_program_of_its_own_is_watched_and_the_packaged_trainer_is_the_factory_s(
    project: Path, write_target: Callable[..., Path]
) -> None:
    shutil.rmtree(project / "trainer")
    (project / "mine").mkdir()
    (project / "mine/main.py").touch()
    write_target("accelerator: CPU\n", "a")
    write_target("accelerator: CPU\nprogram: mine:main\nsuite: program\n", "b")
    globs = changes.touching(project)
    assert "trainer/**" not in globs["a"] and "requirements/**" in globs["a"]
    assert "mine/**" in globs["b"]
