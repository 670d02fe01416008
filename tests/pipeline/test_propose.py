"""Newer locks as a branch with a pull request's text; the person's checkout stays as it is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli import app
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.lock import model
from builder.pipeline import committed
from builder.pipeline import propose as proposing
from builder.pipeline.propose import Proposal, Tools, propose
from builder.prove import wheels
from builder.trust.advisories import Judged, Known, PackageVersion
from tests.emulators.osv import serving
from tests.render.test_basechanges import with_versions

BOTH = ("cpu", "v100")
NEWER = {"rich": "99.0.0"}


def git(root: Path, *words: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    return subprocess.run(
        ["git", *name, *words], cwd=root, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as a folder of a repository, committed."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "t")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "t@example.com")
    git(copy.parent, "init", "--quiet", ".")
    git(copy.parent, "add", ".")
    git(copy.parent, "commit", "-qm", "locked")
    monkeypatch.chdir(copy)
    return copy


def bump(root: Path, targets: Sequence[str]) -> None:
    """A lock of newer versions, where an index would have them."""
    for target in targets:
        model.write(root, with_versions(model.read(root, target), NEWER))


def known(root: Path, targets: Sequence[str]) -> Mapping[str, Judged]:
    """An advisory against the old version of rich, and one against both of keras."""
    found = {}
    for target in targets:
        packages = model.read(root, target).packages
        bad = [Known(PackageVersion("PyPI", "keras", packages["keras"].version), ("GHSA-left",))]
        if packages["rich"].version != NEWER["rich"]:
            bad.append(Known(PackageVersion("PyPI", "rich", "1"), ("GHSA-mended",)))
        found[target] = Judged(tuple(bad), (), frozenset())
    return found


def reads(root: Path, targets: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Wheels that do what the tables say."""
    return {target: () for target in targets if target != "cpu"}


TOOLS = Tools(lock=bump, known=known, verify=reads)


def untouched(root: Path, before: str) -> None:
    """Neither a file, nor a branch, nor a work tree is left of a proposal that was not made."""
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "for-each-ref") == before
    assert len(git(root, "worktree", "list").splitlines()) == 1


def test_the_branch_holds_the_locks_and_the_text_says_what_they_change(repository: Path) -> None:
    old = model.read(repository, "cpu").packages["rich"].version
    made = propose(repository, BOTH, TOOLS, "newer")
    assert isinstance(made, Proposal) and made.refused == ()

    assert git(repository, "status", "--porcelain") == ""
    changed = git(repository, "diff", "--name-only", "HEAD", "newer").split()
    assert {"project/images/cpu/image.lock", "project/images/v100/Dockerfile"} <= set(changed)
    assert git(repository, "rev-parse", "newer").strip() == made.commit
    assert len(git(repository, "worktree", "list").splitlines()) == 1

    assert f"| rich | {old} | 99.0.0 | all |" in made.text
    assert "**cpu**: layers made anew: 1, of " in made.text
    mended, _, left = made.text.partition("## Known against them")[2].partition("new: 0")
    assert "- GHSA-mended of rich; in cpu, v100" in mended
    assert "- GHSA-left of keras; in cpu, v100" in left
    assert "- v100: runs on its GPU" in made.text and "- cpu: runs" not in made.text


def test_wheels_that_do_not_run_are_said(repository: Path) -> None:
    tools = replace(TOOLS, verify=lambda root, targets: {"v100": ("cuDNN has no code for V100",)})
    made = propose(repository, BOTH, tools, "newer")
    assert made and made.refused == ("v100",)
    assert "- v100: cuDNN has no code for V100" in made.text


def test_nothing_newer_makes_no_branch(repository: Path) -> None:
    before = git(repository, "for-each-ref")
    tools = replace(TOOLS, lock=lambda root, targets: None)
    assert propose(repository, BOTH, tools, "newer") is None
    untouched(repository, before)


def test_another_day_of_debians_archive_is_nothing_newer(repository: Path) -> None:
    """The place of a package names the archive's day; the package is the same."""

    def next_day(root: Path, targets: Sequence[str]) -> None:
        lock = model.read(root, "cpu")
        debs = tuple(replace(deb, time="20990101T000000Z") for deb in lock.apt["apt.lock"])
        model.write(root, replace(lock, apt={**lock.apt, "apt.lock": debs}))
        assert git(root, "status", "--porcelain")

    before = git(repository, "for-each-ref")
    assert propose(repository, BOTH, replace(TOOLS, lock=next_day), "newer") is None
    untouched(repository, before)


