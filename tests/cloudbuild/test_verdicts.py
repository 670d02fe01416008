"""Verdicts over small builds of our own that stand for the features of public ones.

The public files themselves: public-builds.tsv and scripts/judge-public-builds. Each row here: the
build, and the first error as gcloud and as a trigger would have it; empty where it is accepted.
"""

# ruff: noqa: E501 - a build in a line each
from __future__ import annotations

from pathlib import Path

import pytest

from builder.cloudbuild.reader import buildfile, validation
from builder.core.errors import InputError

ACCEPTED = {
    "an image by substitutions": "steps: [{name: d, args: [build, -t, '$LOCATION-docker.pkg.dev/$PROJECT_ID/r/i:$BUILD_ID', .]}]",
    "a script and its own variables": "steps: [{name: a, script: 'echo $HOME ${x,,}'}]\noptions: {automapSubstitutions: true}",
    "shell's variables with two dollars": "steps: [{name: a, args: [-c, 'for i in 1; do echo $$i; done'], entrypoint: bash}]",
    "lower case for the shell": "steps: [{name: a, args: [-c, 'x=1; echo ${x} $(date) $? $1']}]",
    "variables of terraform": "steps: [{name: a, args: ['${TF_VAR_x}'], env: ['TF_VAR_x=1']}]",
    "a default for a value": "steps: [{name: a, args: ['${_X:-d}']}]\nsubstitutions: {_X: ''}\noptions: {dynamicSubstitutions: true}",
    "a value that names another": "steps: [{name: a, args: [$_B]}]\nsubstitutions: {_A: x, _B: '${_A}/y'}\noptions: {dynamicSubstitutions: true}",
    "loose": "steps: [{name: a, args: [$_NONE]}]\noptions: {substitutionOption: ALLOW_LOOSE}",
    "snake case": "steps: [{name: a, wait_for: ['-'], allow_failure: true, secret_env: [T]}]\navailable_secrets: {secret_manager: [{version_name: projects/p/secrets/s/versions/1, env: T}]}",
    "exit codes": "steps: [{name: a, allowExitCodes: [1, 2]}]",
    "secrets of Secret Manager": "steps: [{name: a, secretEnv: [T], script: 'x $T'}]\navailableSecrets: {secretManager: [{versionName: projects/$PROJECT_ID/secrets/s/versions/latest, env: T}]}",
    "an inline secret": "steps: [{name: a, secretEnv: [T]}]\navailableSecrets: {inline: [{kmsKeyName: projects/p/locations/global/keyRings/r/cryptoKeys/k, envMap: {T: aGk=}}]}",
    "a private pool": "steps: [{name: a}]\noptions: {pool: {name: projects/p/locations/us-east1/workerPools/w}}",
    "a pool by substitution": "steps: [{name: a}]\nsubstitutions: {_P: projects/p/locations/l/workerPools/w}\noptions: {pool: {name: $_P}}",
    "an account": "steps: [{name: a}]\nserviceAccount: projects/$PROJECT_ID/serviceAccounts/x@y.iam.gserviceaccount.com\noptions: {logging: CLOUD_LOGGING_ONLY}",
    "objects": "steps: [{name: a}]\nartifacts: {objects: {location: 'gs://b-$PROJECT_ID/x/', paths: ['*.txt', out/**]}}",
    "packages": "steps: [{name: a}]\nartifacts: {pythonPackages: [{repository: 'https://l-python.pkg.dev/p/r', paths: [dist/*]}], mavenArtifacts: [{repository: 'https://l-maven.pkg.dev/p/r', path: a.jar, artifactId: a, groupId: g, version: '1'}]}",
    "a volume of two steps": "steps: [{name: a, volumes: [{name: vol, path: /v}]}, {name: b, volumes: [{name: vol, path: /w}]}]",
    "order": "steps: [{name: a, id: x, waitFor: ['-']}, {name: a, waitFor: [x]}]",
    "steps with the name of a step's image": "steps: [{name: d, args: [build, -t, 'gcr.io/p/x', .]}, {name: gcr.io/p/x}]\nimages: [gcr.io/p/x]",
    "an image by digest": f"steps: [{{name: 'a@sha256:{'0' * 64}'}}]",
    "a machine and a disk": "steps: [{name: a}]\noptions: {machineType: E2_HIGHCPU_32, diskSizeGb: '200'}",
    "times": "steps: [{name: a, timeout: 10s}]\ntimeout: 1200.5s\nqueueTtl: 60s",
    "tags": "steps: [{name: a}]\ntags: [a-b, 'c.$BUILD_ID']",
    "an anchor": "steps: [{name: a, env: &e [A=1]}, {name: b, env: *e}]",
    "verified": "steps: [{name: a}]\noptions: {requestedVerifyOption: VERIFIED, sourceProvenanceHash: [SHA256]}",
    "a bucket for the log": "steps: [{name: a}]\nlogsBucket: gs://logs/x",
    "an empty value for the call": "steps: [{name: 'gcr.io/$PROJECT_ID/$_NAME'}]\nsubstitutions:\n  _NAME:",
}  # fmt: skip

