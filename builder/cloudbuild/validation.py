"""What the hosted service would refuse in a build, or would do other than its author thinks.

Each rule says where it is from. `error`: the service refuses the build (its documentation, or the
message that its users report). `warning`: a rule of the last published validator (that of
cloud-build-local) which the service may have loosened, or a build that runs and surprises.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from builder.cloudbuild import substitutions
from builder.cloudbuild.document import Build, Document, Step, Volume, dotted
from builder.cloudbuild.order import AT_ONCE, circle
from builder.cloudbuild.substitutions import Place, Unexpandable, Values
from builder.core.errors import InputError

Level = Literal["error", "warning"]

SCHEMA = "Build configuration file schema"
VALUES = "Substitute variable values"
API = "API reference, rev. 20261029"
LOCAL = "cloud-build-local's validator; the service may allow more"

MAX_STEPS, MAX_ARGS, MAX_ARG = 300, 100, 10_000  # SCHEMA
MAX_TIMEOUT = 24 * 3600.0  # SCHEMA
MAX_DISK_GB = 4000  # API
MAX_SECRETS = 100  # API, InlineSecret.env_map
MAX_ENVS, MAX_ENV, MAX_IMAGES, MAX_TAGS, MAX_NAME = 100, 1000, 100, 64, 1000  # LOCAL

_TAG = re.compile(r"[\w][\w.-]{0,127}")  # the service's own words: "must match format"
_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.*)?")
_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_EXPANSION = re.compile(r"(?<!\$)\$\{#?(_[A-Z0-9_]+|[A-Z][A-Z0-9_]*)([:#%/^,}=?+-])")
_RESERVED = ("/workspace", "/builder/home", "/builder/outputs", "/var/run/docker.sock")
_ALLOWED = ("CLOUD_LOGGING_ONLY", "NONE", "STACKDRIVER_ONLY")
_OUTPUT_ONLY = (
    "name",
    "id",
    "projectId",
    "status",
    "statusDetail",
    "results",
    "createTime",
    "startTime",
    "finishTime",
    "logUrl",
    "timing",
    "sourceProvenance",
    "buildTriggerId",
    "approval",
    "warnings",
    "failureInfo",
)
_STEP_OUTPUT_ONLY = ("timing", "pullTiming", "status", "exitCode")
_SAMPLE = {
    "PROJECT_ID": "project",
    "PROJECT_NUMBER": "123456789012",
    "BUILD_ID": "00000000-0000-0000-0000-000000000000",
    "LOCATION": "global",
    "COMMIT_SHA": "0" * 40,
    "REVISION_ID": "0" * 40,
    "SHORT_SHA": "0" * 7,
    "REPO_NAME": "repository",
    "REPO_FULL_NAME": "owner/repository",
    "BRANCH_NAME": "main",
    "TAG_NAME": "v1",
    "REF_NAME": "main",
    "TRIGGER_NAME": "trigger",
    "TRIGGER_BUILD_CONFIG_PATH": "cloudbuild.yaml",
    "SERVICE_ACCOUNT_EMAIL": "builder@project.iam.gserviceaccount.com",
    "SERVICE_ACCOUNT": "projects/project/serviceAccounts/builder@project.iam.gserviceaccount.com",
}
"""What a trigger would give, in the shape that it gives it."""


@dataclass(frozen=True)
class Finding:
    """One thing found, at one line (from 1). field: a dotted path, source: the rule's origin."""

    line: int
    field: str
    what: str
    fix: str
    level: Level = "error"
    source: str = ""


def check(
    document: Document, given: Mapping[str, str] | None = None, trigger: bool = False
) -> tuple[Finding, ...]:
    """Everything found in a file, by line.

    given: the values that a call sets. trigger: judge it as a trigger would start it, which is
    always loose and dynamic about substitutions.
    """
    findings = [
        Finding(one.line, one.field, one.what, one.fix, "error", API) for one in document.problems
    ]
    findings += [
        Finding(one.line, one.field, one.what, one.fix, "warning", "gcloud's apitools")
        for one in document.notes
    ]
    checker = _Checker(document, dict(given or {}), trigger)
    findings += checker.findings()
    unique = {(one.line, one.field, one.what): one for one in findings}
    return tuple(sorted(unique.values(), key=lambda one: (one.line, one.field)))