def test_another_wheel_of_the_same_version_is_something_newer(repository: Path) -> None:
    def same_version(root: Path, targets: Sequence[str]) -> None:
        lock = model.read(root, "cpu")
        model.write(root, with_versions(lock, {"rich": lock.packages["rich"].version}))

    made = propose(repository, BOTH, replace(TOOLS, lock=same_version), "newer")
    assert made and "**cpu**: layers made anew: 1, of " in made.text


def test_a_dockerfile_that_was_not_rendered_is_something_newer(repository: Path) -> None:
    template = repository / "templates" / "Dockerfile.j2"
    template.write_text(template.read_text() + "LABEL team=vision\n")
    git(repository, "commit", "-qam", "a label")
    tools = replace(TOOLS, lock=lambda root, targets: None)
    made = propose(repository, ("cpu",), tools, "newer")
    assert made and "added: `LABEL team=vision`" in made.text
    assert "No version differs." in made.text and "layers made anew: 0, of" in made.text


@pytest.mark.parametrize("broken", ["lock", "verify"])
def test_what_fails_half_way_leaves_nothing(repository: Path, broken: str) -> None:
    before = git(repository, "for-each-ref")

    def fails(root: Path, targets: Sequence[str]) -> dict[str, tuple[str, ...]]:
        bump(root, targets)
        raise OutsideError("the index is gone")

    with pytest.raises(OutsideError, match="the index is gone"):
        propose(repository, BOTH, replace(TOOLS, **{broken: fails}), "newer")
    untouched(repository, before)


def test_without_a_name_to_commit_with_nothing_is_left(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = git(repository, "for-each-ref")
    git(repository, "config", "user.useConfigOnly", "true")
    for name in [one for one in os.environ if one.startswith(("GIT_AUTHOR", "GIT_COMMITTER"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("EMAIL", "")
    with pytest.raises(InputError, match="git commit") as caught:
        propose(repository, BOTH, TOOLS, "newer")
    assert "git config" in caught.value.fix
    untouched(repository, before)


def change(root: Path) -> None:
    (root / "images/cpu/image.yaml").write_text("accelerator: CPU\n")


def unmake(root: Path) -> None:
    (root.parent / ".git").rename(root.parent / "git")


@pytest.mark.parametrize(
    ("first", "says", "fix"),
    [
        (change, "images/cpu/image.yaml: differs from the last commit", "commit or stash"),
        (unmake, "no git repository", "git init"),
        (lambda root: git(root, "branch", proposing.BRANCH), "is there already", "git branch -D"),
    ],
)
def test_the_command_refuses_before_it_asks_anyone(
    repository: Path, first: Callable[[Path], object], says: str, fix: str
) -> None:
    first(repository)
    done = CliRunner().invoke(
        app, ["lock", "--upgrade", "--propose", "--osv", "http://127.0.0.1:9"]
    )
    assert isinstance(done.exception, InputError)
    assert says in done.exception.message and fix in done.exception.fix


def test_without_git_the_command_says_so(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["lock", "--upgrade", "--propose"])
    assert isinstance(done.exception, OutsideError)
    assert done.exception.message == "git is not installed"


@pytest.mark.parametrize("holes", [(), ("cuDNN has no code for V100",)])
def test_the_command_writes_the_text_and_fails_for_wheels_that_do_not_run(
    repository: Path, monkeypatch: pytest.MonkeyPatch, holes: tuple[str, ...]
) -> None:
    """An index, apt and gigabytes of wheels stand behind these two calls."""
    locking = lambda root, targets, *more: [bump(root, targets)]  # noqa: E731
    monkeypatch.setattr(committed, "lock", locking)
    monkeypatch.setattr(wheels, "verify", lambda root, targets, on_event: {"v100": holes})
    with serving() as osv:
        words = ["lock", "--upgrade", "--propose", "--branch", "newer", "--osv", osv.address]
        done = CliRunner().invoke(app, [*words, *BOTH])
    assert done.stdout.startswith("# Newer versions of what cpu, v100 lock\n\nFrom commit ")
    assert "nothing was pushed" in done.stderr
    assert "project/images/cpu/image.lock" in git(
        repository, "diff", "--name-only", "HEAD", "newer"
    )
    if holes:
        assert isinstance(done.exception, CheckFailed) and done.exception.exit_code == 4
    else:
        assert done.exit_code == 0


def test_propose_alone_is_no_command(repository: Path) -> None:
    done = CliRunner().invoke(app, ["lock", "--propose"])
    assert isinstance(done.exception, FactoryError) and done.exception.exit_code == 2
    assert done.exception.fix == "write --upgrade --propose"
