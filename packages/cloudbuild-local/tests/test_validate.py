"""`cloudbuild-local validate` and `schema`, and the calls of `run` that cannot be right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudbuild_local import cli

STEP = "steps: [{name: a, script: 'true'}]\n"
BAD = "steps:\n- name: a\n  nope: 1\n"
WARNED = STEP + "options: {workerPool: projects/p/workerPools/x}\n"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Runs the command in a folder with several files. Returns exit code, stdout and stderr."""
    texts = {
        "a/good.yaml": STEP,
        "a/b/bad.yaml": BAD,
        "a/b/warned.yaml": WARNED,
        "c/broken.yaml": "steps:\n- name: 'a\n",
        "cloudbuild.yaml": "steps: [{name: a, args: [echo, $PROJECT_ID]}]\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


def test_findings_for_people_and_for_machines(call: Call) -> None:
    code, out, err = call("validate", "a/b/bad.yaml")
    assert code == 2
    assert out.startswith("a/b/bad.yaml:3: error: steps[0].nope: unknown field of BuildStep; ")
    assert err == "a/b/bad.yaml: 1 steps, 1 errors, 0 warnings\n"
    code, out, err = call("validate", "a/b/bad.yaml", "--json", "--quiet")
    row = json.loads(out)
    assert (code, row["valid"], row["findings"][0]["line"], err) == (2, False, 3, "")
    assert call("validate")[0] == 0, "cloudbuild.yaml"
    assert call("validate", "--substitutions", "_A=1")[0] == 2, "no text uses it"
    assert call("validate", "a/b/warned.yaml")[0] == 0
    assert call("validate", "a/b/warned.yaml", "--strict")[0] == 2


def test_several_files_and_globs(call: Call) -> None:
    code, out, err = call("validate", "a/good.yaml", "a/**/*.yaml")
    assert code == 2
    assert [line.partition(": ")[0] for line in out.splitlines()] == [
        "a/b/bad.yaml:3", "a/b/warned.yaml:2",
    ]  # fmt: skip
    assert [line.partition(": ")[0] for line in err.splitlines()] == [
        "a/good.yaml", "a/b/bad.yaml", "a/b/warned.yaml",
    ]  # fmt: skip
    rows = json.loads(call("validate", "a/*.yaml", "--json")[1])
    assert [row["file"] for row in rows] == ["a/good.yaml"], "a glob gives a list"


def test_a_file_that_cannot_be_read_hides_no_other_s_findings(call: Call) -> None:
    code, out, _ = call("validate", "gone.yaml", "gone/*.yaml", "c/broken.yaml", "a/b/bad.yaml")
    assert code == 2
    gone, globbed, broken, bad = out.splitlines()
    assert gone.startswith("gone.yaml:1: error: no such file; ")
    assert globbed.startswith("gone/*.yaml:1: error: no such file; ")
    assert broken.startswith("c/broken.yaml:3: error: not YAML: ")
    assert bad.startswith("a/b/bad.yaml:3: error: steps[0].nope: ")


def test_a_dry_run_shows_what_would_run(call: Call) -> None:
    code, out, _ = call("run", "--dry-run", "--project", "mine", "--map", "a=local")
    (step,) = json.loads(out)["steps"]
    assert code == 0
    assert (step["image"], step["step"]["name"]) == ("local", "a")
    assert step["step"]["args"] == ["echo", "mine"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--map", "ubuntu"], "--map: 'ubuntu' is not IMAGE=LOCAL"),
        (["--secret", "NOT_THERE"], "--secret NOT_THERE: this shell has no variable NOT_THERE"),
        (["--secret", "T=gone"], "--secret T: gone cannot be read"),
        (["--source", "gone"], "Directory 'gone' does not exist"),
        (["--run-secrets", "gone"], "'--run-secrets': Directory 'gone' does"),
        (["--substitutions", "A"], "--substitutions: 'A' has no value"),
        (["--step", "nine"], "no step 'nine'"),
        (["other.yaml"], "other.yaml: no such file"),
        (["a/b/bad.yaml"], "a/b/bad.yaml:3: steps[0].nope: unknown field of BuildStep"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_a_call_that_cannot_be_right(call: Call, words: list[str], message: str) -> None:
    code, _, err = call("run", *words)
    assert code == 2
    assert message in err


def test_no_engine(call: Call) -> None:
    code, _, err = call("run", "--engine", "unix:///no/such.sock")
    assert code == 3
    assert err.startswith("error: no Docker engine answers at unix:///no/such.sock: ")
    assert "--engine unix:///path/to/docker.sock" in err


# The schema ---------------------------------------------------------------------------------------


def test_the_schema_for_editors_takes_and_refuses_builds(call: Call) -> None:
    import jsonschema  # a second of every collection

    schema = json.loads(call("schema")[1])
    jsonschema.Draft7Validator.check_schema(schema)
    step = {"name": "a", "wait_for": "-", "waitFor": ["-"], "timeout": "1.5s"}
    jsonschema.validate({"steps": [step], "options": {"diskSizeGb": "200"}}, schema)
    for build, field in (
        ({"steps": [{"name": "a", "arg": ["x"]}]}, "arg"),
        ({"steps": [{"name": "a", "timeout": "1m"}]}, "1m"),
        ({"steps": [{"name": 1}]}, "1"),
        ({"options": {"machineType": "HUGE"}}, "HUGE"),
    ):
        with pytest.raises(jsonschema.ValidationError, match=field):
            jsonschema.validate(build, schema)
