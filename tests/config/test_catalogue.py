"""What a person may write in image.yaml, and the message for each mistake."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from builder.config import image_yaml
from builder.config.image_yaml import ImageSpec, Program
from builder.config.schema import schema_text
from builder.core.errors import InputError

WHERE = "images/v100/image.yaml"
DIGEST = "sha256:" + "0123456789abcdef" * 4
MINIMAL = "accelerator: V100\nsize_budget: 2.6 GB\n"
Write = Callable[..., Path]


def parse(text: str) -> ImageSpec:
    return image_yaml.parse(text, Path(WHERE))


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as raised:
        parse(text)
    return raised.value


# What works


def test_two_lines_are_enough() -> None:
    spec = parse(MINIMAL)
    assert spec.size_budget == 2_600_000_000
    assert (spec.release, spec.python, spec.base) == ("2.21.0", "3.11", "own")
    assert spec.program == Program("trainer", "trainer.task")
    assert (spec.user, spec.apt, spec.requirements, spec.cuda) == (1000, (), (), {})
    assert (spec.name, spec.source) == ("v100", Path(WHERE))


def test_everything_that_can_be_written() -> None:
    spec = parse(f"""
accelerator: a100-80gb
tensorflow: 2.20.0
python: 3.10          # without quotes, and still not the number 3.1
base: docker.io/tensorflow/tensorflow:2.20.0-gpu@{DIGEST}
apt: [libgl1, libstdc++6]
requirements:
  - pandas >=2, <3
  - tomli; python_version < "3.11"
program: src/vision:vision.train
environment:
  TF_CPP_MIN_LOG_LEVEL: 1
  DEBUG: true
  GREETING: "two words, äöü = #1 {{a}} [b] (c) & d | e; f < g > h ~ %20"
