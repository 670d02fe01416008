"""The request for the project's own build, and all that the service is known to refuse in one.

The request is read by the product's own messages, with no unknown field. Then it is changed in one
place, and two judges look at it: the loopback service by its rules (tests/emulators), and the
factory by its own.
"""

from __future__ import annotations

import copy
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.cloud.devtools import cloudbuild_v1 as api
from google.protobuf import json_format

from builder.cloudbuild import clients, submission
from builder.cloudbuild.reader import buildfile, validation
from builder.cloudbuild.submission.prepare import FROM_GIT
from builder.core.settings import CloudSettings
from tests.conftest import ROOT
from tests.emulators.cloud_build import PROJECT, LoopbackCloud, Script, loopback_cloud

Json = dict[str, Any]
REGION, BUCKET, SOURCE = "europe-west4", "staging-of-ours", "source.tgz"
ACCOUNT = f"builder@{PROJECT}.iam.gserviceaccount.com"
KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
VERSION = "projects/p/secrets/s/versions/1"
POOL = f"projects/p/locations/{REGION}/workerPools/mine"
MANY = [f"T{n}" for n in range(101)]
VOLUME = {"name": "vol", "path": "/v"}


# --- the request ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service() -> Iterator[LoopbackCloud]:
    """The loopback service, with the staged source. It carries nothing out."""
    with loopback_cloud(Script()) as running:
        running.faults.stay_queued = True
        running.storage.make(BUCKET)
        running.storage.put(BUCKET, SOURCE, b"")
        yield running


@pytest.fixture(scope="module")
def request_of_ours(service: LoopbackCloud) -> Json:
    """What `builder cloud build v100 --dry-run` prints, with the place of a source."""
    settings = CloudSettings(
        project=PROJECT, region=REGION, service_account=ACCOUNT, staging_bucket=BUCKET,
        endpoint=service.url,
    )  # fmt: skip
    file = buildfile.load(ROOT / "cloudbuild.yaml")
    commit = dict.fromkeys(FROM_GIT, "a" * 7)
    given = submission.values(file, ["v100"], "h.test/team/training", REGION, commit, {})
    shown = submission.shown(clients.connect(settings), file, given, ["v100"])
    shown["build"]["source"]["storageSource"]["object"] = SOURCE
    return shown


def post(service: LoopbackCloud, request: Json) -> tuple[int, str]:
    """The service's answer to a request: its HTTP status, and its message if it refuses."""
    address = f"{service.url}/v1/{request['parent']}/builds?parent={request['parent']}"
    sent = urllib.request.Request(address, json.dumps(request["build"]).encode(), method="POST")
    try:
        with urllib.request.urlopen(sent) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def found_by_us(request: Json) -> list[str]:
    """What the factory's own rules say about a build like this: LEVEL: FIELD: what."""
    build = {name: value for name, value in request["build"].items() if name != "source"}
    values = build.get("substitutions", {})
    given = {name: values[name] for name in values if name in FROM_GIT}
    build["substitutions"] = {name: values[name] for name in values if name not in FROM_GIT}
    file = buildfile.parse(json.dumps(build), Path("cloudbuild.json"))
    return [f"{one.level}: {one.field}: {one.what}" for one in validation.check(file, given)]


def shortened(request: Json, original: Json) -> Json:
    """A request without the steps that nobody changed, but for the first two and the last.

    A file of all steps takes half a second to read.
    """
    alike = original["build"]["steps"][2:-1]
    steps = [one for one in request["build"]["steps"] if one not in alike]
    return {**request, "build": {**request["build"], "steps": steps}}


def test_it_is_what_the_product_s_messages_say_and_the_service_takes_it(
    service: LoopbackCloud, request_of_ours: Json
) -> None:
    message = api.CreateBuildRequest.pb(api.CreateBuildRequest())
    json_format.ParseDict(request_of_ours, message)  # raises for what the message does not have
    assert json_format.MessageToDict(message) == request_of_ours
    build = message.build
    assert len(build.steps) == len(buildfile.load(ROOT / "cloudbuild.yaml").build.steps)
    assert build.service_account.endswith(ACCOUNT)
    assert dict(build.substitutions)["_GPU"] == "v100"
    assert set(build.substitutions) >= {"SHORT_SHA"}, "the file uses it, and a call may set it"
    assert set(build.substitutions).isdisjoint({"COMMIT_SHA", "BRANCH_NAME", "REPO_NAME"})
    assert found_by_us(request_of_ours) == []
    assert post(service, request_of_ours) == (200, "")


