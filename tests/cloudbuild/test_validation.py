"""What the service would refuse, each with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from builder.cli.cloud import cloud_app
from builder.cloudbuild.reader import buildfile, validation
from builder.cloudbuild.reader.order import dependencies, needed_for
from builder.cloudbuild.reader.rules.report import Diagnostic
from builder.core.errors import InputError

STEP = "steps: [{name: a, script: 'true'}]\n"


def check(text: str, trigger: bool = False, **given: str) -> tuple[Diagnostic, ...]:
    return validation.check(buildfile.parse(text, Path("cloudbuild.yaml")), given, trigger)


def test_a_good_file() -> None:
    assert (
        check("""
steps:
- {name: 'gcr.io/$PROJECT_ID/x:$_V', id: a, args: ['${_V}', $$HOME, '$(ls)', $lower]}
- {name: b, id: b, waitFor: ['-'], secretEnv: [T], volumes: [{name: vol, path: /v}]}
- {name: c, waitFor: [a, b], volumes: [{name: vol, path: /v}]}
substitutions: {_V: '1'}
images: ['gcr.io/$PROJECT_ID/x:$BUILD_ID']
tags: [one, two]
availableSecrets: {secretManager: [{env: T, versionName: projects/p/secrets/s/versions/1}]}
serviceAccount: projects/p/serviceAccounts/a@p.iam.gserviceaccount.com
options: {logging: CLOUD_LOGGING_ONLY}
""")
        == ()
    )


LONG = "x" * 10_001
KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
MANAGED = "{env: T, versionName: projects/p/secrets/s/versions/1}"
CASES = [
    # the build
    ("tags: [a]", "", "no steps"),
    (STEP + "timeout: 86401s", "timeout", "at most 86400s"),
    (STEP + "timeout: 0s", "timeout", "more than 0s"),
    (STEP + "queueTtl: 0s", "queueTtl", "more than 0s"),
    (STEP + "source: {}", "source", "cannot name its source"),
    (STEP + "options: {diskSizeGb: 4001}", "options.diskSizeGb", "4001 GB"),
    (STEP + "serviceAccount: a@b", "serviceAccount", "not a service account's full name"),
    (STEP + "tags: ['a/b']", "tags[0]", "is not a tag"),
    ("steps:\n" + "- {name: a, script: x}\n" * 301, "steps", "301 steps, at most 300"),
    # steps
    ("steps: [{script: 'true'}]", "steps[0]", "no name"),
    ("steps: [{name: 'A b'}]", "steps[0].name", "names no image"),
    ("steps: [{name: a, script: x, args: [q]}]", "steps[0].args", "exclude each other"),
    ("steps: [{name: a, script: x, entrypoint: q}]", "steps[0].entrypoint", "exclude"),
    (f"steps: [{{name: a, args: [{LONG}]}}]", "steps[0].args[0]", "10,001 characters"),
    ("steps: [{name: a, args: [" + "x, " * 101 + "]}]", "steps[0].args", "101 args"),
    ("steps: [{name: a, timeout: 61s}]\ntimeout: 60s", "steps[0].timeout", "at most the build's"),
    ("steps: [{name: a, allowExitCodes: [256]}]", "steps[0].allowExitCodes", "256"),
    ("steps: [{name: a, env: [A]}]", "steps[0].env[0]", "'A' is not KEY=VALUE"),
    # order
    ("steps: [{name: a, id: x}, {name: b, id: x}]", "steps[1].id", "the id of steps[0]"),
    ("steps: [{name: a, id: x}, {name: b, waitFor: [q]}]", "steps[1].waitFor[0]", "no step has"),
    ("steps: [{name: a, id: x, waitFor: [x]}]", "steps[0].waitFor", "wait for each other: x -> x"),
    (
        "steps: [{name: a, id: x, waitFor: [q]}, {name: b, id: q, waitFor: [x]}]",
        "steps[0].waitFor",
        "x -> q -> x",
    ),
    (
        "steps: [{name: a, waitFor: [q]}, {name: b, id: q, waitFor: ['-']}]",
        "steps[0].waitFor[0]",
        "a later step",
    ),
    (
        "steps: [{name: a, id: x}, {name: b, waitFor: ['-', x]}]",
        "steps[1].waitFor[0]",
        "'-' beside other ids",
    ),
    # substitutions
    ("steps: [{name: a, args: [$_A]}]", "steps[0].args[0]", "$_A has no value"),
    (
        "steps: [{name: a, args: [$BRANCH_NAME]}]\nsubstitutions: {BRANCH_NAME: x}",
        "substitutions.BRANCH_NAME",
        "is built in: a file cannot set it",
    ),
    ("steps: [{name: a, args: [$HOME]}]", "steps[0].args[0]", "$HOME is not a built-in"),
    (STEP + "substitutions: {_A: x}", "substitutions._A", "_A is not used"),
    (
        "steps: [{name: a, script: echo $_A}]\nsubstitutions: {_A: x}",
        "substitutions._A",
        "nothing is substituted in script",
    ),
    (STEP + "substitutions: {a: x}", "substitutions.a", "not a name for a substitution"),
    (STEP + "substitutions: {PROJECT_ID: x}", "substitutions.PROJECT_ID", "cannot be overridden"),
    (
        f"steps: [{{name: a, args: [$_A]}}]\nsubstitutions: {{_A: {'x' * 4001}}}",
        "substitutions._A",
        "longer than 4000 bytes",
    ),
    (
        f"steps: [{{name: a, args: [$_{'A' * 100}]}}]\nsubstitutions: {{_{'A' * 100}: x}}",
        f"substitutions._{'A' * 100}",
        "longer than 100 bytes",
    ),
    (
        "steps: [{name: a, args: ["
        + ", ".join(f"$_A{n}" for n in range(100))
        + "]}, {name: a, args: ["
        + ", ".join(f"$_A{n}" for n in range(100, 200))
        + ", x]}, {name: a, args: [$_A200]}]\nsubstitutions: {"
        + ", ".join(f"_A{n}: x" for n in range(201))
        + "}",
        "substitutions",
        "201 substitutions, at most 200",
    ),
    (
        "steps: [{name: a, args: [$_A]}]\nsubstitutions: {_A: $_B, _B: $_A}\n"
        "options: {dynamicSubstitutions: true}",
        "substitutions._A",
        "in a circle: _A -> _B -> _A",
    ),
    (
        "steps: [{name: a, args: ['${BUILD_ID@x}']}]\noptions: {dynamicSubstitutions: true}",
        "steps[0].args[0]",
        "not an expansion of bash",
    ),
    # volumes
    (
        "steps: [{name: a, volumes: [{name: vol, path: /v}]}, {name: b}]",
        "steps[0].volumes[0]",
        "used by this step only",
    ),
    (
        STEP + "options: {volumes: [{name: vol, path: /v}]}",
        "options.volumes",
        "for a single step",
    ),
    (
        "steps: [{name: a, volumes: [{name: vol, path: /builder/home}]},"
        " {name: b, volumes: [{name: vol, path: /x}]}]",
        "steps[0].volumes[0]",
        "/builder/home is the service's own",
    ),
    (
        "steps: [{name: a, volumes: [{name: vol, path: v}]},"
        " {name: b, volumes: [{name: vol, path: /x}]}]",
        "steps[0].volumes[0]",
        "not absolute",
    ),
    (
        "steps: [{name: a, volumes: [{name: vol, path: /v}, {name: vol, path: /w}]},"
        " {name: b, volumes: [{name: vol, path: /x}]}]",
        "steps[0].volumes[0]",
        "appears twice",
    ),
    (
        "steps: [{name: a, volumes: [{name: vol, path: /v}]}, {name: b}]\n"
        "options: {volumes: [{name: vol, path: /w}]}",
        "steps[0].volumes[0]",
        "in options.volumes, too",
    ),
    # secrets
    ("steps: [{name: a, secretEnv: [T]}]", "steps[0].secretEnv[0]", "no secret has the variable T"),
    (
        "steps: [{name: a, secretEnv: [T], env: [T=1]}]\navailableSecrets: {secretManager: "
        "[{env: T, versionName: projects/p/secrets/s/versions/1}]}",
        "steps[0].secretEnv",
        "T is in env, too",
    ),
    (
        STEP + "availableSecrets: {secretManager: "
        "[{env: T, versionName: projects/p/secrets/s/versions/1}]}",
        "availableSecrets.T",
        "no step uses T",
    ),
    (
        "steps: [{name: a, secretEnv: [T]}]\n"
        "availableSecrets: {secretManager: [{env: T, versionName: my-secret}]}",
        "availableSecrets.T",
        "not a secret's version",
    ),
    (
        f"steps: [{{name: a, secretEnv: [T]}}]\navailableSecrets: {{secretManager: [{MANAGED}, "
        "{env: T, versionName: projects/p/secrets/s/versions/2}]}",
        "availableSecrets.secretManager[1]",
        "T is the variable of two secrets, of Secret Manager",
    ),
    (
        f"steps: [{{name: a, secretEnv: [T]}}]\navailableSecrets: {{secretManager: [{MANAGED}], "
        f"inline: [{{envMap: {{T: aGk=}}, kmsKeyName: {KEY}}}]}}",
        "availableSecrets.inline[0].envMap.T",
        "of Secret Manager and of Cloud KMS",
    ),
    (
        f"steps: [{{name: a, secretEnv: [T]}}]\navailableSecrets: {{secretManager: [{MANAGED}]}}\n"
        f"secrets: [{{secretEnv: {{T: aGk=}}, kmsKeyName: {KEY}}}]",
        "secrets[0].secretEnv.T",
        "of Secret Manager and of Cloud KMS",
    ),
    (
        STEP
        + "availableSecrets: {secretManager: [{versionName: projects/p/secrets/s/versions/1}]}",
        "availableSecrets.secretManager[0]",
        "no env",
    ),
    (
        "steps: [{name: a, secretEnv: [$_V]}]\nsubstitutions: {_V: U}\n"
        f"availableSecrets: {{secretManager: [{MANAGED}]}}",
        "steps[0].secretEnv[0]",
        "no secret has the variable U",
    ),
    (STEP + "options: {secretEnv: [T]}", "options.secretEnv[0]", "no secret has the variable T"),
    (
        STEP + "options: {env: [T=1], secretEnv: [T]}\n"
        f"availableSecrets: {{secretManager: [{MANAGED}]}}",
        "options.secretEnv",
        "T is in env, too",
    ),
    (
        "steps: [{name: a, secretEnv: [T]}]\n"
        f"availableSecrets: {{inline: [{{envMap: {{T: hidden!}}, kmsKeyName: {KEY}}}]}}",
        "availableSecrets.inline[0].envMap.T",
        "is no base64",
    ),
    (
        "steps: [{name: a, secretEnv: [T]}]\n"
        f"availableSecrets: {{inline: [{{envMap: {{T: aGVsbG8hI}}, kmsKeyName: {KEY}}}]}}",
        "availableSecrets.inline[0].envMap.T",
        "is no base64",
    ),
    # pools and buckets
    (STEP + "options: {pool: {name: mine}}", "options.pool.name", "is not a private pool's full"),
    (
        STEP + "options: {pool: {name: projects/p/workerPools/mine}}",
        "options.pool.name",
        "is not a private pool's full name",
    ),
    (STEP + "options: {workerPool: mine}", "options.workerPool", "is not a private pool's full"),
    (
        STEP + "options: {pool: {name: projects/p/locations/l/workerPools/x}, diskSizeGb: 200}",
        "options.diskSizeGb",
        "a private pool has machines of its own",
    ),
    (
        STEP + "options: {workerPool: projects/p/workerPools/x, machineType: E2_HIGHCPU_8}",
        "options.machineType",
        "has machines of its own",
    ),
    (STEP + "logsBucket: gs://My_Bucket", "logsBucket", "'gs://My_Bucket' is not a bucket"),
    (STEP + "logsBucket: gs://192.168.5.4/logs", "logsBucket", "192.168.5.4/logs' is not a bucket"),
    (STEP + f"logsBucket: gs://{'b' * 64}", "logsBucket", "bb' is not a bucket"),
    (STEP + f"logsBucket: gs://a.{'b' * 64}.com", "logsBucket", "b.com' is not a bucket"),
    # what comes out
    (STEP + "images: ['gcr.io/p/X']", "images[0]", "names no image"),
    (
        STEP + "artifacts: {objects: {location: bucket, paths: [x]}}",
        "artifacts.objects.location",
        "is not a bucket",
    ),
    (
        STEP + "artifacts: {objects: {location: 'gs://bucket/../../x', paths: [x]}}",
        "artifacts.objects.location",
        "is not a bucket",
    ),
    (STEP + "artifacts: {objects: {location: 'gs://bkt'}}", "artifacts.objects", "no paths"),
]


@pytest.mark.parametrize(("text", "field", "what"), CASES, ids=[case[2] for case in CASES])
def test_an_error(text: str, field: str, what: str) -> None:
    errors = [one for one in check(text) if one.level == "error"]
    assert any(one.field == field and what in one.what for one in errors), errors
    assert all(one.fix and one.source for one in errors)


@pytest.mark.parametrize(
    ("text", "field", "what"),
    [
        (STEP + "id: x", "id", "sets this itself"),
        ("steps: [{name: a, exitCode: 1}]", "steps[0].exitCode", "sets this itself"),
        (STEP + "options: {workerPool: projects/p/workerPools/x}", "options.workerPool", "deprec"),
        (
            "steps: [{name: a, secretEnv: [T, T]}]\n"
            f"availableSecrets: {{secretManager: [{MANAGED}]}}",
            "steps[0].secretEnv[1]",
            "T appears twice",
        ),
        (
            STEP + "options: {defaultLogsBucketBehavior: LEGACY_BUCKET}",
            "options.defaultLogsBucketBehavior",
            "deprecated",
        ),
        (
            STEP + "serviceAccount: projects/p/serviceAccounts/a@b",
            "serviceAccount",
            "refused if the call names no log bucket",
        ),
        (
            "steps: [{name: a, allowFailure: true, allowExitCodes: [1]}]",
            "steps[0].allowFailure",
            "allowExitCodes takes precedence",
        ),
        ("steps: [{name: a, args: x}]", "steps[0].args", "gcloud takes one value"),
        ("steps: [{name: a, args: ['${BUILD_ID:0:8}']}]", "steps[0].args[0]", "expansions are off"),
        (
            "steps: [{name: a, args: [$_A]}]\nsubstitutions: {_A: $SHORT_SHA}",
            "substitutions._A",
            "read by triggers",
        ),
        (STEP + "images: ['gcr.io/p/x:$SHORT_SHA']", "images[0]", "no trigger sets the commit"),
        (
            STEP + "images: ['gcr.io/p/x:$_T']\nsubstitutions: {_T: }",
            "images[0]",
            "_T is empty",
        ),
        ("steps: [{name: a, env: [A=" + "x" * 1000 + "]}]", "steps[0].env[0]", "at most 1,000"),
    ],
)
def test_a_warning(text: str, field: str, what: str) -> None:
    warnings = [one for one in check(text) if one.level == "warning"]
    assert any(one.field == field and what in one.what for one in warnings), warnings


EVERYWHERE = """steps: [{name: a, secretEnv: [T, U]}, {name: b, env: ['X=${TF_VAR_x:?}']}]
substitutions:
  _SECRET: projects/p/secrets/s/versions/1
  _KEY: projects/p/locations/global/keyRings/r/cryptoKeys/k
  _ACCOUNT: projects/p/serviceAccounts/a@p.iam.gserviceaccount.com
  _POOL: projects/p/locations/europe-west4/workerPools/mine
  _BUCKET: gs://bucket-of-ours
  _LOGS: gs://logs-of-ours
  _MAVEN: https://europe-west4-maven.pkg.dev/p/r
  _NPM: https://europe-west4-npm.pkg.dev/p/r
  _PYTHON: https://europe-west4-python.pkg.dev/p/r
  _URL: https://github.com/owner/repository
