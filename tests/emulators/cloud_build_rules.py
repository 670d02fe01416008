"""What Google Cloud Build refuses in a request, in the service's own words where they are known.

The loopback service asks these rules. They know nothing of the factory's own
(builder/cloudbuild/reader/rules/), so that each set of rules judges the other. Where they are from:

* Messages that users of the service report: GoogleCloudPlatform/cortex-data-foundation#21 (key of a
  substitution), kubernetes-sigs/windows-gmsa#64 and GoogleCloudPlatform/cpp-samples#134
  (templates), sourcegraph/sourcegraph-public-snapshot#25471 (timeout of a step),
  googleforgames/global-multiplayer-demo#184 (tags), google-github-actions/setup-gcloud#130 and
  googleapis/repo-automation-bots#5656 (images), in28minutes/course-material#11 (logging),
  MarkEdmondson1234/googleCloudRunner#210 (pools), GoogleCloudPlatform/cloud-builders-community#79
  and GoogleCloudPlatform/magic-modules#11465 (secrets).
* The reference of the API and the schema of the build file: steps, arguments, script, exit codes,
  volumes, secrets, disk, pools.
* The validator that the service published with cloud-build-local (validate/validate.go), where
  nothing newer is known. The service may have raised its limits since.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from google.cloud.devtools import cloudbuild_v1 as api
from google.protobuf import json_format

from tests.emulators.access import Refused

Mode = api.BuildOptions.LoggingMode
OVERRIDABLE = {
    "REPO_NAME", "REPO_FULL_NAME", "BRANCH_NAME", "TAG_NAME", "REF_NAME", "REVISION_ID",
    "COMMIT_SHA", "SHORT_SHA", "TRIGGER_NAME", "TRIGGER_BUILD_CONFIG_PATH",
}  # fmt: skip
"""Built-in names that a request may give a value."""
FIXED = {
    "PROJECT_ID", "PROJECT_NUMBER", "BUILD_ID", "LOCATION", "SERVICE_ACCOUNT",
    "SERVICE_ACCOUNT_EMAIL",
}  # fmt: skip
DAY, HOUR = 24 * 3600, 3600
SECRET_BYTES = 64 * 1024

_USERS = r"^_[A-Z0-9_]+$"
_NAME = r"_[A-Z0-9_]+|[A-Z][A-Z0-9_]*"
_PLAIN = re.compile(rf"\$(?:(?P<escape>\$)|(?P<bare>{_NAME})|\{{(?P<braces>{_NAME})\}})")
_BASH = re.compile(
    rf"\$(?:(?P<escape>\$)|(?P<bare>{_NAME})|\{{#?(?P<braces>{_NAME})(?![A-Za-z0-9_]))"
)
_TAG = r"[\w][\w.-]{0,127}"
_HOST = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:\d+/))(?::\d+)?/"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"(?:{_HOST})?{_PART}(?:/{_PART})*(?::{_TAG})?(?:@sha256:[0-9a-f]{{64}})?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_POOL = re.compile(r"projects/[^/]+/locations/([^/]+)/workerPools/[a-z0-9-]{1,63}")
_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_RESERVED = {"/workspace", "/builder/home", "/builder/outputs", "/var/run/docker.sock"}
_VERSION = re.compile(r"projects/[^/]+/(locations/[^/]+/)?secrets/[^/]+/versions/[^/]+")
_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")


@dataclass(frozen=True)
class Template:
    """A request. build: its message. location: global or a region. values: of every name."""

    build: Any
    location: str
    values: dict[str, str]

    @property
    def loose(self) -> bool:
        return bool(self.build.options.substitution_option == 1)

    @property
    def dynamic(self) -> bool:
        return bool(self.build.options.dynamic_substitutions)

    def keys(self, text: str) -> Iterator[str]:
        for found in (_BASH if self.dynamic else _PLAIN).finditer(text):
            if key := found["bare"] or found["braces"]:
                yield key

    def filled(self, text: str, depth: int = 9) -> str | None:
        """The text with its values. None for one with an expansion of bash."""

        def value(found: re.Match[str]) -> str:
            if found["escape"]:
                return "$"
            text = self.values.get(found["bare"] or found["braces"], "")
            return (self.filled(text, depth - 1) or "") if self.dynamic and depth else text

        done = _PLAIN.sub(value, text)
        return None if "${" in done else done

    @property
    def text(self) -> str:
        """All texts in which a substitution counts, together."""
        value = json_format.MessageToDict(self.build)
        for step in value.get("steps", ()):
            step.pop("script", None)
        if not self.dynamic:
            value.pop("substitutions", None)
        return json.dumps(value, ensure_ascii=False)


def refuse(build: api.Build, location: str, project: str) -> None:
    """Raise Refused for the first thing that the service would not take."""
    message = api.Build.pb(build)
    values = {**dict.fromkeys(FIXED, "1"), "PROJECT_ID": project, **message.substitutions}
    template = Template(message, location, values)
    pool = template.filled(message.options.pool.name)
    found = _POOL.fullmatch(pool or "")
    if found and found[1] != location:
        raise Refused(404, "NOT_FOUND", f'workerpool not found: "{pool}"')
    for what in _refusals(template):
        raise Refused(400, "INVALID_ARGUMENT", what)


def _refusals(template: Template) -> Iterator[str]:
    build = template.build
    plain = chain(
        _whole(build), _steps(build), _order(build), _volumes(build), _secrets(template),
        _artifacts(template),
    )  # fmt: skip
    yield from (f"invalid build: {what}" for what in plain)
    yield from _substitutions(template)
    yield from (f"invalid build: {what}" for what in _names(template))
    yield from (f"generic::invalid_argument: {what}" for what in _options(template))


def _over(count: int, limit: int, what: str) -> Iterator[str]:
    if count > limit:
        yield f"{what}: {count} (max: {limit})"


def _whole(build: Any) -> Iterator[str]:
    if not build.steps:
        yield "no build steps are specified"
    yield from _over(len(build.steps), 300, "too many build steps")
    if build.HasField("timeout") and not 0 < build.timeout.seconds <= DAY:
        yield "invalid timeout: it must be more than 0 and at most 24h"
    if build.HasField("queue_ttl") and build.queue_ttl.seconds <= 0:
        yield "invalid queue_ttl: it must be more than 0"
    yield from _environment(build.options.env, "options.env")


def _steps(build: Any) -> Iterator[str]:
    limit = build.timeout.seconds or HOUR
    for n, step in enumerate(build.steps):
        here = f"build step #{n}"
        if not step.name:
            yield f"{here} must specify name"
        yield from _over(len(step.name), 1000, f"{here}: name too long")
        yield from _over(len(step.dir_), 1000, f"{here}: dir too long")
        yield from _over(len(step.args), 100, f"{here}: too many args")
        for arg in step.args:
            yield from _over(len(arg), 10_000, f"{here}: arg too long")
        if step.script and (step.args or step.entrypoint):
            yield f"{here} has a script, and args or an entrypoint"
        if step.HasField("timeout") and not 0 < step.timeout.seconds <= limit:
            yield (
                f"invalid value for 'build.steps[{n}].timeout': value must be less than or equal "
                f'to build timeout value of "{limit}s"'
            )
        for code in step.allow_exit_codes:
            if not 1 <= code <= 255:
                yield f"{here}: allow_exit_codes: {code} is not from 1 to 255"
        yield from _environment(step.env, f"steps[{n}].env")


def _environment(texts: Iterable[str], where: str) -> Iterator[str]:
    yield from _over(len(list(texts)), 100, f"invalid .{where} field: too many envs")
    for text in texts:
        if "=" not in text[1:]:
            yield f'the Env entry "{text}" must be of the form "KEY=VALUE"'
        yield from _over(len(text), 1000, f"invalid .{where} field: env too long")


def _order(build: Any) -> Iterator[str]:
    known = {"-"}
    for n, step in enumerate(build.steps):
        here = f'build step #{n} - "{step.id}"' if step.id else f"build step #{n}"
        for one in step.wait_for:
            if one not in known:
                yield f'{here} depends on "{one}", which has not been defined'
        if step.id == "-":
            yield f'{here}: the ID cannot be "-"'
        elif step.id in known:
            yield f"{here}: the ID is not unique"
        if step.id:
            known.add(step.id)


def _volumes(build: Any) -> Iterator[str]:
    common = build.options.volumes
    if common and len(build.steps) < 2:
        yield "Global volumes defined but there are fewer than two steps"
    names, paths = {one.name for one in common}, {posixpath.normpath(one.path) for one in common}
    used: Counter[str] = Counter()
    yield from _mounts(common, "options.volumes")
    for n, step in enumerate(build.steps):
        yield from _mounts(step.volumes, f"build step #{n}")
        for one in step.volumes:
            used[one.name] += 1
            if one.name in names or posixpath.normpath(one.path) in paths:
                yield f'build step #{n}: volume "{one.name}" conflicts with global volume'
    for name, times in used.items():
        if times < 2:
            yield f'Volume "{name}" is only used by one step'


def _mounts(volumes: Iterable[Any], where: str) -> Iterator[str]:
    names: Counter[str] = Counter()
    for one in volumes:
        path = posixpath.normpath(one.path)
        if not _VOLUME.fullmatch(one.name):
            yield f'{where}: volume name "{one.name}" does not match "^{_VOLUME.pattern}$"'
        if not path.startswith("/"):
            yield f'{where}: path "{one.path}" is not valid, must be absolute'
        if path in _RESERVED:
            yield f'{where}: path "{one.path}" is reserved'
        if f"{path}/".startswith("/cloudbuild/"):
            yield f'{where}: volume path "{path}" cannot start with /cloudbuild/'
        names.update({one.name, path})
    for name, times in names.items():
        if times > 1:
            yield f'{where}: volume "{name}" is defined in more than one volume entry'


def _secrets(template: Template) -> Iterator[str]:
    yield from (f"invalid .secrets field: {what}" for what in _secret_faults(template))


def _secret_faults(template: Template) -> Iterator[str]:
    build = template.build
    defined: Counter[str] = Counter()
    for one in build.available_secrets.secret_manager:
        defined[one.env] += 1
        if (name := template.filled(one.version_name)) and not _VERSION.fullmatch(name):
            yield f'"{name}" is not the name of a version of a secret'
    keys: Counter[str] = Counter()
    for one in build.secrets:
        keys[one.kms_key_name] += 1
        if keys[one.kms_key_name] > 1:
            yield f'kmsKeyName "{one.kms_key_name}" is used by more than one secret'
        if not one.secret_env:
            yield f'the secret of "{one.kms_key_name}" defines no secretEnvs'
    for values, key in chain(
        ((one.env_map, one.kms_key_name) for one in build.available_secrets.inline),
        ((one.secret_env, one.kms_key_name) for one in build.secrets),
    ):
        if (name := template.filled(key)) and not _KEY.fullmatch(name):
            yield f'"{name}" is not the name of a crypto key'
        for variable, data in values.items():
            defined[variable] += 1
            if len(data) > SECRET_BYTES:
                yield f'secretEnv value for "{variable}" cannot exceed {SECRET_BYTES}B'
    yield from (
        f'secretEnv "{one}" is defined more than once' for one, n in defined.items() if n > 1
    )
    yield from _over(len(defined), 100, "too many secret values")
    yield from _uses(template, set(defined))


def _uses(template: Template, defined: set[str]) -> Iterator[str]:
    build = template.build
    common, used = list(build.options.secret_env), set(build.options.secret_env)
    if len(used) < len(common):
        yield "Build uses a global secretEnv more than once"
    for n, step in enumerate(build.steps):
        own = [template.filled(one) or one for one in step.secret_env]
        plain = {one.partition("=")[0] for one in (*build.options.env, *step.env)}
        if len({*own, *common}) < len(own) + len(set(common)):
            yield f"Step {n} uses a secretEnv more than once"
        for one in plain & {*own, *common}:
            yield f'step {n} has secret and non-secret env "{one}"'
        used.update(own)
    yield from (f'secretEnv "{one}" is used without being defined' for one in used - defined)
    yield from (f'secretEnv "{one}" is defined without being used' for one in defined - used)


def _artifacts(template: Template) -> Iterator[str]:
    yield from (f"invalid .artifacts field: {what}" for what in _artifact_faults(template))


def _artifact_faults(template: Template) -> Iterator[str]:
    build = template.build
    images, objects = build.artifacts.images, build.artifacts.objects
    if images and build.images and list(images) != list(build.images):
        yield "cannot specify different .images and .artifacts.images"
    yield from _over(len(images or build.images), 100, "too many images to build")
    if not build.artifacts.HasField("objects"):
        return
    location = template.filled(objects.location)
    bucket = (location or "").removeprefix("gs://").partition("/")[0]
    if location is not None and not (location.startswith("gs://") and _BUCKET.fullmatch(bucket)):
        yield f'invalid .artifacts.location value "{location}"'
    if not objects.paths:
        yield ".artifacts.paths field empty"
    yield from _over(len(objects.paths), 100, "too many .artifacts.paths")
    if len(set(objects.paths)) < len(objects.paths):
        yield ".artifacts.paths field has duplicate paths"
    for path in objects.paths:
        if re.search(r"\s", path):
            yield f'.artifacts.paths "{path}" contains whitespace'


def _substitutions(template: Template) -> Iterator[str]:
    build = template.build
    field = "invalid build: invalid .substitutions field: "
    yield from _over(len(build.substitutions), 200, f"{field}number of substitutions")
    for key, value in build.substitutions.items():
        yield from _over(len(key.encode()), 100, f'{field}substitution key "{key}" too long')
        yield from _over(
            len(value.encode()), 4000, f'{field}substitution value of "{key}" too long'
        )
        if not re.match(_USERS, key) and key not in OVERRIDABLE:
            yield (
                f'{field}substitution key "{key}" does not respect format "{_USERS}" and is not an '
                "overridable built-in substitutions"
            )
    used = set(template.keys(template.text))
    value_of = "generic::invalid_argument: invalid value for 'build.substitutions': "
    for key in sorted(used):
        if not key.startswith("_") and key not in OVERRIDABLE | FIXED:
            yield f'{value_of}key in the template "{key}" is not a valid built-in substitution'
    mapped = build.options.automap_substitutions
    if template.loose or mapped or any(step.automap_substitutions for step in build.steps):
        return
    users = {key for key in used if key.startswith("_")}
    missing = [
        f'key in the template "{key}" is not matched in the substitution data'
        for key in sorted(users - set(build.substitutions))
    ]
    unmatched = [
        f'key "{key}" in the substitution data is not matched in the template'
        for key in build.substitutions
        if key not in used
    ]
    if missing or unmatched:
        yield "generic::invalid_argument: " + ";".join([*missing, *unmatched])


def _names(template: Template) -> Iterator[str]:
    """Names after substitution: of the steps' images, of images and of tags."""
    build = template.build
    for kind, names in (
        ("build step name", [step.name for step in build.steps]),
        ("image name", [*build.images, *build.artifacts.images]),
    ):
        for name in names:
            done = template.filled(name)
            if done is not None and not _IMAGE.fullmatch(done):
                yield f'invalid {kind} "{done}": could not parse reference: {done}'
    tags = [one for one in map(template.filled, build.tags) if one]
    yield from _over(len(tags), 64, "number of tags")
    for tag in tags:
        if not re.fullmatch(_TAG, tag):
            yield f'invalid build tag "{tag}": must match format "^{_TAG}$"'