# --- what the service refuses ---------------------------------------------------------------------

Change = Callable[[Json], object]
"""Changes the `build` of a request."""


def put(path: str, value: object) -> Change:
    """Gives one field of the build this value. path: such as steps.0.timeout."""

    def change(build: Json) -> None:
        at: Any = build
        *above, last = [int(one) if one.isdigit() else one for one in path.split(".")]
        for name in above:
            at = at[name] if isinstance(name, int) else at.setdefault(name, {})
        at[last] = value

    return change


def step(**fields: object) -> Change:
    """Adds a step."""
    return lambda build: build["steps"].append({"name": "busybox", **fields})


def secret(*uses: str, **fields: object) -> Change:
    """Adds secrets, and a step that uses variables of them."""

    def change(build: Json) -> None:
        build.update(fields)
        build["steps"].append({"name": "busybox", "secretEnv": list(uses)})

    return change


def both(*changes: Change) -> Change:
    return lambda build: [change(build) for change in changes]


def managed(*names: str, version: str = VERSION) -> Json:
    return {"secretManager": [{"env": name, "versionName": version} for name in names]}


def inline(key: str = KEY, **values: str) -> Json:
    return {"inline": [{"envMap": values, "kmsKeyName": key}]}


@dataclass(frozen=True)
class Refused:
    """says: a part of the service's message. found: a part of what the factory says."""

    change: Change
    says: str
    found: str