user: 1234
labels: {{org.example/team: vision}}
size_budget: 900 MiB
allow_ptx: true
cuda: {{cudnn: 9.10.2.21}}
""")
    assert spec.accelerator == "A100"
    assert spec.python == "3.10"
    assert spec.requirements == ("pandas<3,>=2", 'tomli; python_version < "3.11"')
    assert spec.environment["TF_CPP_MIN_LOG_LEVEL"] == "1"
    assert spec.environment["DEBUG"] == "true"
    assert spec.size_budget == 900 * 2**20
    assert spec.cuda == {"cudnn": "9.10.2.21"}
    assert spec.allow_ptx is True


def test_a_spec_cannot_be_changed() -> None:
    spec = parse(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        spec.release = "2.20.0"  # type: ignore[misc]


def test_the_targets_of_this_repository(root: Path) -> None:
    ours = ("a100", "cpu", "h100", "l4", "t4", "tpu", "v100", "v100-torch")
    assert image_yaml.targets(root) == ours
    specs = image_yaml.load_all(root)
    assert tuple(spec.name for spec in specs) == image_yaml.targets(root)
    for spec in specs:
        lines = spec.source.read_text().splitlines()
        assert lines[0] == "# yaml-language-server: $schema=../schema.json"
        assert lines[1].startswith("# ")
        assert len(lines) <= 12


# What is refused: one mistake each

MISTAKES = [
    # keys
    ("acelerator: V100", "acelerator: unknown key", "did you mean accelerator?"),
    ("zzz: 1", "zzz: unknown key", "known keys: accelerator, tensorflow, torch, python, base,"),
    ("user: 1000\nuser: 1001", "user: stands twice, first in line 3", "keep one"),
    # types
    ("apt: libgl1", "apt: expected a list, found 'libgl1'", "write apt: [libgl1]"),
    ("base: [own]", "base: expected one text, found a list", "base: own"),
    ("program: trainer", "program: 'trainer' is not FOLDER:MODULE", "write program: trainer:tr"),
    ("program: {module: a}", "program: `name: value` lines is not FOLDER:MODULE", "write program"),
    ("allow_ptx: perhaps", "allow_ptx: expected true or false", "write allow_ptx: true"),
    ("user: 1.5", "user: expected a whole number, found '1.5'", "write user: 1000"),
    # what would become a second instruction, or end a value
    ('environment: {A: "x\\nRUN id"}', "environment.A: a line break (U+000A)", "one line of plain"),
    ('environment: {A: "x\\u2028y"}', "environment.A: a line break (U+2028)", "one line of plain"),
    ("environment: {A: 'say \"hi\"'}", 'environment.A: " is not allowed', "one line of plain text"),
    ("environment: {A: $(id)}", "environment.A: $ is not allowed: Docker would expand it", "one"),
    ("environment: {A: 'x\\'}", "environment.A: \\ is not allowed: a backslash continues", "one"),
    ('labels: {"a b": x}', "labels.a b: 'a b' is not a label's name", "use a-z and 0-9"),
    # names of variables
    ("environment: {A-B: x}", "environment.A-B: 'A-B' is not a variable's name", "use A-Z, 0-9"),
    ("environment: {PATH: /x}", "environment.PATH: PATH cannot be set", "remove it"),
    ("environment: {TRAINING_ACCELERATOR: none}", "the factory sets it for the", "remove it"),
    ("labels: {training-image-factory.suite: program}", "the factory's labels say", "remove it"),
    ("environment: {AIP_MODEL_DIR: x}", "the training service sets it", "remove it"),
    # versions
    ("tensorflow: 2.21", "tensorflow: '2.21' is not a release", "write all of it, such as 2.21.0"),
    ("python: 3.11.7", "python: '3.11.7' is not a Python version", "write 3.11 or 3.13"),
    ("cuda: {cudnn: 9}", "cuda.cudnn: '9' is not a version", "such as 9.3.0.75"),
    # base
    ("base: debian:12", "base: debian:12 has no digest", "write debian:12@sha256:<digest>"),
    ("base: Own", "base: 'Own' is not an image", "write own, or HOST/PATH@sha256:<digest>"),
    # packages
    ("apt: [libgl1, libgl1]", "apt: 'libgl1' stands twice", "keep one"),
    ("apt: [libgl1=1.6]", "apt.0: 'libgl1=1.6' is not a Debian package's name", "pins its version"),
    ("requirements: [numpy, NumPy==2]", "requirements: 'NumPy==2' stands twice (also", "keep one"),
    ("requirements: [--index-url x]", "requirements.0: '--index-url x' is an option", "names only"),
    ("requirements: ['a @ https://h/a.whl']", "names a URL, which cannot", "write name==version"),
    (f"requirements: ['numpy {'>=1,' * 100_000}']", "a requirement of 400,006 chara", "write name"),
    ("requirements: [numpy=2]", "requirements.0: 'numpy=2' is not a requirement", "name==version"),
    # the program
    ("program: ../x:x", "program: '../x' lies outside the project", "inside"),
    ("program: a b:x", "program: 'a b' is not a folder's plain name", "letters"),
    ("program: trainer:task.py; id", "program: 'task.py; id' is not a module", "python -m"),
    (
        "trainer: {package: a, module: a.b, suite: program}",
        "trainer: is now `program`",
        "write program: a:a.b and suite: program",
    ),
    # user
    ("user: root", "user: expected a whole number, found 'root'", "write user: 1000"),
    ("user: 0", "user: expected at least 1, found '0'", "write user: 1000"),
    ("user: 65534", "user: expected at most 65533", "write user: 1000"),
    # the file
    ("- a", "not YAML", ""),
    ("a: [", "not YAML", ""),
    ("\tuser: 1", "not YAML", "indent with spaces, not with a tab"),
    ("labels: &a {x: *a}", "labels.x: contains itself", "write the value out"),
]


@pytest.mark.parametrize(
    ("line", "what", "fix"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES]
)
def test_a_mistake_is_told_with_its_line_and_what_to_write(line: str, what: str, fix: str) -> None:
    error = refused(MINIMAL + line)
    assert what in error.message
    assert fix in error.fix + error.message
    last = 2 + len(line.splitlines())
    assert error.message.splitlines()[0].startswith((f"{WHERE}:{last}: ", f"{WHERE}:{last + 1}: "))


@pytest.mark.parametrize(
    ("size", "what"),
    [("2.6", "'2.6' is not a size"), ("0 GB", "expected more than 0"), ("GB", "is not a size")],
)
def test_a_size_has_a_number_and_a_unit(size: str, what: str) -> None:
    error = refused(f"accelerator: V100\nsize_budget: {size}")
    assert error.message.startswith(f"{WHERE}:2: size_budget: ")
    assert what in error.message
    assert "2.6 GB" in error.fix


def test_what_is_missing_is_named_with_an_example() -> None:
    error = refused("size_budget: 1 GB")
    assert error.message == f"{WHERE}:1: accelerator: is missing"
    assert error.fix == "add accelerator: V100"


def test_an_unknown_accelerator_names_the_nearest() -> None:
    error = refused("accelerator: V10\nsize_budget: 1 GB")
    assert error.message == f"{WHERE}:1: accelerator: no accelerator is called 'V10'"
    assert error.fix.startswith("write V100; known: CPU, ")


def test_every_mistake_of_a_file_is_told_at_once_in_its_order() -> None:
    error = refused("user: 0\naccelerator: V100\npyton: 3\nsize_budget: 1\n")
    assert error.message.splitlines() == [
        f"{WHERE}:1: user: expected at least 1, found '0' -> write user: 1000",
        f"{WHERE}:3: pyton: unknown key -> did you mean python?",
        f"{WHERE}:4: size_budget: '1' is not a size -> write a number and its unit, such as 2.6 GB",
    ]
    assert error.fix == "mend these 3 lines, then try again"


@pytest.mark.parametrize("text", ["", "# nothing\n", "just text", "- a list", "42"])
def test_a_file_that_says_nothing(text: str) -> None:
    assert refused(text).message.startswith(f"{WHERE}:1: ")


# What is looked up in the project


def test_a_target_that_there_is_not_names_the_nearest(project: Path, write_target: Write) -> None:
    write_target(MINIMAL, "v100")
    write_target(MINIMAL.replace("V100", "T4"), "t4")
    with pytest.raises(InputError) as raised:
        image_yaml.load(project, "V1OO")
    assert raised.value.message == (
        "no target is called 'V1OO': there is no images/V1OO/image.yaml"
    )
    assert raised.value.fix == "write v100; known: t4, v100"
    with pytest.raises(InputError) as raised:
        image_yaml.load(project, "../images/v100")
    assert raised.value.fix.endswith("known: t4, v100")


def test_a_project_without_targets(project: Path) -> None:
    assert image_yaml.load_all(project) == ()
    with pytest.raises(InputError) as raised:
        image_yaml.load(project, "v100")
    assert raised.value.fix == "create images/v100/image.yaml"


def test_the_trainer_has_to_exist(project: Path, write_target: Write) -> None:
    def problem(line: str) -> tuple[str, str]:
        write_target(MINIMAL + line)
        with pytest.raises(InputError) as raised:
            image_yaml.load(project, "v100")
        return raised.value.message, raised.value.fix

    assert problem("program: trainr:trainr.task") == (
        f"{WHERE}:3: program: there is no folder trainr in the project",
        "create trainr/, or name the folder that holds the trainer",
    )
    assert problem("program: trainer:trainer.tsk") == (
        f"{WHERE}:3: program: there is no module trainer.tsk: no file trainer/tsk.py",
        "did you mean trainer:trainer.task?",
    )
    assert problem("program: trainer:other.task") == (
        f"{WHERE}:3: program: other.task is not in the folder trainer",
        "write program: trainer:trainer.MODULE",
    )
    (project / "away").symlink_to(project.parent)
    assert "'away' leads outside the project" in problem("program: away:away.task")[0]


def test_the_trainer_may_lie_deeper(project: Path, write_target: Write) -> None:
    (project / "src" / "vision" / "train").mkdir(parents=True)
    (project / "src" / "vision" / "train" / "__main__.py").touch()
    write_target(MINIMAL + "program: ./src/vision/:vision.train")
    assert image_yaml.load(project, "v100").program.folder == "src/vision"


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("V100", "v100"), ("v100 big", "v100-big"), ("base-v100", "v100"), ("-v", "v"), ("v.", "v")],
)
def test_a_folder_that_cannot_be_a_tag(
    project: Path, write_target: Write, name: str, suggested: str
) -> None:
    write_target(MINIMAL, name)
    with pytest.raises(InputError) as raised:
        image_yaml.load(project, name)
    assert f"the folder's name {name!r} " in raised.value.message
    assert raised.value.fix == f"rename the folder, for example to {suggested}"


def test_the_mistakes_of_all_files_are_told_at_once(project: Path, write_target: Write) -> None:
    write_target(MINIMAL + "usr: 1", "a")
    write_target(MINIMAL, "b")
    write_target(MINIMAL + "user: 0", "c")
    with pytest.raises(InputError) as raised:
        image_yaml.load_all(project)
    lines = raised.value.message.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "images/a/image.yaml",
        "images/c/image.yaml",
    ]
    assert lines[0].endswith("unknown key -> did you mean user?")


def test_no_file_of_elsewhere_is_read_and_none_of_its_lines_is_shown(
    project: Path, write_target: Write, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "shadow"
    secret.write_text("root:$6$hash:1::\n")
    written = write_target(MINIMAL)
    (project / "trainer/requirements.txt").symlink_to(secret)
    with pytest.raises(InputError, match=r"^trainer/requirements\.txt: is a link to a") as raised:
        image_yaml.load(project, "v100")
    assert "root" not in raised.value.message
    (project / "trainer/requirements.txt").unlink()
    written.unlink()
    written.symlink_to(secret)
    with pytest.raises(InputError, match=r"^images/v100/image\.yaml: is a link to a file outside"):
        image_yaml.load(project, "v100")


def test_where_a_field_is_written(project: Path, write_target: Write) -> None:
    write_target(MINIMAL + "cuda:\n  nccl: 2.30.4\n  cudnn: 9.10.2.21\n")
    spec = image_yaml.load(project, "v100")
    assert image_yaml.where(spec, "cuda", "cudnn") == f"{WHERE}:5: cuda.cudnn"
    assert image_yaml.where(spec, "tensorflow") == f"{WHERE}:1: tensorflow"
    assert image_yaml.where(ImageSpec(accelerator="T4", size_budget=1), "python") == (
        "image.yaml: python"
    )


# Whatever is accepted stays one instruction


# Letters that are welcome somewhere, beside every one that could do harm.
TEXT = st.text(st.sampled_from("ab1._-/:@= äß\n\r\t\x00\x1b\x85\u2028\u202e\"'`$\\;&|<>#(){}"))


@given(key=TEXT, value=TEXT)
def test_no_accepted_value_leaves_its_instruction(key: str, value: str) -> None:
    written: dict[str, object] = {"accelerator": "V100", "size_budget": "1 GB"}
    for field, template in (("environment", 'ENV {}="{}"'), ("labels", 'LABEL {}="{}"')):
        for name in (key, "a"):
            try:
                spec = ImageSpec.model_validate({**written, field: {name: value}})
            except ValidationError:
                continue
            instruction = template.format(*next(iter(getattr(spec, field).items())))
            assert instruction.splitlines() == [instruction]
            assert instruction.isprintable()
            assert instruction.count('"') == 2
            assert not set("\\`$'") & set(instruction)


# The schema for editors


def test_the_schema_in_the_repository_is_the_model_s(root: Path) -> None:
    assert (root / "images" / "schema.json").read_text() == schema_text(), "run `builder schema`"


def test_the_schema_describes_every_field_with_an_example() -> None:
    schema = json.loads(schema_text())
    assert schema["additionalProperties"] is False
    assert tuple(schema["properties"]) == ImageSpec.file_keys()
    for name, field in schema["properties"].items():
        assert field["description"], name
        assert field["examples"], name
    assert "V100" in schema["properties"]["accelerator"]["enum"]
    assert "K80" not in schema["properties"]["accelerator"]["enum"]
    assert "2.21.0" in schema["properties"]["tensorflow"]["anyOf"][0]["enum"]
    assert "cudnn" in schema["properties"]["cuda"]["propertyNames"]["enum"]


def test_the_trainer_extra_follows_the_default(root: Path) -> None:
    """The trainer is developed with the versions that the images hold."""
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    default = ImageSpec.model_fields["release"].default
    assert f"tensorflow-cpu=={default}" in extra["trainer"]


def test_no_target_is_called_all(project: Path, write_target: Write) -> None:
    written = write_target(MINIMAL).parent
    written.rename(written.parent / "all")
    with pytest.raises(InputError, match="it stands for every target"):
        image_yaml.load(project, "all")