def _options(template: Template) -> Iterator[str]:
    build, options = template.build, template.build.options
    if not 0 <= options.disk_size_gb <= 4000:
        yield "invalid value for 'build.options.disk_size_gb': it must be at most 4000"
    pool = template.filled(options.pool.name)
    if pool and not _POOL.fullmatch(pool):
        yield f'invalid value for "build.options.pool.name": "{pool}"'
    old = template.filled(options.worker_pool)
    if old and not re.fullmatch(r"projects/[^/]+/(locations/[^/]+/)?workerPools/[^/]+", old):
        yield f'invalid value for "build.options.worker_pool": "{old}"'
    if (pool or old) and (options.machine_type or options.disk_size_gb):
        yield "invalid build: a private pool's machine type and disk are those of the pool"
    bucket = (template.filled(build.logs_bucket) or "").removeprefix("gs://").partition("/")[0]
    if bucket and not _BUCKET.fullmatch(bucket):
        yield f'invalid bucket "{bucket}"'
    account = template.filled(build.service_account)
    if account and not re.fullmatch(r"projects/[^/]+/serviceAccounts/[^/]+", account):
        yield f'invalid value for "build.service_account": "{account}"'
    regional = options.default_logs_bucket_behavior == 1
    silent = options.logging in (Mode.CLOUD_LOGGING_ONLY, Mode.NONE, Mode.STACKDRIVER_ONLY)
    if build.service_account and not (build.logs_bucket or regional or silent):
        yield (
            "if 'build.service_account' is specified, the build must either (a) specify "
            "'build.logs_bucket', (b) use the REGIONAL_USER_OWNED_BUCKET "
            "build.options.default_logs_bucket_behavior option, or (c) use either "
            "CLOUD_LOGGING_ONLY / NONE logging options"
        )