def refuse(document: Document, findings: tuple[Finding, ...]) -> None:
    """Raises InputError for the first error among the findings."""
    errors = [one for one in findings if one.level == "error"]
    if errors:
        first = errors[0]
        more = f" ({len(errors) - 1} more: builder cloud validate)" if errors[1:] else ""
        raise InputError(
            f"{document.path}:{first.line}: {first.field}: {first.what}{more}", first.fix
        )


@dataclass
class _Checker:
    document: Document
    given: dict[str, str]
    trigger: bool
    found: list[Finding] = field(default_factory=list)

    @property
    def build(self) -> Build:
        return self.document.build

    def findings(self) -> list[Finding]:
        self.whole()
        values = self.substitutions()
        for step in self.build.steps:
            self.step(step, values)
        self.ids()
        self.volumes()
        self.secrets()
        self.outputs(values)
        return self.found

    def add(self, place: Place, what: str, fix: str, source: str, level: Level = "error") -> None:
        line = self.document.line(*self.place(place))
        self.found.append(Finding(line, dotted(place), what, fix, level, source))

    def place(self, place: Place) -> Place:
        """Where a place of the build stands in the file: images have two homes, secrets three."""
        value = self.document.value
        if place[:1] == ("images",) and len(place) == 2:
            image = self.build.images[int(place[1])]
            if image in value.get("images", ()):
                return ("images", value["images"].index(image))
            return ("artifacts", "images", value["artifacts"]["images"].index(image))
        if place[:1] == ("availableSecrets",) and len(place) == 2:
            manager = value.get("availableSecrets", {}).get("secretManager", ())
            for n, one in enumerate(manager):
                if one.get("env") == place[1]:
                    return ("availableSecrets", "secretManager", n)
            return place[:1] if "availableSecrets" in value else ("secrets",)
        return place

    def limit(self, place: Place, count: int, limit: int, what: str, source: str, fix: str) -> None:
        if count > limit:
            level: Level = "warning" if source == LOCAL else "error"
            self.add(place, f"{count:,} {what}, at most {limit:,}", fix, source, level)

    # --- the build as a whole ---------------------------------------------------------------------

    def whole(self) -> None:
        value, build = self.document.value, self.build
        if not build.steps:
            self.add((), "no steps", "add steps:, each with the name of an image", SCHEMA)
        self.limit(
            ("steps",), len(build.steps), MAX_STEPS, "steps", SCHEMA, "put some into a script"
        )
        if "source" in value:
            self.add(
                ("source",),
                "a configuration file cannot name its source",
                "remove it: the call, or the trigger, says what is built",
                "gcloud builds submit",
            )
        for name in _OUTPUT_ONLY:
            if name in value:
                self.add(
                    (name,),
                    "the service sets this itself",
                    "remove it",
                    f"{API}: output only",
                    "warning",
                )
        if not 0 < build.timeout <= MAX_TIMEOUT:
            self.add(
                ("timeout",), "must be more than 0s and at most 86400s", "timeout: 3600s", SCHEMA
            )
        if build.queue_ttl is not None and build.queue_ttl <= 0:
            self.add(("queueTtl",), "must be more than 0s", "queueTtl: 3600s", SCHEMA)
        self.options(value.get("options", {}))
        if build.service_account and not self.logs_chosen():
            self.add(
                ("serviceAccount",),
                "a build with its own service account is refused if the call names no log bucket",
                "add options: {logging: CLOUD_LOGGING_ONLY}, or logsBucket",
                "the service: INVALID_ARGUMENT",
                "warning",
            )
        account = r"projects/[^/]+/serviceAccounts/[^/]+"
        if build.service_account and not re.fullmatch(account, build.service_account):
            self.add(
                ("serviceAccount",),
                f"{build.service_account!r} is not a service account's full name",
                "write projects/PROJECT/serviceAccounts/EMAIL",
                API,
            )

    def logs_chosen(self) -> bool:
        options = self.document.value.get("options", {})
        return bool(
            self.build.logs_bucket
            or options.get("logging") in _ALLOWED
            or options.get("defaultLogsBucketBehavior") == "REGIONAL_USER_OWNED_BUCKET"
        )

    def options(self, options: Mapping[str, object]) -> None:
        size = self.build.options.disk_size_gb
        if "diskSizeGb" in options and not 0 < size <= MAX_DISK_GB:
            self.add(("options", "diskSizeGb"), f"{size} GB", f"write 1 to {MAX_DISK_GB}", API)
        if "workerPool" in options:
            self.add(
                ("options", "workerPool"),
                "deprecated",
                "write pool: {name: projects/P/locations/L/workerPools/NAME}",
                API,
                "warning",
            )
        if options.get("defaultLogsBucketBehavior") == "LEGACY_BUCKET":
            self.add(
                ("options", "defaultLogsBucketBehavior"),
                "LEGACY_BUCKET is deprecated",
                "write REGIONAL_USER_OWNED_BUCKET",
                API,
                "warning",
            )
        if "secrets" in self.document.value:
            self.add(
                ("secrets",),
                "secrets of Cloud KMS in the file",
                "use availableSecrets",
                SCHEMA,
                "warning",
            )

    # --- substitutions ----------------------------------------------------------------------------

    def substitutions(self) -> Values | None:
        """Checks names and values; the values to go on with, None where there are none to have."""
        build = self.build
        own = build.substitutions
        for key, text in own.items():
            place: Place = ("substitutions", key)
            if problem := substitutions.bad_key(key):
                self.add(place, *problem, VALUES)
            if len(key.encode()) > substitutions.MAX_KEY_BYTES:
                self.add(place, "the name is longer than 100 bytes", "shorten it", VALUES)
            if len(text.encode()) > substitutions.MAX_VALUE_BYTES:
                self.add(place, "the value is longer than 4000 bytes", "put it into a file", VALUES)
        every = {**own, **self.given}
        self.limit(
            ("substitutions",),
            len(every),
            substitutions.MAX_COUNT,
            "substitutions",
            VALUES,
            "put some into a file of the source",
        )
        dynamic = build.options.dynamic_substitutions or self.trigger
        strict = build.options.substitution_option == "MUST_MATCH" and not self.trigger
        used = self.uses(dynamic)
        if strict:
            self.unused(own, used)
        known = {**_SAMPLE, **every}
        for name, place in used.items():
            self.missing(name, place, known, strict)
        if not dynamic:
            self.unread(own)
        for at, text in () if dynamic else substitutions.templates(build):
            for match in _EXPANSION.finditer(text):
                if match[2] != "}" and match[1] in known:
                    self.add(
                        at,
                        f"${{{match[1]}{match[2]}...}} stays as it is: bash's expansions are off",
                        "options: {dynamicSubstitutions: true}, or $$ if the shell is to read it",
                        VALUES,
                        "warning",
                    )
        try:
            return substitutions.resolve(known, dynamic, strict=False)
        except Unexpandable as error:
            circle_at: Place = ("substitutions", error.name)
            self.add(circle_at, error.what, error.fix, VALUES)
            return None

    def uses(self, dynamic: bool) -> dict[str, Place]:
        """Each name that the build uses, and where first."""
        used: dict[str, Place] = {}
        texts = list(substitutions.templates(self.build))
        if dynamic:
            texts += [(("substitutions", k), v) for k, v in self.build.substitutions.items()]
        for place, text in texts:
            try:
                names = substitutions.references(text, dynamic)
            except Unexpandable as error:
                self.add(place, error.what, error.fix, VALUES)
                continue
            for name in names:
                used.setdefault(name, place)
        return used

    def unused(self, own: Mapping[str, str], used: Mapping[str, Place]) -> None:
        steps = self.build.steps
        mapped = self.build.options.automap_substitutions
        if any(
            mapped if s.automap_substitutions is None else s.automap_substitutions for s in steps
        ):
            return
        for key in {**own, **self.given}:
            if key in used or not key.startswith("_"):
                continue
            in_script = any(re.search(rf"\$\{{?{key}\b", step.script) for step in steps)
            why = ": nothing is substituted in script" if in_script else ""
            fix = (
                "set automapSubstitutions: true"
                if in_script
                else "remove it, or options: {substitutionOption: ALLOW_LOOSE}"
            )
            where: Place = ("substitutions", key) if key in own else ()
            self.add(where, f"{key} is not used{why}", fix, VALUES)

    def unread(self, own: Mapping[str, str]) -> None:
        """Values that name other substitutions, where nothing reads them."""
        for key, text in own.items():
            for name in substitutions.references(text, dynamic=False):
                if not name.startswith("_") and name not in substitutions.BUILT_IN:
                    continue
                self.add(
                    ("substitutions", key),
                    f"the value's ${name} is read by triggers, and not in a build by hand",
                    "options: {dynamicSubstitutions: true}",
                    VALUES,
                    "warning",
                )

    def missing(self, name: str, place: Place, known: Mapping[str, str], strict: bool) -> None:
        if name in known:
            return
        if not name.startswith("_"):
            near = difflib.get_close_matches(name, substitutions.BUILT_IN, n=1, cutoff=0.8)
            shell = f"$${name} for the shell's own variable"
            self.add(
                place,
                f"${name} is not a built-in substitution",
                f"write ${near[0]}, or {shell}" if near else f"write {shell}, or define $_{name}",
                "the service: not a valid built-in substitution",
            )
            return
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        did = f"write ${near[0]}, or " if near else ""
        self.add(
            place,
            f"${name} has no value" + ("" if strict else ": it becomes empty text"),
            f"{did}add {name} to substitutions:, or --substitutions {name}=VALUE",
            VALUES,
            "error" if strict else "warning",
        )

    # --- steps ------------------------------------------------------------------------------------

    def step(self, step: Step, values: Values | None) -> None:
        at: Place = ("steps", step.index)
        here = self.document.value["steps"][step.index]
        if not step.name:
            self.add(at, "no name", "name: the image that runs this step", API)
        elif values:
            self.image((*at, "name"), step.name, values)
        if step.script and (step.args or step.entrypoint):
            other = "args" if step.args else "entrypoint"
            self.add(
                (*at, other), f"script and {other} exclude each other", f"drop {other}", SCHEMA
            )
        self.limit(
            (*at, "args"), len(step.args), MAX_ARGS, "args", SCHEMA, "put them into a script"
        )
        for n, arg in enumerate(step.args):
            length = len(self.expanded(arg, values))
            self.limit(
                (*at, "args", n),
                length,
                MAX_ARG,
                "characters (after substitution)",
                SCHEMA,
                "move it into a script of the source",
            )
        if step.timeout is not None and not 0 < step.timeout <= self.build.timeout:
            self.add(
                (*at, "timeout"),
                f"must be more than 0s and at most the build's timeout, {self.build.timeout:g}s",
                "shorten it, or set timeout: of the build",
                "the service: must be less than or equal to build timeout",
            )
        for code in step.allow_exit_codes:
            if not 1 <= code <= 255:
                self.add(
                    (*at, "allowExitCodes"), f"{code} is no failure's exit code", "1 to 255", SCHEMA
                )
        if step.allow_failure and step.allow_exit_codes:
            self.add(
                (*at, "allowFailure"),
                "without effect: allowExitCodes takes precedence",
                "keep one of the two",
                SCHEMA,
                "warning",
            )
        for name in _STEP_OUTPUT_ONLY:
            if name in here:
                self.add(
                    (*at, name),
                    "the service sets this itself",
                    "remove it",
                    f"{API}: output only",
                    "warning",
                )
        self.environment((*at, "env"), step.env)
        both = {one.partition("=")[0] for one in step.env} & set(step.secret_env)
        for name in both:
            self.add((*at, "secretEnv"), f"{name} is in env, too", "keep one of the two", LOCAL)
        for name, text in (("dir", step.dir), ("name", step.name)):
            self.limit((*at, name), len(text), MAX_NAME, "characters", LOCAL, "shorten it")

    def environment(self, at: Place, texts: tuple[str, ...]) -> None:
        self.limit(at, len(texts), MAX_ENVS, "variables", LOCAL, "put them into a file")
        for n, text in enumerate(texts):
            name, equals, _ = text.partition("=")
            if not equals or not name:
                self.add((*at, n), f"{text!r} is not KEY=VALUE", "write KEY=VALUE", SCHEMA)
            self.limit((*at, n), len(text), MAX_ENV, "characters", LOCAL, "put it into a file")

    def expanded(self, text: str, values: Values | None) -> str:
        try:
            return values.expand(text) if values else text
        except Unexpandable:
            return text  # named by `uses` and `missing`

    def image(self, place: Place, text: str, values: Values) -> None:
        """An image's name, as a trigger would fill it in, and as a call by hand would."""
        from builder import registry

        used = substitutions.references(text, values.dynamic)
        if any(one not in values.known for one in used):
            return  # that it is missing has been said
        name = self.expanded(text, values)
        by_hand = {**values.known, **dict.fromkeys(_ONLY_OF_TRIGGERS, "")}
        plain = Values({**by_hand, **self.given}, values.dynamic, values.strict)
        try:
            registry.parse(name)
        except InputError as error:
            empty = [one for one in used if one.startswith("_") and not values.known[one]]
            why = f"{empty[0]} is empty" if empty else error.message
            level: Level = "warning" if empty else "error"  # set by the call, most likely
            self.add(place, f"{name!r} names no image: {why}", error.fix, "docker", level)
            return
        try:
            registry.parse(self.expanded(text, plain))
        except InputError:
            if not self.trigger:
                self.add(
                    place,
                    f"{self.expanded(text, plain)!r} names no image where no trigger "
                    "sets the commit",
                    "call with --substitutions SHORT_SHA=..., or use $BUILD_ID",
                    "the service: invalid image name",
                    "warning",
                )

    # --- ids and order ----------------------------------------------------------------------------

    def ids(self) -> None:
        steps = self.build.steps
        first: dict[str, int] = {}
        for step in steps:
            if step.id in first:
                self.add(
                    ("steps", step.index, "id"),
                    f"{step.id!r} is the id of steps[{first[step.id]}], too",
                    "give each step an id of its own",
                    SCHEMA,
                )
            elif step.id:
                first[step.id] = step.index
        around = circle(steps)
        if around:
            names = " -> ".join(steps[n].id or str(n) for n in around)
            self.add(
                ("steps", around[0], "waitFor"),
                f"steps wait for each other: {names}",
                "let one of them wait for an earlier step, or for '-'",
                SCHEMA,
            )
        for step in steps:
            for n, name in enumerate(step.wait_for or ()):
                self.waits(step, ("steps", step.index, "waitFor", n), name, first, around)

    def waits(
        self, step: Step, place: Place, name: str, ids: Mapping[str, int], around: tuple[int, ...]
    ) -> None:
        if name == AT_ONCE:
            if len(step.wait_for or ()) > 1:
                self.add(place, "'-' beside other ids", "write ['-'] alone, or the ids", SCHEMA)
        elif name not in ids:
            near = difflib.get_close_matches(name, ids, n=1)
            self.add(
                place,
                f"no step has the id {name!r}",
                f"write {near[0]}" if near else f"ids: {', '.join(ids) or 'none'}",
                SCHEMA,
            )
        elif ids[name] >= step.index and step.index not in around:
            self.add(
                place,
                f"{name!r} is a later step",
                "move this step after it",
                "cloud-build-local's validator: only steps before it",
            )

    # --- volumes ----------------------------------------------------------------------------------

    def volumes(self) -> None:
        build, use = self.build, Counter[str]()
        common = {one.name for one in build.options.volumes}
        common_paths = {_normal(one.path) for one in build.options.volumes}
        self.volumes_of(("options", "volumes"), build.options.volumes)
        if build.options.volumes and len(build.steps) < 2:
            self.add(("options", "volumes"), "volumes for a single step", "remove them", API)
        for step in build.steps:
            at: Place = ("steps", step.index, "volumes")
            self.volumes_of(at, step.volumes)
            use.update({one.name for one in step.volumes})
            for n, one in enumerate(step.volumes):
                if one.name in common or _normal(one.path) in common_paths:
                    self.add((*at, n), f"{one.name} is in options.volumes, too", "keep one", API)
        for step in build.steps:
            for n, one in enumerate(step.volumes):
                if use[one.name] == 1:
                    self.add(
                        ("steps", step.index, "volumes", n),
                        f"{one.name} is used by this step only",
                        "mount it in a second step, or remove it",
                        API,
                    )

    def volumes_of(self, at: Place, volumes: tuple[Volume, ...]) -> None:
        names, paths = Counter(v.name for v in volumes), Counter(_normal(v.path) for v in volumes)
        for n, one in enumerate(volumes):
            path = _normal(one.path)
            if not _VOLUME.fullmatch(one.name) and "$" not in one.name:
                self.add(
                    (*at, n), f"{one.name!r} is no name for a volume", "letters, digits, _ . -", API
                )
            if "$" not in path and not path.startswith("/"):
                self.add((*at, n), f"{one.path!r} is not absolute", f"write /{one.path}", API)
            if path in _RESERVED or path.startswith("/cloudbuild/") or path == "/cloudbuild":
                self.add((*at, n), f"{path} is the service's own", "choose another path", API)
            if names[one.name] > 1 or paths[path] > 1:
                self.add((*at, n), f"{one.name} or {path} stands twice", "keep one", API)

    # --- secrets ----------------------------------------------------------------------------------

    def secrets(self) -> None:
        build = self.build
        used = {name for step in build.steps for name in step.secret_env}
        used |= set(build.options.secret_env)
        places: list[tuple[Place, tuple[str, ...]]] = [
            (("steps", step.index, "secretEnv"), step.secret_env) for step in build.steps
        ]
        for at, names in [*places, (("options", "secretEnv"), build.options.secret_env)]:
            for n, name in enumerate(names):
                if name not in build.secrets:
                    near = difflib.get_close_matches(name, build.secrets, n=1)
                    self.add(
                        (*at, n),
                        f"no secret has the variable {name}",
                        f"write {near[0]}"
                        if near
                        else f"availableSecrets: {{secretManager: [{{env: {name}, versionName: "
                        "projects/P/secrets/S/versions/latest}]}",
                        API,
                    )
        for name, version in build.secrets.items():
            place: Place = ("availableSecrets", name)
            if name not in used:
                self.add(place, f"no step uses {name}", f"add secretEnv: [{name}] to a step", API)
            manager = r"projects/[^/]+/(locations/[^/]+/)?secrets/[^/]+/versions/[^/]+"
            kms = r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/.+"
            if not re.fullmatch(f"{manager}|{kms}", version):
                self.add(
                    place,
                    f"{version!r} is not a secret's version",
                    "write projects/P/secrets/S/versions/latest",
                    API,
                )
        self.limit(
            ("availableSecrets",), len(build.secrets), MAX_SECRETS, "secrets", API, "use fewer"
        )

    # --- what comes out ---------------------------------------------------------------------------

    def outputs(self, values: Values | None) -> None:
        build = self.build
        self.limit(
            ("images",), len(build.images), MAX_IMAGES, "images", LOCAL, "push some in a step"
        )
        self.limit(("tags",), len(build.tags), MAX_TAGS, "tags", LOCAL, "use fewer")
        self.environment(("options", "env"), build.options.env)
        for n, text in enumerate(build.images):
            if values:
                self.image(("images", n), text, values)
        for n, text in enumerate(build.tags):
            tag = self.expanded(text, values)
            if tag and not _TAG.fullmatch(tag):  # an empty one is left out
                self.add(
                    ("tags", n),
                    f"{tag!r} is no tag of a build",
                    "letters, digits, _ . - only, at most 128",
                    "the service: must match format",
                )
        if (objects := build.objects) is None:
            return
        place: Place = ("artifacts", "objects", "location")
        where = self.expanded(objects.location, values)
        if not _BUCKET.fullmatch(where) or ".." in where.split("/"):
            self.add(place, f"{objects.location!r} is no bucket", "write gs://BUCKET/FOLDER/", API)
        if not objects.paths:
            self.add(("artifacts", "objects"), "no paths", "add paths: [GLOB]", API)


_ONLY_OF_TRIGGERS = (
    "COMMIT_SHA",
    "REVISION_ID",
    "SHORT_SHA",
    "REPO_NAME",
    "REPO_FULL_NAME",
    "BRANCH_NAME",
    "TAG_NAME",
    "REF_NAME",
    "TRIGGER_NAME",
    "TRIGGER_BUILD_CONFIG_PATH",
)


def _normal(path: str) -> str:
    return "/" + path.strip("/") if path.startswith("/") else path