ERROR, WARNING = "error: ", "warning: "
OBJECTS = "artifacts.objects"
REFUSED = {
    # the message
    "an unknown field": Refused(put("nope", 1), 'no field named "nope"', "error: nope: unknown"),
    "a number as a timeout": Refused(put("timeout", 600), "Invalid JSON", "error: timeout: '600'"),
    "a machine of no such type": Refused(
        put("options.machineType", "n1-standard-1"),
        "Invalid JSON",
        "error: options.machineType: 'n1-standard-1' is not one",
    ),
    # the build
    "no steps": Refused(put("steps", []), "no build steps", "error: : no steps"),
    "301 steps": Refused(
        put("steps", [{"name": "busybox"}] * 301), "too many build steps: 301", "301 steps, at most"
    ),
    "more than a day": Refused(put("timeout", "86401s"), "invalid timeout", "error: timeout: must"),
    "no time at all": Refused(put("timeout", "0s"), "invalid timeout", "error: timeout: must"),
    "no time in the queue": Refused(put("queueTtl", "0s"), "queue_ttl", "error: queueTtl: must"),
    # steps
    "a step without an image": Refused(step(name=""), "must specify name", "no name"),
    "an image that is none": Refused(
        step(name="A b"), 'invalid build step name "A b"', ".name: 'A b' names no image"
    ),
    "an image of two references": Refused(
        step(name="h.test/a:latest@h.test/b"), "could not parse reference", "names no image"
    ),
    "a long name": Refused(step(name="a" * 1001), "name too long", "warning: steps["),
    "a long folder": Refused(step(dir="a" * 1001), "dir too long", ".dir: 1,001 characters"),
    "101 arguments": Refused(step(args=["x"] * 101), "too many args: 101", ".args: 101 args"),
    "a long argument": Refused(step(args=["x" * 10_001]), "arg too long", "10,001 characters"),
    "a script with arguments": Refused(
        step(script="x", args=["y"]), "has a script", ".args: script and args exclude"
    ),
    "a script with an entrypoint": Refused(
        step(script="x", entrypoint="y"), "has a script", "script and entrypoint exclude"
    ),
    "a step longer than the build": Refused(
        both(put("timeout", "600s"), put("steps.0.timeout", "601s")),
        'must be less than or equal to build timeout value of "600s"',
        "error: steps[0].timeout: must be more than 0s and at most the build's",
    ),
    "a step longer than a build that says nothing": Refused(
        both(lambda build: build.pop("timeout"), put("steps.0.timeout", "3601s")),
        "must be less than or equal",
        "error: steps[0].timeout",
    ),
    "exit code 0 as a failure": Refused(step(allowExitCodes=[0]), "is not from 1 to", "0 is not"),
    "exit code 256": Refused(step(allowExitCodes=[256]), "is not from 1 to 255", "256 is not"),
    "a variable without a value": Refused(step(env=["A"]), '"KEY=VALUE"', "'A' is not KEY=VALUE"),
    "a variable without a name": Refused(step(env=["=1"]), '"KEY=VALUE"', "'=1' is not KEY=VALUE"),
    "a variable of all steps": Refused(put("options.env", ["A"]), '"KEY=VALUE"', "options.env[0]"),
    "101 variables": Refused(step(env=["A=1"] * 101), "too many envs: 101", "101 variables"),
    "a long variable": Refused(step(env=["A=" + "x" * 999]), "env too long", "1,001 characters"),
    # their order
    "an id twice": Refused(step(id="builder"), "the ID is not unique", "'builder' is the id of"),
    "a reserved id": Refused(step(id="-"), 'the ID cannot be "-"', ".id: '-' means no step"),
    "waiting for nobody": Refused(
        step(waitFor=["gone"]), '"gone", which has not been defined', "no step has the id 'gone'"
    ),
    "waiting for a later step": Refused(
        put("steps.0.waitFor", ["result"]), '"result", which has not been', "steps wait for each"
    ),
    "waiting for itself": Refused(
        step(id="me", waitFor=["me"]), 'depends on "me"', "steps wait for each other: me -> me"
    ),
    # substitutions
    "a built-in name that no text has": Refused(
        put("substitutions.COMMIT_SHA", "a" * 40),
        'key "COMMIT_SHA" in the substitution data is not matched in the template',
        "COMMIT_SHA is not used",
    ),
    "a name that no text has": Refused(
        put("substitutions._NO_ONE", "x"),
        'key "_NO_ONE" in the substitution data is not matched',
        "error: substitutions._NO_ONE: _NO_ONE is not used",
    ),
    "a name that only a script has": Refused(
        both(put("substitutions._S", "x"), step(script="echo $_S")),
        'key "_S" in the substitution data is not matched',
        "_S is not used: nothing is substituted in script",
    ),
    "a name that has no value": Refused(
        step(args=["$_NONE"]), 'key in the template "_NONE" is not matched', "$_NONE has no value"
    ),
    "an expansion of a name without a value": Refused(
        step(args=["${_NONE:0:4}"]), '"_NONE" is not matched', "$_NONE has no value"
    ),
    "a variable of the shell": Refused(
        step(args=["$HOME"]),
        'key in the template "HOME" is not a valid built-in substitution',
        "$HOME is not a built-in",
    ),
    "a name without an underscore": Refused(
        put("substitutions.TAG", "x"),
        'substitution key "TAG" does not respect format "^_[A-Z0-9_]+$"',
        "'TAG' is not a name for a substitution",
    ),
    "a name in lower case": Refused(
        put("substitutions._tag", "x"), 'key "_tag" does not respect', "'_tag' is not a name"
    ),
    "another project's id": Refused(
        put("substitutions.PROJECT_ID", "x"),
        'key "PROJECT_ID" does not respect',
        "PROJECT_ID cannot be overridden",
    ),
    "a long name of a substitution": Refused(
        both(put(f"substitutions._{'A' * 100}", "x"), step(args=[f"$_{'A' * 100}"])),
        "too long: 101 (max: 100)",
        "longer than 100 bytes",
    ),
    "a long value": Refused(put("substitutions._ROOT", "x" * 4001), "too long", "4000 bytes"),
    "201 substitutions": Refused(
        both(*(put(f"substitutions._A{n}", "x") for n in range(201))),
        "number of substitutions: 20",
        "substitutions, at most 200",
    ),
    # volumes
    "a volume of one step": Refused(
        step(volumes=[VOLUME]), 'Volume "vol" is only used by one step', "by this step only"
    ),
    "a volume of a single step": Refused(
        both(put("steps", [{"name": "busybox"}]), put("options.volumes", [VOLUME])),
        "fewer than two steps",
        "options.volumes: volumes for a single step",
    ),
    "a volume of all steps once more": Refused(
        both(put("options.volumes", [VOLUME]), step(volumes=[{"name": "vol", "path": "/w"}])),
        "conflicts with global volume",
        "is in options.volumes, too",
    ),
    "a path of all steps once more": Refused(
        both(put("options.volumes", [VOLUME]), step(volumes=[{"name": "other", "path": "/v/"}])),
        "conflicts with global volume",
        "is in options.volumes, too",
    ),
    **{
        f"a volume at {path or 'nothing'}": Refused(
            put("options.volumes", [{"name": "vol", "path": path}]), says, found
        )
        for path, says, found in (
            ("v", "must be absolute", "'v' is not absolute"),
            ("/workspace/", "is reserved", "/workspace is the service's own"),
            ("/builder/home", "is reserved", "/builder/home is the service's own"),
            ("/builder/outputs", "is reserved", "/builder/outputs is the service's own"),
            ("/var/run/docker.sock", "is reserved", "is the service's own"),
            ("/cloudbuild/x", "cannot start with /cloudbuild/", "is the service's own"),
        )
    },
    "a volume without a name": Refused(
        put("options.volumes", [{"name": "-", "path": "/v"}]), "does not match", "not a name for a"
    ),
    "two volumes at one path": Refused(
        put("options.volumes", [VOLUME, {"name": "other", "path": "/v"}]),
        "defined in more than one volume entry",
        "appears twice",
    ),
    # secrets
    "a secret that is not there": Refused(
        secret("T"), 'secretEnv "T" is used without being defined', "no secret has the variable T"
    ),
    "a secret that nobody uses": Refused(
        secret(availableSecrets=managed("T")),
        'secretEnv "T" is defined without being used',
        "no step uses T",
    ),
    "a secret twice": Refused(
        secret("T", availableSecrets=managed("T", "T")), "more than once", "of two secrets"
    ),
    "a secret of two kinds": Refused(
        secret("T", availableSecrets=managed("T") | inline(T="aGk=")),
        "more than once",
        "of Secret Manager and of Cloud KMS",
    ),
    "a secret twice in a step": Refused(
        secret("T", "T", availableSecrets=managed("T")), "more than once", "T appears twice"
    ),
    "a secret of all steps once more": Refused(
        both(secret("T", availableSecrets=managed("T")), put("options.secretEnv", ["T"])),
        "more than once",
        "T appears twice",
    ),
    "a secret in plain text": Refused(
        both(secret("T", availableSecrets=managed("T")), put("options.env", ["T=1"])),
        "has secret and non-secret env",
        "T is in env, too",
    ),
    "a secret that is no version": Refused(
        secret("T", availableSecrets=managed("T", version="projects/p/secrets/s")),
        "is not the name of a version",
        "is not a secret's version",
    ),
    "a key that is none": Refused(
        secret("T", availableSecrets=inline("mine", T="aGk=")),
        "is not the name of a crypto key",
        "is not a secret's version",
    ),
    "a secret that is no base64": Refused(
        secret("T", availableSecrets=inline(T="hidden!")), "Invalid JSON", "is no base64"
    ),
    "a secret of more than 64 KB": Refused(
        secret("T", availableSecrets=inline(T="YWFh" * 21_846)),
        "cannot exceed 65536B",
        "envMap.T: 65,538 bytes, at most 65,536",
    ),
    "101 secrets": Refused(
        secret(*MANY, availableSecrets=managed(*MANY)),
        "too many secret values: 101",
        "101 secrets, at most 100",
    ),
    "a key twice": Refused(
        secret("T", "U", secrets=[
            {"kmsKeyName": KEY, "secretEnv": {name: "aGk="}} for name in ("T", "U")
        ]),
        "is used by more than one secret",
        "secrets[1].kmsKeyName: projects/p/locations/global/keyRings/r/cryptoKeys/k is the key of",
    ),
    "a key without a secret": Refused(
        secret(secrets=[{"kmsKeyName": KEY}]), "defines no secretEnvs", "secrets[0]: no secretEnv"
    ),
    # what comes out
    "an image in capitals": Refused(
        put("images", ["gcr.io/p/X"]), 'invalid image name "gcr.io/p/X"', "images[0]: 'gcr.io/p/X'"
    ),
    "an image whose tag has a slash": Refused(
        put("images", ["gcr.io/p/x:a/b"]), "could not parse reference", "names no image"
    ),
    "an image among the artifacts": Refused(
        put("artifacts.images", ["gcr.io/p/X"]), "invalid image name", "'gcr.io/p/X' names no image"
    ),
    "two lists of images": Refused(
        both(put("images", ["gcr.io/p/x"]), put("artifacts.images", ["gcr.io/p/y"])),
        "cannot specify different .images and .artifacts.images",
        "artifacts.images: differs from images",
    ),
    "101 images": Refused(
        put("images", [f"gcr.io/p/x{n}" for n in range(101)]),
        "too many images",
        "101 images, at most 100",
    ),
    "a tag with a slash": Refused(
        put("tags", ["a/b"]),
        r'invalid build tag "a/b": must match format "^[\w][\w.-]{0,127}$"',
        "'a/b' is not a tag of a build",
    ),
    "65 tags": Refused(put("tags", [f"t{n}" for n in range(65)]), "number of tags", "65 tags"),
    "objects for no bucket": Refused(
        put(OBJECTS, {"location": "bucket", "paths": ["x"]}), "invalid .artifacts.", "not a bucket"
    ),
    "objects without paths": Refused(
        put(OBJECTS, {"location": "gs://bucket/"}), "field empty", "artifacts.objects: no paths"
    ),
    "101 paths": Refused(
        put(OBJECTS, {"location": "gs://bucket/", "paths": [f"x{n}" for n in range(101)]}),
        "too many .artifacts.paths",
        "101 paths, at most 100",
    ),
    "a path twice": Refused(
        put(OBJECTS, {"location": "gs://bucket/", "paths": ["x", "x"]}),
        "duplicate paths",
        "artifacts.objects.paths[1]: 'x' appears twice",
    ),
    "a path with a space": Refused(
        put(OBJECTS, {"location": "gs://bucket/", "paths": ["a b"]}),
        "contains whitespace",
        "'a b' has a space in it",
    ),
    # options
    "a disk of 4001 GB": Refused(
        put("options.diskSizeGb", "4001"), "disk_size_gb", "options.diskSizeGb: 4001 GB"
    ),
    "a disk of less than nothing": Refused(
        put("options.diskSizeGb", "-1"), "disk_size_gb", "options.diskSizeGb: -1 GB"
    ),
    "a pool, and a machine": Refused(
        put("options.pool", {"name": POOL}),
        "a private pool's machine type and disk",
        "options.machineType: a private pool has machines of its own",
    ),
    "a pool, and a disk": Refused(
        both(
            put("options.pool", {"name": POOL}), lambda build: build["options"].pop("machineType")
        ),
        "a private pool's machine type and disk",
        "options.diskSizeGb: a private pool has machines of its own",
    ),
    "an old pool, and a machine": Refused(
        put("options.workerPool", "projects/p/workerPools/x"),
        "a private pool's machine type and disk",
        "options.machineType: a private pool has machines of its own",
    ),
    "a pool's short name": Refused(
        put("options.pool", {"name": "mine"}),
        '"mine"',
        "options.pool.name: 'mine' is not a private pool's full name",
    ),
    "an old pool's short name": Refused(
        put("options.workerPool", "mine"), '"mine"', "'mine' is not a private pool's full name"
    ),
    "a log bucket that is none": Refused(
        put("logsBucket", "gs://My_Bucket"), 'invalid bucket "My_Bucket"', "is not a bucket"
    ),
    "an account by its address": Refused(
        put("serviceAccount", ACCOUNT), '"builder@', "not a service account's full name"
    ),
    "an account without a log": Refused(
        lambda build: build["options"].pop("logging"),
        "if 'build.service_account' is specified, the build must either (a) specify",
        "a build with its own service account is refused if the call names no log bucket",
    ),
    "an account with the log of others": Refused(
        put("options.logging", "GCS_ONLY"),
        "if 'build.service_account' is specified",
        "a build with its own service account is refused",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_service_refuses(service: LoopbackCloud, request_of_ours: Json, name: str) -> None:
    case, request = REFUSED[name], copy.deepcopy(request_of_ours)
    case.change(request["build"])
    status, message = post(service, request)
    assert status == 400
    assert case.says in message
    found = found_by_us(shortened(request, request_of_ours))
    assert any(case.found in one for one in found), found


@pytest.mark.parametrize("pool", [POOL.replace(REGION, "us-east1"), POOL.replace(REGION, "global")])
def test_a_pool_of_another_region_is_not_found(
    service: LoopbackCloud, request_of_ours: Json, pool: str
) -> None:
    request = copy.deepcopy(request_of_ours)
    request["build"]["options"] = {
        "pool": {"name": pool}, "logging": "NONE", "dynamicSubstitutions": True,
        "env": request["build"]["options"]["env"],
    }  # fmt: skip
    assert post(service, request) == (404, f'workerpool not found: "{pool}"')
    request["build"]["options"]["pool"]["name"] = POOL
    assert post(service, request) == (200, "")


def test_a_source_that_is_not_there(service: LoopbackCloud, request_of_ours: Json) -> None:
    request = copy.deepcopy(request_of_ours)
    request["build"]["source"]["storageSource"]["object"] = "gone.tgz"
    assert post(service, request)[0] == 404