availableSecrets:
  secretManager: [{env: T, versionName: $_SECRET}]
  inline: [{kmsKeyName: $_KEY, envMap: {U: aGVsbG8=}}]
serviceAccount: ${_ACCOUNT}
logsBucket: ${_LOGS}
options: {pool: {name: $_POOL}}
artifacts:
  objects: {location: $_BUCKET, paths: [x]}
  mavenArtifacts: [{repository: $_MAVEN, path: x}]
  npmPackages: [{repository: $_NPM, packagePath: x}]
  pythonPackages: [{repository: $_PYTHON, paths: [x]}]
dependencies: [{gitSource: {repository: {url: $_URL}, revision: main, destPath: x}}]
"""


@pytest.mark.parametrize(
    "text", ["aGVsbG8hIQ==", "aGVsbG8hIQ", "CiQA_-+/", '"aGVs\\nbG8h\\nIQ==\\n"']
)
def test_base64_as_the_api_reads_it(text: str) -> None:
    file = buildfile.parse(
        "steps: [{name: a, secretEnv: [T]}]\n"
        f"availableSecrets: {{inline: [{{envMap: {{T: {text}}}, kmsKeyName: {KEY}}}]}}",
        Path("c.yaml"),
    )
    assert validation.check(file) == ()
    assert file.to_proto().available_secrets.inline[0].env_map["T"] in (
        b"hello!!",
        b"\n$\0\xff\xef\xbf",
    )


def test_a_secret_that_is_no_base64_is_not_shown() -> None:
    (found,) = check(
        "steps: [{name: a, secretEnv: [T]}]\n"
        f"availableSecrets: {{inline: [{{envMap: {{T: hidden!}}, kmsKeyName: {KEY}}}]}}",
    )
    assert "hidden!" not in f"{found}"


def test_substitutions_are_read_wherever_the_service_reads_them() -> None:
    assert check(EVERYWHERE) == ()
    old = "options: {pool: {name: $_POOL}}"
    assert check(EVERYWHERE.replace(old, "options: {workerPool: $_POOL}"))[0].what == "deprecated"
    missing = check(EVERYWHERE.replace("  _URL: https://github.com/owner/repository\n", ""))
    assert [(one.field, one.what, one.line) for one in missing] == [
        ("dependencies[0].gitSource.repository.url", "$_URL has no value", 23)
    ]


@pytest.mark.parametrize(
    "bucket", ["gs://google-builds/logs", "gs://123.cloudbuild-logs.googleusercontent.com", "ours"]
)
def test_a_bucket_of_google_s_own_projects_is_a_bucket(bucket: str) -> None:
    assert check(STEP + f"logsBucket: {bucket}") == ()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("_SECRET", "is not a secret's version"),
        ("_KEY", "is not a secret's version"),
        ("_ACCOUNT", "is not a service account's full name"),
        ("_BUCKET", "is not a bucket"),
    ],
)
def test_the_value_of_a_substitution_is_checked_where_it_is_used(name: str, what: str) -> None:
    assert [what in one.what for one in check(EVERYWHERE, **{name: "no/such"})] == [True]
    assert check(EVERYWHERE, **{name: ""}) == (), "most likely, the call sets it"


@pytest.mark.parametrize("name", ["_HEAD_BRANCH", "_BASE_BRANCH", "_HEAD_REPO_URL", "_PR_NUMBER"])
def test_what_a_pull_request_gives_draws_no_warning(name: str) -> None:
    text = f"steps: [{{name: a, args: [${name}]}}]\n"
    assert check(text, trigger=True) == ()
    assert check(text + "options: {substitutionOption: ALLOW_LOOSE}") == ()
    (by_hand,) = check(text)
    assert (by_hand.level, by_hand.what) == ("error", f"${name} has no value")
    assert by_hand.fix.startswith("check it with --as-trigger")


def test_a_shell_variable_of_mixed_case_is_the_shell_s() -> None:
    text = "steps: [{name: a, args: ['${TF_VAR_x:?}', '${TF_VAR_x}']}]\n"
    assert check(text) == check(text, trigger=True) == ()
    assert check(text + "options: {dynamicSubstitutions: true}") == ()


def test_the_line_of_a_finding() -> None:
    findings = check("""steps:
- name: a
  args:
  - ok
  - $_MISSING
- name: b
  waitFor: [gone]
artifacts:
  images:
  - 'gcr.io/p/X'
availableSecrets:
  secretManager:
  - {env: OK, versionName: projects/p/secrets/s/versions/1}
  - env: UNUSED
    versionName: projects/p/secrets/s/versions/1
""")
    lines = {one.what.partition(" ")[0]: one.line for one in findings}
    assert lines["$_MISSING"] == 5
    assert {one.line for one in findings} == {5, 7, 10, 13, 14}


def test_a_trigger_is_loose_and_dynamic() -> None:
    text = "steps: [{name: a, args: ['$_A', '${BRANCH_NAME//x/y}']}]\nsubstitutions: {_U: x}"
    assert {one.level for one in check(text)} == {"error", "warning"}
    loose = check(text, trigger=True)
    assert [(one.level, one.what) for one in loose] == [
        ("warning", "$_A has no value: it becomes empty text")
    ]
    assert check(text + "\noptions: {substitutionOption: ALLOW_LOOSE}")[0].level == "warning"


def test_values_of_the_call_count() -> None:
    text = "steps: [{name: a, args: [$_A]}]"
    assert check(text, _A="1") == ()
    assert "_B is not used" in check(text, _A="1", _B="2")[0].what
    assert "SHORT_SHA is not used" in check(text, _A="1", SHORT_SHA="2")[0].what
    assert "10,004" in check(text, _A="x" * 10_004)[0].what  # measured after substitution


def test_what_steps_wait_for() -> None:
    steps = buildfile.parse(
        "steps: [{name: a, id: x}, {name: b, id: q, waitFor: ['-']}, {name: c, waitFor: [q]}, "
        "{name: d}]",
        Path("c.yaml"),
    ).build.steps
    assert dependencies(steps) == (
        frozenset(),
        frozenset(),
        frozenset({1}),
        frozenset({0, 1, 2}),
    )
    assert needed_for(steps, 2) == (1, 2)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no project: any file will do

    def call(text: str, *words: str) -> Result:
        (tmp_path / "c.yaml").write_text(text)
        return CliRunner().invoke(cloud_app, ["validate", "c.yaml", *words])

    broken = "steps:\n- name: a\n  nope: 1\n"
    done = call(broken)
    assert done.exit_code == 2
    assert done.stdout.startswith("c.yaml:3: error: steps[0].nope: unknown field of BuildStep; ")
    assert "1 errors, 0 warnings" in done.stderr
    done = call(broken, "--json")
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    assert (found["valid"], found["findings"][0]["line"]) == (False, 3)
    warned = "steps: [{name: a}]\noptions: {workerPool: projects/p/workerPools/x}"
    assert call(warned).exit_code == 0
    assert call(warned, "--strict").exit_code == 2


# Several files, and other forms -------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good file, one with an error, one with a warning, and one that is no YAML."""
    texts = {
        "a/good.yaml": STEP,
        "a/b/bad.yaml": "steps:\n- name: a\n  nope: 1\n",
        "a/b/warned.yaml": STEP + "options: {workerPool: projects/p/workerPools/x}\n",
        "c/broken.yaml": "steps:\n- name: 'a\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(*words: str) -> Result:
    return CliRunner().invoke(cloud_app, ["validate", *words])


def test_several_files_and_globs(folder: Path) -> None:
    done = called("a/good.yaml", "a/**/*.yaml")
    assert done.exit_code == 2
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == [
        "a/b/bad.yaml:3",
        "a/b/warned.yaml:2",
    ]
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [
        "a/good.yaml",
        "a/b/bad.yaml",
        "a/b/warned.yaml",
    ]
    assert called("a/good.yaml", "a/b/warned.yaml").exit_code == 0
    assert called("a/good.yaml", "a/b/warned.yaml", "--strict").exit_code == 2


def test_a_file_that_is_no_yaml_does_not_hide_the_others(folder: Path) -> None:
    done = called("c/broken.yaml", "a/b/bad.yaml")
    assert done.exit_code == 2
    broken, bad = done.stdout.splitlines()
    assert broken.startswith("c/broken.yaml:3: error: not YAML: ")
    assert bad.startswith("a/b/bad.yaml:3: error: steps[0].nope: ")


@pytest.mark.parametrize("name", ["gone.yaml", "gone/*.yaml"])
def test_a_name_or_a_glob_of_no_file_is_an_error(folder: Path, name: str) -> None:
    done = called("a/good.yaml", name)
    assert isinstance(done.exception, InputError)
    assert done.exception.message == f"{name}: no such file"


def test_json_of_several_files_is_a_list(folder: Path) -> None:
    rows = json.loads(called("a/b/*.yaml", "--json").stdout)
    assert [(row["file"], row["valid"]) for row in rows] == [
        ("a/b/bad.yaml", False),
        ("a/b/warned.yaml", True),
    ]
    assert [row["file"] for row in json.loads(called("a/*.yaml", "--json").stdout)] == [
        "a/good.yaml"
    ]
    assert json.loads(called("./a/good.yaml", "--json").stdout)["valid"], "one file: no list"
    done = called("a/good.yaml", "--json", "--format", "sarif")
    assert isinstance(done.exception, InputError)


def test_findings_as_commands_of_github(folder: Path) -> None:
    done = called("a/**/*.yaml", "--format", "github")
    assert done.exit_code == 2
    bad, warned = done.stdout.splitlines()
    assert bad.startswith("::error file=a/b/bad.yaml,line=3,title=steps[0].nope::steps[0].nope: ")
    assert warned.startswith("::warning file=a/b/warned.yaml,line=2,title=options.workerPool::")
    (folder / "50%,a:b.yaml").write_text("steps: []\n")
    odd = called("50%,a:b.yaml", "--format", "github").stdout
    assert odd.startswith("::error file=50%25%2Ca%3Ab.yaml,line=1,title=")
    assert called("a/b/warned.yaml", "--strict", "--format", "github").stdout.startswith("::error")


def test_findings_as_sarif(folder: Path) -> None:
    (folder / "a/b/of ours.yaml").write_text("steps: [{name: a, args: [$_A]}]\n")
    done = called("a/**/*.yaml", "c/*.yaml", "--format", "sarif")
    assert done.exit_code == 2
    log = json.loads(done.stdout)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    found = [
        (
            one["ruleId"],
            one["level"],
            one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            one["locations"][0]["physicalLocation"]["region"]["startLine"],
        )
        for one in run["results"]
    ]
    assert found == [
        ("steps.nope", "error", "a/b/bad.yaml", 3),
        ("steps.args", "error", "a/b/of%20ours.yaml", 1),
        ("options.workerPool", "warning", "a/b/warned.yaml", 2),
        ("build", "error", "c/broken.yaml", 3),
    ]
    assert {one["id"] for one in run["tool"]["driver"]["rules"]} == {one[0] for one in found}
    assert all(one["message"]["text"] for one in run["results"])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("1h30m", 5400), ("1.5h", 5400), ("600s", 600)]
)
def test_a_trigger_takes_go_s_durations_and_gcloud_does_not(text: str, seconds: int) -> None:
    # as GoogleCloudPlatform/accelerated-platforms, test/ci-cd/cloudbuild: `timeout: 90m`
    read = buildfile.parse(f"steps: [{{name: a, timeout: 1s}}]\ntimeout: {text}", Path("b.yaml"))
    assert read.build.timeout == seconds
    found = {trigger: validation.check(read, {}, trigger) for trigger in (False, True)}
    plain = text == "600s"
    assert [one.level for one in found[False]] == ([] if plain else ["error"])
    assert [one.level for one in found[True]] == ([] if plain else ["warning"])
    assert plain or found[True][0].fix == "write 5400s"


@pytest.mark.parametrize(
    ("text", "level"), [("${DEBUG,,}", "warning"), ("${DEBUG}", "error"), ("$DEBUG", "error")]
)
def test_an_expansion_of_a_name_of_the_shell_may_be_the_shell_s(text: str, level: str) -> None:
    # as GoogleCloudPlatform/accelerated-platforms, test/ci-cd/cloudbuild/ci-cd/project-cleaner.yaml
    read = buildfile.parse(f"steps: [{{name: a, args: ['{text}']}}]", Path("b.yaml"))
    (found,) = validation.check(read, {}, trigger=True)
    assert (found.level, found.what) == (level, "$DEBUG is not a built-in substitution")
