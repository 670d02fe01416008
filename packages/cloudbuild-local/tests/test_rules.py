"""What Cloud Build would refuse, each with its line, its fix and its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudbuild_local import rules
from cloudbuild_local.reader import document
from cloudbuild_local.reader.build import dependencies
from cloudbuild_local.reader.finding import Finding

STEP = "steps: [{name: a, script: 'true'}]\n"
KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
MANAGED = "{env: T, versionName: projects/p/secrets/s/versions/1}"
SECRET = f"availableSecrets: {{secretManager: [{MANAGED}]}}"
USES = "steps: [{name: a, secretEnv: [T]}]\n"
NAMES = [f"_A{n}" for n in range(201)]


def check(text: str, trigger: bool = False, **overrides: str) -> tuple[Finding, ...]:
    file = document.parse(text, Path("cloudbuild.yaml"), trigger)
    return rules.check(file, overrides)


def mounts(*volumes: str, options: str = "") -> str:
    """Return a build with one step for each list of volumes."""
    steps = ", ".join(f"{{name: a, volumes: [{volume}]}}" for volume in volumes)
    return f"steps: [{steps}]\n{options}"


def inline(value: str, key: str = KEY) -> str:
    return f"availableSecrets: {{inline: [{{envMap: {{T: {value}}}, kmsKeyName: {key}}}]}}\n"


def objects(text: str) -> str:
    return STEP + f"artifacts: {{objects: {{{text}}}}}"


ERRORS = [
    # the build
    ("tags: [a]", "", "no steps"),
    (STEP + "timeout: 86401s", "timeout", "at most 86400s"),
    (STEP + "timeout: 0s", "timeout", "more than 0s"),
    (STEP + "queueTtl: 0s", "queueTtl", "more than 0s"),
    (STEP + "source: {}", "source", "cannot name its source"),
    (STEP + "options: {diskSizeGb: 4001}", "options.diskSizeGb", "4001 GB"),
    (STEP + "serviceAccount: a@b", "serviceAccount", "not a service account's full name"),
    (STEP + "tags: ['a/b']", "tags[0]", "is not a tag"),
    (STEP + "options: {env: [A]}", "options.env[0]", "is not KEY=VALUE"),
    ("steps:\n" + "- {name: a, script: x}\n" * 301, "steps", "301 steps, at most 300"),
    # steps
    ("steps: [{script: 'true'}]", "steps[0]", "no name"),
    ("steps: [{name: 'A b'}]", "steps[0].name", "names no image"),
    ("steps: [{name: 'a@sha256:abc'}]", "steps[0].name", "'a@sha256:abc' names no image"),
    (STEP + "images: ['<repository>/<name>']", "images[0]", "names no image"),
    (STEP + "images: [gcr.io/app]", "images[0]", "names no image"),
    (STEP + "images: [europe-docker.pkg.dev/p/app]", "images[0]", "names no image"),
    ("steps: [{name: a, script: x, args: [q]}]", "steps[0].args", "exclude each other"),
    ("steps: [{name: a, script: x, entrypoint: q}]", "steps[0].entrypoint", "exclude"),
    (f"steps: [{{name: a, args: [{'x' * 10_001}]}}]", "steps[0].args[0]", "10,001 characters"),
    ("steps: [{name: a, args: [" + "x, " * 101 + "]}]", "steps[0].args", "101 args"),
    ("steps: [{name: a, timeout: 61s}]\ntimeout: 60s", "steps[0].timeout", "at most the build's"),
    ("steps: [{name: a, allowExitCodes: [256]}]", "steps[0].allowExitCodes", "256"),
    ("steps: [{name: a, env: [A]}]", "steps[0].env[0]", "'A' is not KEY=VALUE"),
    # order
    ("steps: [{name: a, id: x}, {name: b, id: x}]", "steps[1].id", "the id of steps[0]"),
    ("steps: [{name: a, id: '-'}]", "steps[0].id", "'-' means no step"),
    ("steps: [{name: a, id: x}, {name: b, waitFor: [q]}]", "steps[1].waitFor[0]", "no step has"),
    ("steps: [{name: a, id: x, waitFor: [x]}]", "steps[0].waitFor", "wait for each other: x -> x"),
    ("steps: [{name: a, id: x, waitFor: [q]}, {name: b, id: q, waitFor: [x]}]",
     "steps[0].waitFor", "x -> q -> x"),
    ("steps: [{name: a, waitFor: [q]}, {name: b, id: q, waitFor: ['-']}]",
     "steps[0].waitFor[0]", "a later step"),
    ("steps: [{name: a, id: x}, {name: b, waitFor: ['-', x]}]",
     "steps[1].waitFor[0]", "'-' beside other ids"),
    # substitutions
    ("steps: [{name: a, args: [$_A]}]", "steps[0].args[0]", "$_A has no value"),
    ("steps: [{name: a, args: [$BRANCH_NAME]}]\nsubstitutions: {BRANCH_NAME: x}",
     "substitutions.BRANCH_NAME", "is built in: a file cannot set it"),
    ("steps: [{name: a, args: [$HOME]}]", "steps[0].args[0]", "$HOME is not a built-in"),
    (STEP + "substitutions: {_A: x}", "substitutions._A", "_A is not used"),
    ("steps: [{name: a, script: echo $_A}]\nsubstitutions: {_A: x}",
     "substitutions._A", "nothing is substituted in script"),
    (STEP + "substitutions: {a: x}", "substitutions.a", "not a name for a substitution"),
    (STEP + "substitutions: {PROJECT_ID: x}", "substitutions.PROJECT_ID", "cannot be overridden"),
    (STEP + f"substitutions: {{_A: {'x' * 4001}}}", "substitutions._A", "4,001 bytes"),
    (STEP + f"substitutions: {{_{'A' * 100}: x}}", f"substitutions._{'A' * 100}", "101 bytes"),
    (STEP + f"substitutions: {{{', '.join(f'{name}: x' for name in NAMES)}}}",
     "substitutions", "201 substitutions, at most 200"),
    ("steps: [{name: a, args: [$_A]}]\nsubstitutions: {_A: $_B, _B: $_A}\n"
     "options: {dynamicSubstitutions: true}", "substitutions._A", "in a circle: _A -> _B -> _A"),
    ("steps: [{name: a, args: ['${BUILD_ID@x}']}]\noptions: {dynamicSubstitutions: true}",
     "steps[0].args[0]", "not an expansion of bash"),
    (STEP + "logsBucket: '${BUILD_ID@x}'\noptions: {dynamicSubstitutions: true}",
     "logsBucket", "not an expansion of bash"),
    # volumes
    (mounts("{name: vol, path: /v}", ""), "steps[0].volumes[0]", "used by this step only"),
    (STEP + "options: {volumes: [{name: vol, path: /v}]}", "options.volumes", "a single step"),
    (mounts("{name: vol, path: /builder/home}", "{name: vol, path: /x}"),
     "steps[0].volumes[0]", "/builder/home is the service's own"),
    (mounts("{name: vol, path: v}", "{name: vol, path: /x}"), "steps[0].volumes[0]", "absolute"),
    (mounts("{name: '-', path: /v}", "{name: '-', path: /x}"), "steps[0].volumes[0]", "not a name"),
    (mounts("{name: vol, path: /v}, {name: vol, path: /w}", "{name: vol, path: /x}"),
     "steps[0].volumes[0]", "appears twice"),
    (mounts("{name: vol, path: /v}", "", options="options: {volumes: [{name: vol, path: /w}]}"),
     "steps[0].volumes[0]", "in options.volumes, too"),
    # secrets
    (USES, "steps[0].secretEnv[0]", "no secret has the variable T"),
    (STEP + "options: {secretEnv: [T]}", "options.secretEnv[0]", "no secret has the variable T"),
    (f"steps: [{{name: a, secretEnv: [T], env: [T=1]}}]\n{SECRET}",
     "steps[0].secretEnv", "T is in env, too"),
    (STEP + f"options: {{env: [T=1], secretEnv: [T]}}\n{SECRET}",
     "options.secretEnv", "T is in env, too"),
    (STEP + SECRET, "availableSecrets.secretManager[0]", "no step uses T"),
    (USES + "availableSecrets: {secretManager: [{env: T, versionName: my-secret}]}",
     "availableSecrets.secretManager[0]", "'my-secret' is not the version of a secret"),
    (USES + inline("aGk=", "my-key"), "availableSecrets.inline[0]", "is not a key of Cloud KMS"),
    (USES + f"availableSecrets: {{secretManager: [{MANAGED}, {MANAGED}]}}",
     "availableSecrets.secretManager[1]", "T is the variable of two secrets, of Secret Manager"),
    (USES + SECRET + f"\nsecrets: [{{secretEnv: {{T: aGk=}}, kmsKeyName: {KEY}}}]",
     "secrets[0].secretEnv.T", "of Secret Manager and of Cloud KMS"),
    (STEP + "availableSecrets: {secretManager: [{versionName: projects/p/secrets/s/versions/1}]}",
     "availableSecrets.secretManager[0]", "no env"),
    ("steps: [{name: a, secretEnv: [$_V]}]\nsubstitutions: {_V: U}\n" + SECRET,
     "steps[0].secretEnv[0]", "no secret has the variable U"),
    (USES + inline("a" * 88_000), "availableSecrets.inline[0].envMap.T", "66,000 bytes"),
    # pools and buckets
    (STEP + "options: {pool: {name: mine}}", "options.pool.name", "is not a private pool's full"),
    (STEP + "options: {pool: {name: projects/p/workerPools/mine}}", "options.pool.name", "private"),
    (STEP + "options: {workerPool: mine}", "options.workerPool", "is not a private pool's full"),
    (STEP + "options: {pool: {name: projects/p/locations/l/workerPools/x}, diskSizeGb: 200}",
     "options.diskSizeGb", "a private pool has machines of its own"),
    (STEP + "options: {workerPool: projects/p/workerPools/x, machineType: E2_HIGHCPU_8}",
     "options.machineType", "has machines of its own"),
    (STEP + "logsBucket: gs://My_Bucket", "logsBucket", "'gs://My_Bucket' is not a bucket"),
    (STEP + "logsBucket: gs://192.168.5.4/logs", "logsBucket", "192.168.5.4/logs' is not a bucket"),
    # what comes out
    (objects("location: bucket, paths: [x]"), "artifacts.objects.location", "is not a bucket"),
    (objects("location: 'gs://bucket/../x', paths: [x]"), "artifacts.objects.location", "bucket"),
    (objects("location: 'gs://bkt'"), "artifacts.objects", "no paths"),
]  # fmt: skip
WARNINGS = [
    (STEP + "options: {workerPool: projects/p/workerPools/x}", "options.workerPool", "deprecated"),
    (STEP + "serviceAccount: projects/p/serviceAccounts/a@b",
     "serviceAccount", "refused if the call names no log bucket"),
    ("steps: [{name: a, allowFailure: true, allowExitCodes: [1]}]",
     "steps[0].allowFailure", "allowExitCodes takes precedence"),
    ("steps: [{name: a, args: x}]", "steps[0].args", "gcloud takes one value"),
    ("steps: [{name: a, args: ['${BUILD_ID:0:8}']}]", "steps[0].args[0]", "expansions are off"),
    ("steps: [{name: a, args: [$_A]}]\nsubstitutions: {_A: $SHORT_SHA}",
     "substitutions._A", "read by triggers"),
    (STEP + "images: ['gcr.io/p/x:$SHORT_SHA']", "images[0]", "no trigger sets the commit"),
    (STEP + "images: ['gcr.io/p/x:$_T']\nsubstitutions: {_T: }", "images[0]", "_T is empty"),
    (USES + f"secrets: [{{secretEnv: {{T: aGk=}}, kmsKeyName: {KEY}}}]",
     "secrets", "superseded by availableSecrets"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "field", "what", "level"),
    [*((*case, "error") for case in ERRORS), *((*case, "warning") for case in WARNINGS)],
    ids=lambda value: value[:40],
)
def test_a_rule(text: str, field: str, what: str, level: str) -> None:
    findings = [finding for finding in check(text) if finding.level == level]
    assert any(finding.field == field and what in finding.what for finding in findings), findings
    assert all(finding.fix and finding.source for finding in findings)


EVERYWHERE = f"""steps:
- {{name: 'gcr.io/$PROJECT_ID/x:$_V', id: a, args: ['${{_V}}', $$HOME, '$(ls)', $lower]}}
- {{name: b, waitFor: ['-'], secretEnv: [T, U], volumes: [{{name: vol, path: /v}}]}}
- {{name: c, env: ['X=${{TF_VAR_x:?}}'], volumes: [{{name: vol, path: $_PATH}}]}}
substitutions:
  _V: '1'
  _PATH: /v
  _SECRET: projects/p/secrets/s/versions/1
  _KEY: {KEY}
  _ACCOUNT: projects/p/serviceAccounts/a@p.iam.gserviceaccount.com
  _POOL: projects/p/locations/europe-west4/workerPools/wheel_build
  _BUCKET: gs://bucket-of-ours
  _LOGS: gs://123.cloudbuild-logs.googleusercontent.com
  _NPM: https://europe-west4-npm.pkg.dev/p/r
  _URL: https://github.com/owner/repository
