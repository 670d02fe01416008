"""A cloudbuild.yaml becomes a frozen value that knows its lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.cloudbuild.reader import buildfile
from builder.cloudbuild.reader.build import Build, Step, Volume
from builder.cloudbuild.reader.buildfile import BuildFile
from builder.core.errors import InputError

PATH = Path("cloudbuild.yaml")


def read(text: str) -> BuildFile:
    return buildfile.parse(text, PATH)


def test_a_build_as_it_is_carried_out() -> None:
    build = read("""
steps:
- name: ubuntu
  id: one
  args: [a, 'b']
  env: [A=1]
  waitFor: ['-']
  timeout: 1.5s
  volumes: [{name: vol, path: /v}]
  allowExitCodes: [3]
- {name: debian, script: 'true', automapSubstitutions: false}
images: [a/b]
artifacts: {images: [a/b, c/d], npmPackages: [{packagePath: x}]}
options: {diskSizeGb: '200', dynamicSubstitutions: true}
availableSecrets: {secretManager: [{env: T, versionName: projects/p/secrets/s/versions/1}]}
""").build
    assert build.steps[0] == Step(
        index=0,
        name="ubuntu",
        id="one",
        args=("a", "b"),
        env=("A=1",),
        wait_for=("-",),
        timeout=1.5,
        volumes=(Volume("vol", "/v"),),
        allow_exit_codes=(3,),
    )
    assert build.steps[1].automap_substitutions is False
    assert build.steps[1].wait_for is None
    assert build.steps[1].label == "Step #1"
    assert build.images == ("a/b", "c/d")
    assert build.other_artifacts == ("npmPackages",)
    assert build.options.disk_size_gb == 200
    assert build.secrets == {"T": "projects/p/secrets/s/versions/1"}
    assert build.timeout == 3600


def test_names_in_snake_case_and_nothing() -> None:
    build = read("steps: [{name: a, wait_for: [x], secret_env: [], dir: }]\nqueue_ttl: 5s").build
    assert build.steps[0].wait_for == ("x",)
    assert build.steps[0].dir == ""
    assert build.queue_ttl == 5


def test_to_proto() -> None:
    read_ = read("steps: [{name: a, dir: d, timeout: 60s, results: [{name: r}]}]\ntimeout: 1200s")
    proto = read_.to_proto()
    assert (proto.steps[0].dir_, proto.timeout.seconds) == ("d", 1200)
    assert proto.steps[0].timeout.seconds == 60
    assert read_.newer == ("steps.results",)  # the client has no such field yet


def test_merged_mappings_and_their_lines() -> None:
    read_ = read("steps:\n- &one\n  name: a\n  id: x\n- <<: *one\n  id: q\n")
    assert [(one.name, one.id) for one in read_.build.steps] == [("a", "x"), ("a", "q")]
    assert read_.line("steps", 1, "id") == 6
    assert read_.line("steps", 1, "name") == 3
    assert read_.where("steps", 1, "no", "such") == "cloudbuild.yaml:5"


def test_json_with_tabs() -> None:
    text = '{\n\t"steps": [\n\t\t{"name": "a"}\n\t]\n}'
    read_ = buildfile.parse(text, Path("b.json"))
    assert read_.build.steps[0].name == "a"
    assert read_.line("steps", 0, "name") == 3
    with pytest.raises(InputError, match=r"b.json:2: not JSON"):
        buildfile.parse('{"steps":\n[}', Path("b.json"))


@pytest.mark.parametrize(
    ("text", "line", "field", "what", "fix"),
    [
        ("steps:\n- nam: a", 2, "steps[0].nam", "unknown field", "write name"),
        ("steps:\n- name: a\n  machineType: E2_MEDIUM", 3, "steps[0].machineType", "unknown",
         "field of options"),
        ("stepz: []", 1, "stepz", "unknown field of Build", "write steps"),
        ("steps:\n- name: a\n  args:\n  - 8080", 4, "steps[0].args[0]", "a number", '"8080"'),
        ("steps: [{name: a, args: [yes]}]", 1, "steps[0].args[0]", "true or false", '"yes"'),
        ("steps: [{name: a, args: [2020-01-01]}]", 1, "steps[0].args[0]", "a timestamp", '"2020'),
        ("substitutions:\n  _A: 1", 2, "substitutions._A", "a number", '"1"'),
        ("timeout: 600", 1, "timeout", "not a duration", "write 600s"),
        ("timeout: 10d", 1, "timeout", "not a duration", "write 600s"),
        ("options: {machineType: E2_HIGHCPU8}", 1, "options.machineType", "not one of", "_8"),
        ("options: {logging: gcs}", 1, "options.logging", "not one of", "GCS_ONLY"),
        ("options: {diskSizeGb: big}", 1, "options.diskSizeGb", "a whole number", "a whole"),
        ("steps: [{name: a, allowFailure: 'true'}]", 1, "steps[0].allowFailure", "true or false",
         "without quotes"),
        ("steps: text", 1, "steps", "must be a mapping, found 'text'", "name: value"),
        ("[a, b]", 1, "", "the file must be a mapping", "fields:"),
        ("steps: [a]", 1, "steps[0]", "must be a mapping, found 'a'", "fields: name"),
        ("tags: [a]\ntags: [b]", 2, "tags", "appears twice, first in line 1", "keep one"),
        ("queueTtl: 1s\nqueue_ttl: 2s", 2, "queueTtl", "appears twice", "keep one"),
        ("steps: &a\n- *a", 1, "steps[0]", "contains itself", "write"),
    ],
)  # fmt: skip
def test_what_is_no_build(text: str, line: int, field: str, what: str, fix: str) -> None:
    problem = read(text).problems[0]
    assert (problem.line, problem.field) == (line, field)
    assert what in problem.what
    assert fix in problem.fix


def test_load_names_the_first_problem_and_how_many_there_are(tmp_path: Path) -> None:
    file = tmp_path / "cloudbuild.yaml"
    file.write_text("steps:\n- nam: a\n- nam: b\n")
    with pytest.raises(InputError) as error:
        buildfile.load(file)
    assert error.value.message.startswith(f"{file}:2: steps[0].nam: unknown field of BuildStep (1 ")
    assert error.value.fix == "write name"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        buildfile.load(tmp_path / "gone.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        buildfile.load(tmp_path / "binary.yaml")
    with pytest.raises(InputError, match=r"cloudbuild.yaml:2: not YAML"):
        read("steps:\n- a: [")
    with pytest.raises(InputError, match=r"cloudbuild.yaml:1: not YAML"):
        read("\tsteps: []")


def test_an_empty_file_is_an_empty_build() -> None:
    assert read("").build == Build()


def test_a_value_that_the_api_cannot_hold_is_no_fault_of_the_factory() -> None:
    file = buildfile.parse("steps: [{name: a}]\ncreateTime: yesterday\n", Path("cloudbuild.yaml"))
    with pytest.raises(InputError, match=r"^cloudbuild.yaml: .*createTime"):
        file.to_proto()


def test_an_anchor_that_stands_twice_is_yaml_and_warns_nobody(
    recwarn: pytest.WarningsRecorder,
) -> None:
    text = "steps: [{name: a, args: &x [b]}, {name: a, args: &x [c]}, {name: a, args: *x}]\n"
    found = buildfile.parse(text, Path("cloudbuild.yaml"))
    assert found.value["steps"][2]["args"] == ["c"]
    assert not list(recwarn)
