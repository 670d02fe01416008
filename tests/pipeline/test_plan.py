"""Plans: what a hash covers, what a build context holds, and that it is the same each time."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.core.templates import EPOCH
from builder.lock import model
from builder.pipeline import plan
from builder.pipeline.plan import Plan
from builder.render import dockerfiles as render
from builder.spec import catalogue

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project with this repository's targets and a small trainer, its own to change."""
    shutil.copytree(ROOT / "images", tmp_path / "project/images")
    root = tmp_path / "project"
    (root / "builder.toml").write_text("")
    for name, text in {
        "trainer/__init__.py": "",
        "trainer/task.py": "print('trained')\n",
        "trainer/models/net.py": "LAYERS = 3\n",
        "trainer/__pycache__/task.cpython-311.pyc": "x",
        "trainer/tests/test_task.py": "x",
        "trainer/.env": "TOKEN=x",
        "trainer/.git/config": "x",
        "trainer/task.py~": "x",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def planned(root: Path, name: str = "cpu") -> Plan:
    return plan.plan(
        root, catalogue.load(root, name), model.read(root, name), render.render_target(root, name)
    )


def contents(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """Name, mode, date and content of everything in a folder."""
    found = []
    for path in sorted([folder, *folder.rglob("*")]):
        state = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        found.append(
            (str(path.relative_to(folder)), state.st_mode & 0o7777, int(state.st_mtime), data)
        )
    return found


def test_a_line_of_the_trainer_changes_the_training_image_alone(copy: Path) -> None:
    before = planned(copy)
    (copy / "trainer/task.py").write_text("print('trained more')\n")
    after = planned(copy)
    assert before.base == after.base
    assert before.image.hash != after.image.hash
    assert before.inputs_hash != after.inputs_hash


def test_nothing_changed_is_the_same_plan(copy: Path) -> None:
    before = planned(copy)
    os.utime(copy / "trainer/task.py", (1, 1))
    (copy / "trainer/__pycache__/more.pyc").write_text("x")
    (copy / "trainer/tests/test_more.py").write_text("x")
    assert planned(copy) == before


def test_what_may_be_executed_counts(copy: Path) -> None:
    before = planned(copy)
    (copy / "trainer/task.py").chmod(0o755)
    assert planned(copy).image.hash != before.image.hash


def test_the_targets_of_one_base_plan_it_alike(copy: Path) -> None:
    v100, t4 = planned(copy, "v100"), planned(copy, "t4")
    assert v100.base == t4.base
    assert v100.image.files == t4.image.files
    assert v100.image.hash != t4.image.hash  # labels
    assert v100.base is not None
    assert v100.base.tag == f"base-{v100.base.hash}"
    assert f"FROM ${{REPOSITORY}}:{v100.base.tag}" in v100.image.dockerfile


def test_only_what_a_training_run_reads_is_in_the_context(copy: Path) -> None:
    assert list(planned(copy).image.files) == [
        "app/trainer/__init__.py",
        "app/trainer/models/net.py",
        "app/trainer/task.py",
    ]


def test_an_image_on_a_published_base_installs_its_packages(copy: Path) -> None:
    assert not planned(copy).image.installs
    held = replace(model.read(copy, "cpu"), root=None)
    rendered = replace(render.render_target(copy, "cpu"), base=None)
    made = plan.plan(copy, catalogue.load(copy, "cpu"), held, rendered)
    assert made.base is None
    assert made.image.installs
    assert {"tensorflow.lock", "app/trainer/task.py"} <= made.image.files.keys()


def test_a_nested_package_keeps_its_own_name_only(copy: Path) -> None:
    (copy / "src").mkdir()
    (copy / "trainer").rename(copy / "src/trainer")
    path = copy / "images/cpu/image.yaml"
    path.write_text(
        f"{path.read_text()}\ntrainer: {{package: src/trainer, module: trainer.task}}\n"
    )
    assert "app/trainer/task.py" in planned(copy).image.files


def test_a_link_out_of_the_project_is_refused(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    (copy / "trainer/data.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(InputError, match=r"trainer/data\.txt: is a link to a file outside"):
        planned(copy)


def test_contexts_are_the_same_each_time(copy: Path, tmp_path: Path) -> None:
    (copy / "trainer/run.sh").write_text("#!/bin/sh\n")
    (copy / "trainer/run.sh").chmod(0o700)
    first = planned(copy)
    shutil.copytree(copy, tmp_path / "elsewhere", dirs_exist_ok=True)
    os.utime(tmp_path / "elsewhere/trainer/task.py", (7, 7))
    second = planned(tmp_path / "elsewhere")
    assert first.base == second.base
    one, two = tmp_path / "first", tmp_path / "second"
    image, again = plan.stage(first.image, one), plan.stage(second.image, two)
    assert contents(image.parent) == contents(again.parent)
    modes = {(mode, date) for _, mode, date, _ in contents(image.parent)}
    assert modes == {(0o755, EPOCH), (0o644, EPOCH)}
    assert image.read_text() == first.image.dockerfile


def test_a_context_holds_nothing_of_the_one_before(copy: Path, tmp_path: Path) -> None:
    plan.stage(planned(copy).image, tmp_path / "staged")
    (copy / "trainer/models/net.py").unlink()
    staged = plan.stage(planned(copy).image, tmp_path / "staged").parent
    assert not (staged / "app/trainer/models").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project", "staged"]
