"""`builder init` in a repository of somebody who wants it to read, write or wait elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.init import factory_wheel, proposal
from builder.init.repository import Findings, look
from builder.pipeline import package

SECRET = "root:$6$secret"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A repository; beside it lies what is not of it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "shadow").write_text(SECRET)
    root = tmp_path / "repository"
    (root / "digits").mkdir(parents=True)
    (root / "digits" / "train.py").write_text("print(1)\n")
    (root / "Dockerfile").write_text('ENTRYPOINT ["python", "-m", "digits.train"]\n')
    return root


def test_nothing_is_written_through_a_link(here: Path) -> None:
    outside = here.parent / "outside"
    before = sorted(outside.rglob("*"))
    for name in ("images", ".gitignore", "requirements"):
        link = here / name
        link.symlink_to(outside / ("shadow" if "." in name else ""))
        with pytest.raises(InputError, match=f"{name}.*: is a link to a file outside of the"):
            if name == "requirements":
                factory_wheel.bring(here, Findings())
            proposal.write(proposal.propose(here, "cpu", force=True))
        link.unlink()
    assert sorted(outside.rglob("*")) == before and (outside / "shadow").read_text() == SECRET
    proposal.write(proposal.propose(here, "cpu"))
    assert (here / "images" / "cpu" / "image.yaml").is_file()


@pytest.mark.parametrize(
    "name",
    ["requirements.txt", "pyproject.toml", "uv.lock", "environment.yml", "cog.yaml", "Dockerfile"],
)
def test_nothing_outside_is_read(here: Path, name: str) -> None:
    for target in (here.parent / "outside" / "shadow", Path("/dev/zero"), Path("/etc/passwd")):
        (here / name).unlink(missing_ok=True)
        (here / name).symlink_to(target)
        look(here, findings := Findings())
        said = "\n".join([*findings.left, *findings.taken])
        if target.is_file():
            assert f"{name}: the file: it lies outside of the repository" in said
        assert "root:" not in said
    (here / name).unlink()
    os.mkfifo(here / name)
    look(here, Findings())


def test_no_module_outside_is_read(here: Path) -> None:
    (here.parent / "outside" / "evil.py").write_text("import torch\nimport root_secret\n")
    (here / "digits" / "train.py").write_text("from digits import other\n")
    (here / "digits" / "other.py").symlink_to(here.parent / "outside" / "evil.py")
    look(here, findings := Findings())
    assert not findings.frameworks and "root_secret" not in str(findings.left)


def test_an_import_has_more_dots_than_there_are_folders(here: Path) -> None:
    (here / "digits" / "train.py").write_text(f"from {'.' * 99} import torch\nimport torch\n")
    look(here, findings := Findings())
    assert set(findings.frameworks) == {"torch"}


def test_a_program_reads_its_own_folder_alone(here: Path) -> None:
    (here / "digits" / "requirements.txt").symlink_to(here.parent / "outside" / "shadow")
    with pytest.raises(InputError, match=r"requirements\.txt: is a link to a file outside of"):
        package.requirements(package.find(f"{here / 'digits'}:train"))


def test_files_that_name_each_other_are_read_once(here: Path) -> None:
    """Each names the next one twice: 2**24 ways; and 2,000 in a row."""
    for number in range(24):
        text = f"-r r{number + 1}.txt\n-r ./r{number + 1}.txt\n"
        (here / f"r{number}.txt").write_text(text)
    (here / "r24.txt").write_text("numpy\n-r r0.txt\n")
    (here / "requirements.txt").write_text("-r r0.txt\n")
    findings = Findings()
    look(here, findings)
    assert list(findings.requirements) == ["numpy"] and len(findings.taken) < 100
    for number in range(2_000):
        (here / f"r{number}.txt").write_text(f"-r r{number + 1}.txt\n")
    findings = Findings()
    look(here, findings)
    assert any("files name each other" in line for line in findings.left)


def test_a_file_of_gigabytes_is_too_large(here: Path) -> None:
    with (here / "requirements.txt").open("wb") as file:
        file.truncate(3 << 30)  # a hole, which takes no disk
    with pytest.raises(InputError, match=r"requirements\.txt: more than 16 MiB of text"):
        look(here, Findings())


def test_texts_are_read_as_pip_reads_them(here: Path) -> None:
    for encoding in ("utf-8-sig", "utf-16", "utf-32", "utf-16-le"):
        (here / "requirements.txt").write_bytes("numpy\r\n# \u00e9\r\n".encode(encoding))
        look(here, findings := Findings())
        assert list(findings.requirements) == ["numpy"][: encoding != "utf-16-le"]
    assert "requirements.txt: the file: is no text: save it as UTF-8" in findings.left


def test_folders_that_are_called_like_files_are_none(here: Path) -> None:
    (here / "Dockerfile").unlink()
    names = ("Dockerfile", "requirements.txt", "pyproject.toml", "environment.yml", "pylock.toml")
    for name in (*names, "setup.sh", "train.ipynb"):
        (here / name).mkdir()
    look(here, findings := Findings())
    assert findings.left == []


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("environment.yml", "dependencies:\n- a\ndependencies:\n- b\n", "environment.yml:3: "),
        ("environment.yml", "dependencies:\n\t- a\n", "environment.yml:2: not YAML"),
        ("cog.yaml", "build: {gpu: true, gpu: false}\n", "cog.yaml:1: "),
        ("pyproject.toml", "[project\n", "pyproject.toml: Expected"),
        ("pylock.toml", "[[packages]]\nname = 1\nname = 2\n", "pylock.toml: Cannot overwrite"),
    ],
)
def test_a_broken_file_is_named_with_its_line(here: Path, name: str, text: str, line: str) -> None:
    (here / name).write_text(text)
    with pytest.raises(InputError) as caught:
        look(here, Findings())
    assert str(caught.value).startswith(line) and caught.value.fix
