"""Which targets a commit touches, and what it means not to know."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from builder.core import settings
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.pipeline import changes

TRAINER, LOCK = "trainer/task.py", "images/cpu/tensorflow.lock"


@pytest.mark.parametrize(
    ("file", "cpu", "v100"),
    [
        ("images/cpu/image.yaml", True, False),
        ("images/v100/tensorflow.lock", False, True),
        ("images/os-bookworm.lock", True, True),
        ("trainer/task.py", True, True),
        ("templates/Dockerfile.j2", True, True),
        ("builder/render/dockerfiles.py", True, True),
        ("docs/proof.md", False, False),
        ("tests/pipeline/test_plan.py", False, False),
        ("README.md", False, False),
        ("requirements/build.txt", True, True),
        ("a-file-nobody-knows", True, True),
    ],
)
def test_a_file_touches_targets(file: str, cpu: bool, v100: bool) -> None:
    assert changes.touches(file, "cpu", "trainer") == cpu
    assert changes.touches(file, "v100", "trainer") == v100


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(root: Path, project: Path) -> Path:
    """Two targets, one commit."""
    for target in ("cpu", "v100"):
        shutil.copytree(root / "images" / target, project / "images" / target)
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "first")
    return project


def touched(folder: Path, since: str) -> list[str]:
    found = changes.changed(folder, Settings(), ["all"], since)
    return [one.target for one in found if one.changed]


def test_beside_a_commit(repository: Path) -> None:
    assert touched(repository, "HEAD") == []
    (repository / "images/v100/image.yaml").write_text("# changed\n")
    assert touched(repository, "HEAD") == ["v100"], "what is not committed counts"
    git(repository, "commit", "--quiet", "-am", "second")
    assert touched(repository, "HEAD") == []
    assert touched(repository, "HEAD~1") == ["v100"]
    (repository / "new-file").touch()
    assert touched(repository, "HEAD") == ["cpu", "v100"]


def test_in_a_shallow_clone_the_commit_is_fetched_or_everything_counts(
    repository: Path, tmp_path: Path
) -> None:
    first = git(repository, "rev-parse", "HEAD")
    (repository / "images/cpu/image.yaml").write_text("# changed\n")
    git(repository, "commit", "--quiet", "-am", "second")
    clone = tmp_path / "clone"
    url = repository.as_uri()
    subprocess.run(["git", "clone", "--quiet", "--depth=1", url, clone], check=True)
    assert touched(clone, "HEAD~1") == ["cpu", "v100"], "it is not there"
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    assert touched(clone, first) == ["cpu"], "it could be fetched"
    git(clone, "remote", "set-url", "origin", "file:///nowhere")
    assert touched(clone, "0" * 40) == ["cpu", "v100"]


def test_without_git_everything_counts(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    assert touched(repository, "HEAD") == ["cpu", "v100"]


def test_a_commit_is_no_option_of_git(repository: Path) -> None:
    with pytest.raises(InputError, match="is not a commit"):
        touched(repository, "--output=/etc/passwd")


# Beside the registry ------------------------------------------------------------------------------


def test_without_a_registry_everything_counts(root: Path) -> None:
    (one,) = changes.changed(root, Settings(), ["cpu"])
    assert (one.changed, one.why) == (True, "no registry to compare with")


def test_a_registry_that_does_not_answer_counts_as_changed(root: Path) -> None:
    (one,) = changes.changed(root, Settings(registry="127.0.0.1:9/team/training"), ["cpu"])
    assert one.changed
    assert "the registry cannot say" in one.why


@pytest.mark.parametrize(
    ("seen", "changed", "why"),
    [
        ("same", False, "the registry has it"),
        ("other", True, "made from other files"),
        (CheckFailed("no receipt lies beside it"), True, "not proven in the registry"),
        (OutsideError("no answer"), True, "the registry cannot say"),
    ],
)
def test_the_receipt_in_the_registry_decides(
    root: Path, monkeypatch: pytest.MonkeyPatch, seen: object, changed: bool, why: str
) -> None:
    from types import SimpleNamespace

    from builder import registry
    from builder.pipeline import prepare

    inputs = prepare.prepare(root, "cpu").plan.inputs_hash

    def verify(*_: object, **__: object) -> object:
        if isinstance(seen, Exception):
            raise seen
        receipt = SimpleNamespace(inputs=inputs if seen == "same" else "x", made_at="today")
        return SimpleNamespace(receipt=receipt)

    monkeypatch.setattr(registry.Registry, "head", lambda *_: "sha256:x")
    monkeypatch.setattr("builder.pipeline.verify.verify", verify)
    where = settings.load(root, environ={}, registry="h.test/a/b")
    (one,) = changes.changed(root, where, ["cpu"])
    assert one.changed is changed
    assert one.why.startswith(why)


def test_a_target_that_is_not_there(root: Path) -> None:
    with pytest.raises(InputError, match="no target 'v10'"):
        changes.changed(root, Settings(), ["v10"])
