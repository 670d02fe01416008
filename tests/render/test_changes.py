"""What a change does to an image, told in instructions and layers."""

import subprocess
from pathlib import Path

import pytest

from builder.core.errors import InputError, OutsideError
from builder.render import basechanges, changes
from builder.render.changes import RebuiltLayer


def commit(root: Path) -> None:
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "locked"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)


def test_instructions_are_joined_and_comments_left_out() -> None:
    text = (
        "# a comment\nFROM debian\n\nRUN --mount=type=bind,source=a.lock,target=/a \\\n"
        "    --network=none <<'END'\n# inside\nx\nEND\nUSER 1\n"
    )
    found = list(changes.instructions(text, {"a.lock": "content", "b.lock": "other"}))
    assert [(one.keyword, one.line, dict(one.reads)) for one in found] == [
        ("FROM", 2, {}),
        ("RUN", 4, {"a.lock": "content"}),
        ("USER", 9, {}),
    ]
    assert found[1].text.endswith("# inside\nx\nEND")


def test_no_change_is_no_change(copy: Path) -> None:
    commit(copy)
    assert changes.changes(copy, "v100") == ()


def test_an_environment_variable_rebuilds_nothing(copy: Path) -> None:
    commit(copy)
    path = copy / "images/v100/image.yaml"
    path.write_text(f"{path.read_text()}\nenvironment: {{TF_CPP_MIN_LOG_LEVEL: '1'}}\n")
    [change] = changes.changes(copy, "v100")
    assert basechanges.changes(copy, "v100") == ()
    assert (change.file, change.change) == ("images/v100/Dockerfile", "changed")
    assert change.instruction.startswith("ENV PYTHONPATH=")
    assert change.rebuilds == ()


@pytest.mark.parametrize(
    ("instruction", "rebuilds"),
    [
        ("LABEL team=vision", ()),
        ('ENTRYPOINT ["python"]', ()),
        ("ENV A=1", (RebuiltLayer("RUN make", None), RebuiltLayer("COPY a /a", None))),
        ("USER 1000", (RebuiltLayer("RUN make", None), RebuiltLayer("COPY a /a", None))),
    ],
)
def test_what_makes_later_layers_anew(instruction: str, rebuilds: tuple[RebuiltLayer, ...]) -> None:
    rest = "RUN make\nCOPY a /a\nCOPY --link b /b\n"
    old, new = (
        tuple(changes.instructions(f"FROM debian\n{first}{rest}", {}))
        for first in ("", f"{instruction}\n")
    )
    [change] = changes._changes("Dockerfile", old, new)
    assert (change.change, change.rebuilds) == ("added", rebuilds)


def test_outside_of_git_the_files_that_lie_there_are_compared(copy: Path) -> None:
    path = copy / "images/cpu/image.yaml"
    path.write_text(f"{path.read_text()}\nlabels: {{team: vision}}\n")
    [change] = changes.changes(copy, "cpu")
    assert (change.change, change.rebuilds) == ("changed", ())
    assert change.instruction.startswith("LABEL")


def test_a_commit_that_is_not_there(copy: Path) -> None:
    commit(copy)
    with pytest.raises(InputError, match="'v9' is no commit"):
        changes.changes(copy, "cpu", since="v9")


@pytest.mark.parametrize("since", ["-h", "--help", "no-such-tag", "HEAD:images"])
def test_what_is_no_commit_is_refused(copy: Path, since: str) -> None:
    commit(copy)
    with pytest.raises(InputError, match="is no commit of this repository"):
        changes.changes(copy, "v100", since)


def test_a_repository_without_a_commit_is_no_answer(copy: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
    with pytest.raises(InputError, match="'HEAD' is no commit"):
        changes.changes(copy, "v100")


def test_a_repository_that_git_refuses_is_no_answer(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usual in a container: the files belong to somebody else."""
    commit(copy)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own tests use it
    with pytest.raises(OutsideError, match="dubious ownership") as caught:
        changes.changes(copy, "v100")
    assert caught.value.fix.startswith("git config --global --add safe.directory")


def test_a_corrupt_repository_is_no_answer(copy: Path) -> None:
    commit(copy)
    for path in (copy / ".git/objects").glob("??/*"):
        path.chmod(0o644)
        path.write_bytes(b"torn")
    with pytest.raises((OutsideError, InputError)):
        changes.changes(copy, "v100")
