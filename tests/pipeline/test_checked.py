"""What a check found is believed as long as nothing that it read has changed, and not longer."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed, InputError
from builder.pipeline import checked, prepare, to_registry
from builder.pipeline.checked import CheckedProgram
from builder.spec import catalogue

ROOT = Path(__file__).parents[2]
TARGET = "v100"
PROGRAM = CheckedProgram("trainer", "trainer.task", False, "zstd")


@pytest.fixture
def known(copy: Path) -> Path:
    """The same project, with its target checked."""
    to_registry.prepared(copy, TARGET)
    assert checked.recall(copy, TARGET) == PROGRAM
    return copy


def append(name: str, text: str = "\n") -> Callable[[Path], object]:
    def change(root: Path) -> None:
        with (root / name).open("a") as file:
            file.write(text)

    return change


def swap(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.swapcase())


CHANGES: dict[str, Callable[[Path], object]] = {
    "image.yaml": append(f"images/{TARGET}/image.yaml", "# a comment\n"),
    "a lock": append(f"images/{TARGET}/tensorflow.lock"),
    "image.lock": append(f"images/{TARGET}/image.lock"),
    "a letter": lambda root: swap(root / f"images/{TARGET}/Dockerfile"),
    "a file that is gone": lambda root: (root / f"images/{TARGET}/cuda.lock").unlink(),
    "a file by another name": lambda root: (root / f"images/{TARGET}/extra.lock").rename(
        root / f"images/{TARGET}/extrb.lock"
    ),
    "a file more": lambda root: (root / f"images/{TARGET}/apt-extra.lock").touch(),
    "the OS root's lock": append("images/os-bookworm.lock"),
    "a template": append("templates/Dockerfile.j2"),
    "a template of its own": append("templates/mine/included.txt"),
    "the trainer's requirements": append("trainer/requirements.txt", "pillow\n"),
    "no requirements": lambda root: (root / "trainer/requirements.txt").unlink(),
    "no module": lambda root: (root / "trainer/task.py").unlink(),
    "a module in another place": lambda root: (
        shutil.copytree(root / "trainer", root / "trainer/trainer"),
    ),
    "another trainer": lambda root: (
        shutil.move(root / "trainer", root / "elsewhere"),
        (root / "trainer").symlink_to("elsewhere"),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_changes_is_checked_again(known: Path, change: Callable[[Path], object]) -> None:
    (known / "templates/mine").mkdir()
    change(known)
    assert checked.recall(known, TARGET) is None


@pytest.mark.parametrize(
    "name", ["render/dockerfiles.py", "facts/cuda.yaml", "devicecode/pruning/rule.py"]
)
def test_another_factory_checks_again(
    known: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = shutil.copytree(ROOT / "builder", tmp_path / "builder")
    monkeypatch.setattr(checked, "_FACTORY", factory)
    to_registry.prepared(known, TARGET)
    assert checked.recall(known, TARGET)
    append(name)(factory)
    assert checked.recall(known, TARGET) is None


def test_another_template_of_the_factory_checks_again(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(known / "templates")  # a project without any of its own
    packaged = shutil.copytree(ROOT / "templates", tmp_path / "packaged")
    monkeypatch.setattr(checked, "PACKAGED", packaged)
    to_registry.prepared(known, TARGET)
    assert checked.recall(known, TARGET)
    swap(packaged / "Dockerfile.j2")
    assert checked.recall(known, TARGET) is None


def test_another_version_of_a_library_checks_again(
    known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 9")
    assert checked.recall(known, TARGET) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"inputs": "x"}', '{"program": 3}'])
def test_a_torn_note_is_none(known: Path, text: str) -> None:
    (known / "build" / TARGET / checked.FILE).write_text(text)
    assert checked.recall(known, TARGET) is None


def test_a_note_of_another_target_or_project_is_none(known: Path, tmp_path: Path) -> None:
    shutil.copytree(known / "build" / TARGET, known / "build/t4")
    assert checked.recall(known, "t4") is None
    moved = shutil.copytree(known, tmp_path / "moved")
    assert checked.recall(moved, TARGET) is None


def test_what_changed_during_a_check_is_not_noted(copy: Path) -> None:
    seen = checked.inputs(copy, TARGET, PROGRAM)
    append(f"images/{TARGET}/image.yaml", "# a comment\n")(copy)
    checked.keep(copy, TARGET, PROGRAM, seen)
    assert not (copy / "build").exists()


def test_what_cannot_be_noted_is_checked_again(copy: Path) -> None:
    (copy / "build").touch()  # no folder can be made there
    made = to_registry.prepared(copy, TARGET)
    assert checked.recall(copy, TARGET) is None
    assert to_registry.prepared(copy, TARGET) == made


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (f"images/{TARGET}/Dockerfile", CheckFailed, "is not what image.yaml and the templates"),
        (f"images/{TARGET}/tensorflow.lock", CheckFailed, "was edited: it is not what was locked"),
        (f"images/{TARGET}/image.yaml", InputError, "image.yaml"),
        ("templates/layers.j2", CheckFailed, "the Dockerfile templates have changed since"),
        ("trainer/requirements.txt", InputError, "is not a requirement"),
    ],
)
def test_what_is_wrong_is_refused_in_the_same_words(
    known: Path, name: str, error: type[Exception], message: str
) -> None:
    append(name, "not: [this\n")(known)
    assert to_registry.recalled(known, TARGET) is None
    with pytest.raises(error, match=message) as told:
        to_registry.prepared(known, TARGET)
    with pytest.raises(error) as plainly:
        prepare.prepare(known, TARGET)
    assert str(told.value) == str(plainly.value)
    assert to_registry.recalled(known, TARGET) is None  # what failed is not kept


@pytest.mark.parametrize("target", catalogue.targets(ROOT))
def test_what_is_recalled_is_what_a_check_gives(copy: Path, target: str) -> None:
    assert to_registry.recalled(copy, target) is None
    made = to_registry.prepared(copy, target)
    assert to_registry.recalled(copy, target) == made
    append("trainer/task.py", "# a change\n")(copy)
    changed = to_registry.recalled(copy, target)
    assert changed == to_registry.prepared(copy, target) != made


def test_a_trainer_that_lies_flat_is_recalled_so(copy: Path) -> None:
    (copy / "flat").mkdir()
    (copy / "flat/train.py").write_text("print('trained')\n")
    path = copy / f"images/{TARGET}/image.yaml"
    path.write_text(path.read_text() + "trainer:\n  package: flat\n  module: train\n")
    assert catalogue.load(copy, TARGET).trainer_folder.flat
    program = CheckedProgram("flat", "train", True, "zstd")
    checked.keep(copy, TARGET, program, checked.inputs(copy, TARGET, program))
    found = to_registry.recalled(copy, TARGET)
    assert found
    guard = ("training_image_guard/__init__.py", "training_image_guard/tpu.py")
    hook = {f"app/.start/{name}" for name in ("sitecustomize.py", *guard)}
    assert set(found.image.files) == {"app/train.py", *hook}


def test_all_that_a_check_reads_is_in_the_hash(known: Path) -> None:
    """Whoever makes the check read another file has to name it in `checked`."""
    opened: set[Path] = set()
    watching = [True]

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str):
            opened.add(Path(arguments[0]).resolve())

    sys.addaudithook(note)  # cannot be taken away again
    try:
        _forget_tables()
        prepare.prepare(known, TARGET)
    finally:
        watching.clear()
    ours = {path for path in opened if path.is_relative_to(known) or path.is_relative_to(ROOT)}
    ours -= {path for path in ours if ".venv" in path.parts or "__pycache__" in path.parts}
    hashed = {path.resolve() for path in checked._files(known, TARGET)}
    trainer = {
        *(known / "trainer").iterdir(),
        *(ROOT / "trainer/guard").iterdir(),
    }  # an image's own
    assert {path.name for path in ours} >= {
        "image.yaml",
        "image.lock",
        "cuda.yaml",
        "tensorflow.yaml",
        "Dockerfile.j2",
    }
    assert ours - hashed - trainer == set()


def _forget_tables() -> None:
    """The tables and templates are read once a process: read them again."""
    from builder.devicecode import program
    from builder.facts import accelerators, cuda
    from builder.render import jinja
    from builder.tensorflow import releases

    for function in (
        accelerators.accelerators,
        accelerators._names,
        cuda.cuda,
        releases.tables,
    ):
        function.cache_clear()
    jinja._environment.cache_clear()
    program.pruning_program.cache_clear()
