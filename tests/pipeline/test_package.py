"""A folder and a module: what is found in it, and how what cannot be is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from builder.config import targets
from builder.config.targets import TargetFiles
from builder.core.errors import InputError
from builder.image import program as programs
from builder.pipeline import package
from builder.prove import suites
from tests.prove.reading import PROGRAM


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "My Script"
    folder.mkdir()
    (folder / "train.py").write_text("import helper\n")
    (folder / "helper.py").touch()
    return folder


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    folder = tmp_path / "trainer"
    (folder / "sub").mkdir(parents=True)
    for name in ("__init__.py", "task.py", "sub/__init__.py", "sub/__main__.py"):
        (folder / name).touch()
    return folder


def test_a_script_lies_flat_and_a_package_in_its_folder(script: Path, packaged: Path) -> None:
    assert package.find(f"{script}:train").flat
    assert package.find(f"{script}:train.py").module == "train"
    program = package.find(f"{packaged}:trainer.task")
    assert (program.flat, program.module) == (False, "trainer.task")
    assert not package.find(f"{packaged}:trainer.sub").flat
    assert package.find(f"{script}:train").slug == "my-script"


def test_a_module_that_is_not_there_is_answered_with_the_nearest(script: Path) -> None:
    with pytest.raises(InputError) as error:
        package.find(f"{script}:trian")
    assert error.value.fix == f"{script} holds train"
    with pytest.raises(InputError) as error:
        package.find(str(script))
    assert error.value.fix == f"{script} holds helper, train"
    with pytest.raises(InputError, match="there is no folder"):
        package.find(f"{script}/nowhere:train")


def packed(root: Path, program: str) -> TargetFiles:
    """The target cpu with a program, FOLDER:MODULE."""
    return package.on_target(targets.of(root, "cpu"), package.find(program))


def image_files(target: TargetFiles) -> set[str]:
    """The files of the program in its image."""
    return set(programs.files(target.root, target.spec, target.stack))


def test_the_root_of_a_project_is_a_program_again_and_again(project_root: Path) -> None:
    """What builds write lies below it, and is no part of it."""
    (project_root / "train.py").touch()
    for _ in range(3):
        target = packed(project_root, f"{project_root}:train")
        assert {"app/train.py", "app/trainer/task.py"} == image_files(target)
        for folder in (target.home, project_root / "build" / target.name):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "image.json").touch()


def test_a_tiny_run_of_the_targets_own_program_is_not_asked_of_another(
    project_root: Path, script: Path
) -> None:
    path = project_root / "images/cpu/image.yaml"
    path.write_text(path.read_text() + "suite: program\nsmoke: [--steps=1]\n")
    assert packed(project_root, f"{script}:train").spec.smoke == ()


def test_requirements_are_read_as_windows_writes_them_or_refused(script: Path) -> None:
    program = package.find(f"{script}:train")
    for text in ("project = 3", '[project]\ndependencies = "numpy"'):
        (script / "pyproject.toml").write_text(text)
        with pytest.raises(InputError, match=r"toml: project\.dependencies is no list"):
            package.requirements(program)
    (script / "requirements.txt").write_text("numpy\n", encoding="utf-16")
    assert package.requirements(program)[0] == "numpy\n"


def test_requirements_come_from_the_first_file_there_is(script: Path, packaged: Path) -> None:
    program = package.find(f"{script}:train")
    assert package.requirements(program) == ("", "")
    (script / "pyproject.toml").write_text('[project]\ndependencies = ["a>1", "b"]\n')
    text, source = package.requirements(program)
    assert (text, Path(source.partition(":")[0]).name) == ("a>1\nb\n", "pyproject.toml")
    (script / "requirements.txt").write_text("c\n")
    assert package.requirements(program)[0] == "c\n"
    (packaged.parent / "requirements.txt").write_text("above\n")
    assert package.requirements(package.find(f"{packaged}:trainer.task"))[0] == "above\n"
    (script / "requirements.txt").unlink()
    (script / "pyproject.toml").write_text("[project\n")
    with pytest.raises(InputError, match="not TOML"):
        package.requirements(program)


@pytest.fixture
def project_root(root: Path, tmp_path: Path) -> Path:
    """A project with the repository's target cpu."""
    home = tmp_path / "project"
    (home / "images/cpu").mkdir(parents=True)
    (home / "trainer").mkdir()
    (home / "trainer/task.py").touch()
    (home / "builder.toml").touch()
    for path in (*(root / "images/cpu").iterdir(), *(root / "images").glob("os-*.lock")):
        to = home / path.relative_to(root)
        to.write_bytes(path.read_bytes())
    (home / "images/layers.lock").write_text("# of the project\n")
    return home


def test_a_program_stands_in_for_the_targets_own(
    project_root: Path, script: Path, packaged: Path
) -> None:
    (script / "secret").symlink_to("train.py")
    (script / "__pycache__").mkdir()
    (script / "__pycache__/x.pyc").touch()
    target = packed(project_root, f"{script}:train")
    spec = target.spec
    assert (target.name, spec.accelerator) == ("cpu-my-script", "CPU")
    assert (spec.program.module, spec.program_folder.flat) == ("train", True)
    assert suites.of_spec(spec) is PROGRAM, "it knows none of the trainer's options"
    assert image_files(target) == {"app/helper.py", "app/secret", "app/train.py"}
    target = packed(project_root, f"{packaged}:trainer.task")
    assert "app/trainer/task.py" in image_files(target), "a package keeps its name"


def test_it_begins_with_the_locks_of_its_target_and_with_newer_ones_again(
    project_root: Path, script: Path
) -> None:
    target, found = targets.of(project_root, "cpu"), packed(project_root, f"{script}:train")
    package._begin(target, found)
    assert found.checked()[0] == replace(target.lock, target="cpu-my-script")
    assert (found.home / "images/layers.lock").read_text() == "# of the project\n"
    own = found.home / "images/cpu-my-script/extra.lock"
    own.write_text("what its requirements add")
    package._begin(target, found)
    assert own.read_text() == "what its requirements add", "nothing of the target has changed"
    vars(target)["lock"] = replace(target.lock, cudnn="another")
    package._begin(target, found)
    assert own.read_text() == target.lock.files["extra.lock"]


def test_what_cannot_be_packed_is_named_in_the_users_files(
    project_root: Path, script: Path, tmp_path: Path
) -> None:
    requirements = script / "requirements.txt"
    requirements.write_text("pyyaml\n-r other.txt\n")
    with pytest.raises(InputError) as error:
        packed(project_root, f"{script}:train")
    assert error.value.message.startswith(f"{requirements}:2: '-r other.txt' is an option")
    requirements.unlink()
    (tmp_path / "elsewhere.py").touch()
    (script / "link.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(InputError, match=r"link\.py: is a link to a file outside"):
        image_files(packed(project_root, f"{script}:train"))
