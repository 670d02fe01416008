"""A cloudbuild.yaml becomes a frozen value that knows its lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudbuild_local.errors import InputError
from cloudbuild_local.reader import document
from cloudbuild_local.reader.build import Build, Step, Volume
from cloudbuild_local.reader.document import BuildFile

PATH = Path("cloudbuild.yaml")


def parse(text: str) -> BuildFile:
    return document.parse(text, PATH)


def test_a_build() -> None:
    build = parse("""
steps:
- name: ubuntu
  id: one
  args: [a, 'b']
  env: [A=1]
  waitFor: ['-']
  timeout: 1.5s
  volumes: [{name: vol, path: /v}]
  allowExitCodes: [3]
- {name: debian, script: 'true', automapSubstitutions: false, wait_for: [], dir: }
images: [a/b]
artifacts: {images: [a/b, c/d], npmPackages: [{packagePath: x}]}
options: {diskSizeGb: '200', dynamic_substitutions: true}
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
    assert build.steps[1] == Step(1, "debian", script="true", automap_substitutions=False)
    assert build.steps[1].label == "Step #1"
    assert build.images == ("a/b", "c/d")
    assert build.other_artifacts == ("npmPackages",)
    assert (build.options.disk_size_gb, build.options.dynamic_substitutions) == (200, True)
    assert build.timeout == 3600
    assert parse("").build == Build()


def test_merged_mappings_and_their_lines() -> None:
    file = parse("steps:\n- &one\n  name: a\n  id: x\n- <<: *one\n  id: q\n")
    assert [(step.name, step.id) for step in file.build.steps] == [("a", "x"), ("a", "q")]
    assert file.line(("steps", 1, "id")) == 6
    assert file.line(("steps", 1, "name")) == 3
    assert file.line(("steps", 1, "no", "such")) == 5


def test_json_may_be_indented_with_tabs() -> None:
    text = '{\n\t"steps": [\n\t\t{"name": "a"}\n\t]\n}'
    file = document.parse(text, Path("b.json"))
    assert file.build.steps[0].name == "a"
    assert file.line(("steps", 0, "name")) == 3


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
        ("substitutions:\n  _A: [b]", 2, "substitutions._A", "must be text", "write text"),
        ("substitutions: [{_A: b}]", 1, "substitutions", "must be a mapping", "name: value"),
        ("timeout: 600", 1, "timeout", "not a duration", "write 600s"),
        ("timeout: 10d", 1, "timeout", "not a duration", "write 600s"),
        ("options: {machineType: E2_HIGHCPU8}", 1, "options.machineType", "not one of", "_8"),
        ("options: {diskSizeGb: big}", 1, "options.diskSizeGb", "a whole number", "a whole"),
        ("steps: [{name: a, allowFailure: 'true'}]", 1, "steps[0].allowFailure", "true or false",
         "without quotes"),
        ("steps: text", 1, "steps", "must be a mapping, found 'text'", "name: value"),
        ("[a, b]", 1, "", "must be a mapping, found a list", "fields:"),
        ("tags: [a]\ntags: [b]", 2, "tags", "appears twice, first in line 1", "keep one"),
        ("queueTtl: 1s\nqueue_ttl: 2s", 2, "queueTtl", "appears twice", "keep one"),
        ("steps: &a\n- *a", 1, "steps[0]", "must be a mapping, found a list", "fields: name"),
    ],
)  # fmt: skip
def test_what_is_no_build(text: str, line: int, field: str, what: str, fix: str) -> None:
    finding = parse(text).findings[0]
    assert (finding.line, finding.field) == (line, field)
    assert what in finding.what
    assert fix in finding.fix


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        document.read(tmp_path / "gone.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        document.read(tmp_path / "binary.yaml")
    for text, line in (("steps:\n- a: [", 2), ("\tsteps: []", 1), ("steps:\n  - name: a\n- b", 3)):
        with pytest.raises(InputError, match=rf"cloudbuild.yaml:{line}: not YAML"):
            parse(text)


def test_aliases_that_stand_for_too_many_values_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(document, "MAX_VALUES", 1000)
    args, steps = ", ".join(["x"] * 40), ", ".join(["*s"] * 40)
    merges = [f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}" for n in range(1, 30)]
    for text in (
        f"steps: [&s {{name: a, args: [{args}]}}, {steps}]",
        "\n".join(["m0: &m0 {name: a}", *merges, "steps: [*m29]"]),
        "steps: [&s {name: a, <<: *s}]",
        "steps: " + "[" * 400 + "]" * 400,
    ):
        with pytest.raises(InputError, match="more than 1,000 values, or nested too deeply"):
            parse(text)


def test_an_anchor_that_stands_twice_is_yaml() -> None:
    text = "steps: [{name: a, args: &x [b]}, {name: a, args: &x [c]}, {name: a, args: *x}]\n"
    assert parse(text).value["steps"][2]["args"] == ["c"]


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("1h30m", 5400), ("600s", 600)])
def test_a_trigger_takes_go_s_durations_and_gcloud_does_not(text: str, seconds: int) -> None:
    # as GoogleCloudPlatform/accelerated-platforms, test/ci-cd/cloudbuild: `timeout: 90m`
    text = f"steps: [{{name: a}}]\ntimeout: {text}"
    levels = {}
    for trigger in (False, True):
        file = document.parse(text, PATH, trigger)
        assert file.build.timeout == seconds
        levels[trigger] = [(finding.level, finding.fix) for finding in file.findings]
    if text.endswith("m"):
        assert levels == {False: [("error", "write 5400s")], True: [("warning", "write 5400s")]}
    else:
        assert levels == {False: [], True: []}
