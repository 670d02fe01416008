"""What a person may write in image.yaml, and the message for each mistake."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from builder.config import image_yaml
from builder.config.image_yaml import ImageSpec
from builder.config.schema import schema_text
from builder.core.errors import InputError

WHERE = "images/v100/image.yaml"
DIGEST = "sha256:" + "0123456789abcdef" * 4
MINIMAL = "accelerator: V100\nsize_budget: 2.6 GB\n"
ADVISORY = "{id: CVE-2023-52425, package: expat, reason: loads no XML, until: 2027-03-31}"
Write = Callable[..., Path]


def parse(text: str) -> ImageSpec:
    return image_yaml.parse(text, Path(WHERE))


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as raised:
        parse(text)
    return raised.value


# What works


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
advisories: [{ADVISORY}]
""")
    (accepted,) = spec.advisories
    assert (accepted.id, accepted.package) == ("CVE-2023-52425", "expat")
    assert (accepted.until, accepted.reason) == (date(2027, 3, 31), "loads no XML")
    assert (spec.name, spec.source, spec.accelerator) == ("v100", Path(WHERE), "A100")
    assert (spec.python, parse("accelerator: V100").python) == ("3.10", "3.11")
    with pytest.raises(ValidationError, match="frozen"):
        spec.release = "2.20.0"  # type: ignore[misc]
    assert spec.requirements == ("pandas<3,>=2", 'tomli; python_version < "3.11"')
    assert spec.environment["TF_CPP_MIN_LOG_LEVEL"] == "1"
    assert spec.environment["DEBUG"] == "true"
    assert spec.size_budget == 900 * 2**20
    assert spec.cuda == {"cudnn": "9.10.2.21"}
    assert spec.allow_ptx is True


# What is refused: one mistake each

MISTAKES = [
    # keys
    ("acelerator: V100", "acelerator: unknown key", "did you mean accelerator?"),
    ("zzz: 1", "zzz: unknown key", "known keys: accelerator, tensorflow, torch, jax, python,"),
    ("user: 1000\nuser: 1001", "user: stands twice, first in line 3", "keep one"),
    # types
    ("apt: libgl1", "apt: expected a list, found 'libgl1'", "write apt: [libgl1]"),
    ("smoke: [-e, 1]", "smoke: the suite `trainer` has runs of its own", "write suite: program"),
    ("program: trainer", "program: 'trainer' is not FOLDER:MODULE", "write program: trainer:tr"),
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
    ("tensorflow: 2", "tensorflow: '2' is not a release", "write 2.21, 2.21.0 or newest"),
    ("python: 3.11.7", "python: '3.11.7' is not a Python version", "write 3.11 or 3.13"),
    ("cuda: {cudnn: 9}", "cuda.cudnn: '9' is not a version", "such as 9.3.0.75"),
    # base
    ("base: debian:12", "base: debian:12 has no digest", "write debian:12@sha256:<digest>"),
    ("base: Own", "base: 'Own' is not an image", "write own, or HOST/PATH@sha256:<digest>"),
    # packages
    ("apt: [libgl1=1.6]", "apt.0: 'libgl1=1.6' is not a Debian package's name", "pins its version"),
    ("requirements: [--index-url x]", "requirements.0: '--index-url x' is an option", "names only"),
    ("requirements: ['a @ https://h/a.whl']", "names a URL, which cannot", "write name==version"),
    ("requirements: [numpy=2]", "requirements.0: 'numpy=2' is not a requirement", "name==version"),
    # the program
    ("program: ../x:x", "program: '../x' lies outside the project", "inside"),
    ("program: a b:x", "program: 'a b' is not a folder's plain name", "letters"),
    ("program: trainer:task.py; id", "program: 'task.py; id' is not a module", "python -m"),
    # user
    ("user: root", "user: expected a whole number, found 'root'", "write user: 1000"),
    ("user: 0", "user: expected at least 1, found '0'", "write user: 1000"),
    ("user: 65534", "user: expected at most 65533", "write user: 1000"),
    # advisories
    (f"advisories: [{ADVISORY}]".replace(", until: 2027-03-31", ""),
     "advisories.0.until: is missing", "add until: 2027"),
    (f"advisories: [{ADVISORY}]".replace("03-31", "02-31"), "'2027-02-31' is not a day", "2027-03"),
    (f"advisories: [{ADVISORY}]".replace("2027-03-31", "1790000000"), "'1790000000' is not", "day"),
    (f"advisories: [{ADVISORY}]".replace("CVE-2023-52425", "expat bug"),
     "advisories.0.id: 'expat bug' is not", "as `builder"),
    (f"advisories: [{ADVISORY}]".replace("loads no XML", "' '"), "reason: is empty", "write why"),
    (f"advisories: [{ADVISORY}]".replace("until", "expiry: 2, until"),
     "advisories.0.expiry: unknown key", "known keys"),
    ("advisories: [CVE-2023-52425]", "advisories.0: expected `name: value` lines", "- {id: "),
    # the file
    ("- a", "not YAML", ""),
    ("\tuser: 1", "not YAML", "indent with spaces, not with a tab"),
]  # fmt: skip


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
    ("text", "message", "fix"),
    [
        ("accelerator: V100\nsize_budget: 2.6", ":2: size_budget: '2.6' is not a size", "2.6 GB"),
        ("accelerator: V100\nsize_budget: 0 GB", ":2: size_budget: expected more than 0", "2.6 GB"),
        ("size_budget: 1 GB", ":1: accelerator: is missing", "add accelerator: V100"),
        ("accelerator: V10", ":1: accelerator: no accelerator is called 'V10'",
         "write V100; known: CPU, "),
        *((text, ":1: ", "") for text in ("", "just text", "- a list")),
    ],
)  # fmt: skip
def test_a_file_that_lacks_something(text: str, message: str, fix: str) -> None:
    error = refused(text)
    assert error.message.startswith(f"{WHERE}{message}") and fix in error.fix


