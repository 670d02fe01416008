"""A training image: which files of a program it gets, and what it is on top of its base."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from builder.config import compatibility, image_yaml
from builder.core.errors import InputError
from builder.core.events import Event, StepDone, step
from builder.core.files import EPOCH
from builder.image import program, start
from builder.image.content_store import ContentStore
from builder.image.layer import Compression, assemble
from builder.image.program import AssembledPlan, File, ImageConfig
from builder.registry import manifests
from tests.image.layers import entries

CONFIG = ImageConfig(
    environment={"A": "one two", "B": "3"},
    labels={"title": "cpu"},
    user="1000:1000",
    entrypoint=("python", "-m", "trainer.task"),
)
FILES = {"app/trainer/run.sh": File(b"#!/bin/sh\n", True), "app/trainer/a.py": File(b"A = 1\n")}
PLAN = AssembledPlan("FROM base\n", FILES, CONFIG, Compression())


# --- its files ------------------------------------------------------------------------------------


@pytest.fixture
def trainer(copy: Path) -> Path:
    """A trainer with files that no training run reads."""
    for name in (
        "models/net.py", "__pycache__/task.cpython-311.pyc", "tests/test_task.py", ".env",
        ".git/config", "task.py~",
    ):  # fmt: skip
        (copy / "trainer" / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / "trainer" / name).write_text("x")
    (copy / "trainer/requirements.txt").unlink()
    return copy


def files(root: Path, target: str = "cpu") -> dict[str, File]:
    spec = image_yaml.load(root, target)
    return program.files(root, spec, compatibility.resolve(spec))


def test_an_image_gets_what_a_training_run_reads_and_its_start_hook(trainer: Path) -> None:
    names = ["app/trainer/__init__.py", "app/trainer/models/net.py", "app/trainer/task.py"]
    assert list(files(trainer)) == names
    (trainer / "trainer/task.py").chmod(0o755)
    for_a_gpu = files(trainer, "v100")
    assert for_a_gpu["app/trainer/task.py"].executable
    assert for_a_gpu.keys() - names == {
        f"app/{name}"
        for name in start.files(compatibility.resolve(image_yaml.load(trainer, "v100")))
    }
    (trainer / "src").mkdir()
    (trainer / "trainer").rename(trainer / "src/trainer")
    path = trainer / "images/cpu/image.yaml"
    text = path.read_text() + "\nprogram: src/trainer:trainer.task\n"
    path.write_text(text)
    assert list(files(trainer)) == names, "a nested package keeps its own name only"


@pytest.mark.parametrize(
    ("name", "to", "reason"),
    [
        ("loop", ".", "leads back to a folder above it"),
        ("notes.txt", "../.git/config", r"^trainer/notes\.txt: is a link to \.git/config"),
    ],
)
def test_a_link_that_brings_in_something_else_is_refused(
    name: str, to: str, reason: str, copy: Path
) -> None:
    (copy / ".git").mkdir()
    (copy / ".git/config").write_text("url = https://me:token@host/x")
    link = copy / "trainer" / name
    link.symlink_to(to)
    with pytest.raises(InputError, match=reason):
        files(copy)
    link.unlink()


def test_data_among_the_program_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"more than 20,000 files or 2 GB \(up to data\.bin\)"):
        list(program.walk(tmp_path))
    (tmp_path / "data.bin").unlink()
    monkeypatch.setattr(program, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.py").touch()
    with pytest.raises(InputError, match="more than 3 files"):
        list(program.walk(tmp_path))


def test_the_root_of_a_project_is_a_program_without_what_git_ignores(trainer: Path) -> None:
    for name, text in {
        "train.py": "", "conf/a.yaml": "", ".gitignore": "/out/\n*.ckpt\n", "out/a": "12345",
        "conf/a.ckpt": "1", "conf/.gitignore": "b\n", "conf/b": "", "build/x/images/y": "",
    }.items():  # fmt: skip
        (trainer / name).parent.mkdir(parents=True, exist_ok=True)
        (trainer / name).write_text(text)
    (trainer / "requirements.txt").write_text("--no-index\n")  # image.yaml has what it needs
    yaml = trainer / "images/cpu/image.yaml"
    yaml.write_text("accelerator: CPU\nprogram: .:train\nsuite: program\n")
    names = {*files(trainer)}
    assert {"app/train.py", "app/conf/a.yaml", "app/trainer/task.py"} <= names
    assert not [
        name for name in names if re.search("ckpt|/out/|/b$|build|images|builder.toml", name)
    ]
    left = program.left_out(trainer)
    assert left["out"] == (1, 5)
    assert {"build", "images", "builder.toml", "conf/a.ckpt", "conf/b"} == left.keys() - {"out"}
    assert "app/trainer/tests/test_task.py" in names, "the program may read what lies deeper"
    yaml.write_text("accelerator: CPU\nprogram: .:trian\n")
    with pytest.raises(InputError, match="no module trian at the root") as refused:
        image_yaml.load(trainer, "cpu")
    assert "did you mean .:train?" in refused.value.fix


def test_the_root_of_any_repository_is_a_program_without_what_git_ignores(tmp_path: Path) -> None:
    """Which has no builder.toml: its images/ may be the program's own."""
    for name in ("train.py", "images/cat.png", "runs/big", "data/runs/small"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("/runs/\n")
    (tmp_path / ".git").mkdir()
    got = [path.relative_to(tmp_path).as_posix() for path in program.walk(tmp_path)]
    assert got == ["data/runs/small", "images/cat.png", "train.py"]


def test_data_that_is_called_test_is_no_test(trainer: Path) -> None:
    kept = ("data/test/a.png", "data/tests/b.png", "data/test/__init__.py", "test/__init__.py")
    for name in (*kept, "test/deep/a.png", "notes.swp"):
        (trainer / "trainer" / name).parent.mkdir(parents=True, exist_ok=True)
        (trainer / "trainer" / name).write_text("x")
    names = files(trainer).keys()
    assert {f"app/trainer/{name}" for name in (*kept, "test/deep/a.png")} <= names
    assert program.left_out(trainer / "trainer") == {"tests": (1, 1)}


def test_what_is_left_out_is_said_where_somebody_looks(tmp_path: Path) -> None:
    (tmp_path / "builder.toml").touch()
    for number in range(7):
        (tmp_path / f"{number}.log").write_text("x" * number * 100_000)
    (tmp_path / ".gitignore").write_text("*.log\n")
    events = list[Event]()
    with step("program", events.append) as copying:
        program.name_left_out(tmp_path, copying)
    *logs, done = events[1:]
    assert isinstance(done, StepDone) and len(logs) == 8
    assert done.detail.startswith("; left out: 6.log 0.6 MB, 5.log 0.5 MB, ")
    assert done.detail.endswith("and 2 more (builder --verbose)")


# --- the image ------------------------------------------------------------------------------------


def test_the_image_is_its_base_its_settings_and_one_layer_with_nothing_of_today(
    store: ContentStore, tmp_path: Path
) -> None:
    settings = {"Env": ["A=0", "PATH=/bin"], "Cmd": ["bash"], "WorkingDir": "/app"}
    base = assemble([], {**settings, "Labels": {"root": "Debian"}})
    image = program.assemble(PLAN, base, store)
    configuration = manifests.configuration_in(image.configuration)
    assert configuration["config"] == {
        "Env": ["A=one two", "PATH=/bin", "B=3"],
        "WorkingDir": "/app",
        "User": "1000:1000",
        "Entrypoint": ["python", "-m", "trainer.task"],
        "Labels": {"root": "Debian", "title": "cpu"},
    }
    assert manifests.history(configuration) == ("builder: app copied to /app",)
    other = ContentStore(tmp_path / "other")
    base = assemble([], {"Env": ["PATH=/bin"]})
    image = program.assemble(PLAN, base, store)
    reordered = replace(PLAN, files=dict(reversed(FILES.items())))
    assert program.assemble(reordered, base, other).digest == image.digest
    assert store.find_image(image.digest.removeprefix("sha256:")) == image
    inside = entries(store, image.layers[-1])
    assert {name: entry.mode for name, entry in inside.items()} == {
        "app": 0o755,
        "app/trainer": 0o755,
        "app/trainer/a.py": 0o644,
        "app/trainer/run.sh": 0o755,
    }
    assert {(entry.owner, entry.date) for entry in inside.values()} == {((0, 0), EPOCH)}
    again = program.assemble(PLAN, base, store)
    changed = program.assemble(replace(PLAN, files={"app/a.py": File(b"2")}), base, store)
    executable = program.assemble(replace(PLAN, files={"app/a.py": File(b"2", True)}), base, store)
    assert again == image
    assert len({image.digest, changed.digest, executable.digest}) == 3


def test_a_build_context_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = (program.stage(PLAN, tmp_path / name).parent for name in ("first", "second"))
    assert (first / "Dockerfile").read_text() == PLAN.dockerfile
    contents = [
        [(path.relative_to(context), path.stat().st_mode, path.stat().st_mtime)
         for path in sorted([context, *context.rglob("*")])]
        for context in (first, second)
    ]  # fmt: skip
    assert contents[0] == contents[1]
    assert {date for _, _, date in contents[0]} == {EPOCH}
    assert {mode & 0o777 for _, mode, _ in contents[0]} == {0o755, 0o644}
    assert os.access(first / "app/trainer/run.sh", os.X_OK)
    other = program.stage(replace(PLAN, files={}), tmp_path / "first")
    assert other.parent != first, "BuildKit updates a context of the same name"