REFUSED = {
    "a list for a value": ("steps: [{name: a}]\nsubstitutions: {_A: [Your path]}", "substitutions._A: must be text"),
    "a list of values": ("steps: [{name: a}]\nsubstitutions: [{_TAG: latest}]", "substitutions: must be a mapping"),
    "a placeholder": ("steps: [{name: a}]\nimages: ['<repository>/<name>']", "images[0]: '<repository>/<name>' names no image"),
    "a name in upper case": ("steps: [{name: 'DUMMY:DUMMY'}]", "steps[0].name: 'DUMMY:DUMMY' names no image"),
    "not YAML": ("steps:\n  - name: a\n- name: b", "not YAML"),
    "a step that is not there": ("steps: [{name: a, id: x}, {name: a, waitFor: [z]}]", "steps[1].waitFor[0]: no step has the id 'z'"),
    "a number for text": ("steps: [{name: a, args: [8080]}]", "steps[0].args[0]: must be text"),
    "an unknown field": ("steps: [{name: a, arg: [x]}]", "steps[0].arg: unknown field"),
    "the shell's variable": ("steps: [{name: a, args: [$USERNAME]}]", "steps[0].args[0]: $USERNAME is not a built-in"),
    "a template": ("steps: [{name: a}]\nimages: ['${LOCATION}-docker.pkg.dev/${image_name}']", "images[0]:"),
    "a day": ("steps: [{name: a}]\ntimeout: 1d", "timeout: '1d' is not a duration"),
    "a secret from nowhere": ("steps: [{name: a, secretEnv: [T]}]", "steps[0].secretEnv[0]"),
    "a pool with a machine": ("steps: [{name: a}]\noptions: {pool: {name: projects/p/locations/l/workerPools/w}, machineType: E2_HIGHCPU_8}", "options.machineType: a private pool"),
    "a built-in of its own": ("steps: [{name: a}]\nsubstitutions: {PROJECT_ID: x}", "substitutions.PROJECT_ID"),
}  # fmt: skip


def first_error(text: str, trigger: bool) -> str:
    try:
        read = buildfile.parse(text, Path("cloudbuild.yaml"))
    except InputError as error:
        return error.message
    found = [one for one in validation.check(read, {}, trigger) if one.level == "error"]
    return f"{found[0].field}: {found[0].what}" if found else ""


@pytest.mark.parametrize("trigger", [False, True], ids=["gcloud", "trigger"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_service_takes(name: str, trigger: bool) -> None:
    assert first_error(ACCEPTED[name], trigger) == ""


@pytest.mark.parametrize("trigger", [False, True], ids=["gcloud", "trigger"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_service_refuses(name: str, trigger: bool) -> None:
    text, message = REFUSED[name]
    assert message in first_error(text, trigger)