availableSecrets:
  secretManager: [{{env: T, versionName: $_SECRET}}]
  inline: [{{kmsKeyName: $_KEY, envMap: {{U: CiQA_-+/}}}}]
serviceAccount: ${{_ACCOUNT}}
logsBucket: ${{_LOGS}}
options: {{pool: {{name: $_POOL}}}}
images: ['localhost:5000/a_b/c-d:$BUILD_ID']
tags: [one, 'two.$BUILD_ID']
artifacts:
  objects: {{location: $_BUCKET, paths: [x]}}
  npmPackages: [{{repository: $_NPM, packagePath: x}}]
dependencies: [{{gitSource: {{repository: {{url: $_URL}}, revision: main, destPath: x}}}}]
"""


@pytest.mark.parametrize("trigger", [False, True], ids=["gcloud", "trigger"])
def test_a_good_file_has_no_findings_wherever_it_has_substitutions(trigger: bool) -> None:
    assert check(EVERYWHERE, trigger) == ()
    missing = check(EVERYWHERE.replace("  _URL: https://github.com/owner/repository\n", ""))
    assert [(finding.field, finding.what, finding.line) for finding in missing] == [
        ("dependencies[0].gitSource.repository.url", "$_URL has no value", 26)
    ]


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("_SECRET", "is not the version of a secret", "write projects/P/secrets/S/versions/latest"),
        ("_KEY", "is not a key of Cloud KMS", "write kmsKeyName: projects/P/locations/L/keyRings"),
        ("_ACCOUNT", "is not a service account's full name", "write projects/PROJECT/service"),
        ("_POOL", "is not a private pool's full name", "write projects/P/locations/L/workerPools"),
        ("_BUCKET", "is not a bucket", "write gs://BUCKET/FOLDER/"),
    ],
)
def test_the_value_of_a_substitution_is_checked_where_it_is_used(
    name: str, what: str, fix: str
) -> None:
    (finding,) = check(EVERYWHERE, **{name: "no/such"})
    assert what in finding.what and finding.fix.startswith(fix)
    assert check(EVERYWHERE, **{name: ""}) == (), "most likely, the call sets it"


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
    assert [finding.line for finding in findings] == [5, 7, 10, 13, 14]


def test_a_trigger_is_loose_and_dynamic() -> None:
    text = "steps: [{name: a, args: ['$_A', '${BRANCH_NAME//x/y}']}]\nsubstitutions: {_U: x}"
    assert {finding.level for finding in check(text)} == {"error", "warning"}
    (loose,) = check(text, trigger=True)
    assert (loose.level, loose.what) == ("warning", "$_A has no value: it becomes empty text")
    assert check(text + "\noptions: {substitutionOption: ALLOW_LOOSE}")[0].level == "warning"


@pytest.mark.parametrize("name", ["_HEAD_BRANCH", "_PR_NUMBER"])
def test_what_a_pull_request_gives_needs_no_value(name: str) -> None:
    text = f"steps: [{{name: a, args: [${name}]}}]\n"
    assert check(text, trigger=True) == ()
    assert check(text + "options: {substitutionOption: ALLOW_LOOSE}") == ()
    (by_hand,) = check(text)
    assert (by_hand.level, by_hand.what) == ("error", f"${name} has no value")
    assert by_hand.fix.startswith("check it with --as-trigger")


@pytest.mark.parametrize(
    ("text", "level"), [("${DEBUG,,}", "warning"), ("${DEBUG}", "error"), ("$DEBUG", "error")]
)
def test_an_expansion_of_a_name_of_the_shell_may_be_the_shell_s(text: str, level: str) -> None:
    # as GoogleCloudPlatform/accelerated-platforms, test/ci-cd/cloudbuild/ci-cd/project-cleaner.yaml
    (finding,) = check(f"steps: [{{name: a, args: ['{text}']}}]", trigger=True)
    assert (finding.level, finding.what) == (level, "$DEBUG is not a built-in substitution")


def test_values_of_the_call_count() -> None:
    text = "steps: [{name: a, args: [$_A]}]"
    assert check(text, _A="1") == ()
    assert "_B is not used" in check(text, _A="1", _B="2")[0].what
    assert "10,004" in check(text, _A="x" * 10_004)[0].what  # measured after substitution


def test_what_steps_wait_for() -> None:
    text = """steps: [{name: a, id: x}, {name: b, id: q, waitFor: ['-']}, {name: c, waitFor: [q]},
    {name: d}]"""
    steps = document.parse(text, Path("c.yaml")).build.steps
    expected = (frozenset[int](), frozenset[int](), frozenset({1}), frozenset({0, 1, 2}))
    assert dependencies(steps) == expected


@pytest.mark.parametrize("number", ["9" * 5000, "-1", "1e999", ".inf", "1:30", "0x10", "1_0", "٣"])
def test_an_odd_number_is_a_finding_at_most(number: str) -> None:
    text = f"steps: [{{name: a, timeout: {number}s, allowExitCodes: [{number}]}}]\n"
    findings = check(text + f"timeout: {number}s\noptions: {{diskSizeGb: {number}}}\n")
    assert all(finding.fix for finding in findings)