def test_every_mistake_of_a_file_is_told_at_once_in_its_order() -> None:
    error = refused("user: 0\naccelerator: V100\npyton: 3\nsize_budget: 1\n")
    assert error.message.splitlines() == [
        f"{WHERE}:1: user: expected at least 1, found '0' -> write user: 1000",
        f"{WHERE}:3: pyton: unknown key -> did you mean python?",
        f"{WHERE}:4: size_budget: '1' is not a size -> write a number and its unit, such as 2.6 GB",
    ]
    assert error.fix == "mend these 3 lines, then try again"


# What is looked up in the project


def test_a_target_that_there_is_not_names_the_nearest(project: Path, write_target: Write) -> None:
    def refusal(name: str) -> tuple[str, str]:
        with pytest.raises(InputError) as raised:
            image_yaml.load(project, name)
        return raised.value.message, raised.value.fix

    assert image_yaml.load_all(project) == ()
    assert refusal("v100")[1] == "create images/v100/image.yaml"
    write_target(MINIMAL, "v100")
    write_target(MINIMAL.replace("V100", "T4"), "t4")
    assert refusal("V1OO") == (
        "no target is called 'V1OO': there is no images/V1OO/image.yaml",
        "write v100; known: t4, v100",
    )
    assert refusal("../images/v100")[1].endswith("known: t4, v100")


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
    (project / "src" / "vision" / "train").mkdir(parents=True)
    (project / "src" / "vision" / "train" / "__main__.py").touch()
    write_target(MINIMAL + "program: ./src/vision/:vision.train")
    assert image_yaml.load(project, "v100").program.folder == "src/vision"
    (project / "away").symlink_to(project.parent)
    assert "'away' leads outside the project" in problem("program: away:away.task")[0]


def test_folders_that_cannot_be_tags_and_the_mistakes_of_all_files_are_told_at_once(
    project: Path, write_target: Write
) -> None:
    for name, suggested in (
        ("v100 big", "v100-big"), ("base-v100", "v100"), ("-v", "v"), ("v.", "v"), ("all", "v100"),
    ):  # fmt: skip
        write_target(MINIMAL, name)
        with pytest.raises(InputError) as raised:
            image_yaml.load(project, name)
        assert f"the folder's name {name!r} " in raised.value.message
        assert raised.value.fix == f"rename the folder, for example to {suggested}"
        shutil.rmtree(project / "images")
    for name, line in (("a", "usr: 1"), ("b", ""), ("c", "user: 0")):
        write_target(MINIMAL + line, name)
    with pytest.raises(InputError) as raised:
        image_yaml.load_all(project)
    first, second = raised.value.message.splitlines()
    assert first == "images/a/image.yaml:3: usr: unknown key -> did you mean user?"
    assert second.startswith("images/c/image.yaml:3: user: expected at least 1")


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


# Whatever is accepted stays one instruction


# Letters that are welcome somewhere, beside every one that could do harm.
TEXT = st.text(st.sampled_from("ab1._-/:@= äß\n\r\t\x00\x1b\x85\u2028\u202e\"'`$\\;&|<>#(){}"))


@settings(deadline=None)
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


def test_the_schema_in_the_repository_describes_every_field_with_an_example(root: Path) -> None:
    assert (root / "images" / "schema.json").read_text() == schema_text(), "run `builder schema`"
    schema = json.loads(schema_text())
    assert schema["additionalProperties"] is False
    assert tuple(schema["properties"]) == ImageSpec.file_keys()
    assert all(
        field["description"] and field["examples"] for field in schema["properties"].values()
    )
    assert "K80" not in schema["properties"]["accelerator"]["enum"]
    assert {"newest", "2.21", "2.21.0"} < {*schema["properties"]["tensorflow"]["anyOf"][0]["enum"]}


def test_the_trainer_extra_follows_the_default(root: Path) -> None:
    """The trainer is developed with the versions that the images hold."""
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    default = ImageSpec.model_fields["release"].default
    assert f"tensorflow-cpu=={default}" in extra["trainer"]
