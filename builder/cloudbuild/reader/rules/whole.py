"""Rules for the build as a whole: its limits, its options, its service account, what comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from builder.cloudbuild.reader.build import Objects, Place
from builder.cloudbuild.reader.rules.report import API, LOCAL, SCHEMA, Diagnostics
from builder.cloudbuild.reader.substitutions import Values

MAX_STEPS = 300  # SCHEMA
MAX_TIMEOUT = 24 * 3600.0  # SCHEMA
MAX_DISK_GB = 4000  # API
MAX_IMAGES, MAX_TAGS, MAX_PATHS = 100, 64, 100  # LOCAL

_TAG = re.compile(r"[\w][\w.-]{0,127}")  # the service's own words: "must match format"
_POOL = re.compile(r"projects/[^/]+/(locations/[^/]+/)?workerPools/[a-z0-9-]{1,63}")  # API
BUCKETS = "Cloud Storage, bucket names"
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


def whole(report: Diagnostics, values: Values | None) -> None:
    """Check what concerns the whole build."""
    value, build = report.file.value, report.build
    if not build.steps:
        report.add((), "no steps", "add steps:, each with the name of an image", SCHEMA)
    report.limit(("steps",), len(build.steps), MAX_STEPS, "steps", SCHEMA, "put some into a script")
    if "source" in value:
        report.add(
            ("source",),
            "a configuration file cannot name its source",
            "remove it: the call, or the trigger, says what is built",
            "gcloud builds submit",
        )
    for name in _OUTPUT_ONLY:
        if name in value:
            report.add(
                (name,),
                "the service sets this itself",
                "remove it",
                f"{API}: output only",
                "warning",
            )
    if not 0 < build.timeout <= MAX_TIMEOUT:
        report.add(
            ("timeout",), "must be more than 0s and at most 86400s", "timeout: 3600s", SCHEMA
        )
    if build.queue_ttl is not None and build.queue_ttl <= 0:
        report.add(("queueTtl",), "must be more than 0s", "queueTtl: 3600s", SCHEMA)
    _options(report, value.get("options", {}))
    _pool(report, value.get("options", {}), values)
    logs = report.settled(build.logs_bucket, values)
    if logs and not is_bucket(logs.removeprefix("gs://").partition("/")[0]):
        report.add(
            ("logsBucket",), f"{logs!r} is not a bucket", "write gs://BUCKET[/FOLDER]", BUCKETS
        )
    if (build.service_account or report.account) and not _logs_chosen(report):
        email = report.account.rpartition("/")[2]
        report.add(
            ("serviceAccount",),
            f"the trigger's account {email} needs a log of its own"
            if email
            else "a build with its own service account is refused if the call names no log bucket",
            "add options: {logging: CLOUD_LOGGING_ONLY}, or logsBucket",
            "the service: INVALID_ARGUMENT",
            "error" if report.account else "warning",  # a trigger names no bucket
        )
    account = report.settled(build.service_account, values)
    if account and not re.fullmatch(r"projects/[^/]+/serviceAccounts/[^/]+", account):
        report.add(
            ("serviceAccount",),
            f"{build.service_account!r} is not a service account's full name",
            "write projects/PROJECT/serviceAccounts/EMAIL",
            API,
        )


def is_bucket(name: str) -> bool:
    """Whether a bucket can have this name. Google's own may begin with `goog`."""
    parts = name.split(".")
    return (
        bool(re.fullmatch(r"[a-z0-9][a-z0-9._-]*[a-z0-9]", name))
        and 3 <= len(name) <= (222 if parts[1:] else 63)
        and all(1 <= len(part) <= 63 for part in parts)
        and not re.fullmatch(r"\d+(\.\d+){3}", name)
    )


def _pool(report: Diagnostics, options: Mapping[str, Any], values: Values | None) -> None:
    """Check the name of a private pool, and that the build asks for no machine beside it."""
    pools: dict[Place, str] = {
        ("options", "pool", "name"): options.get("pool", {}).get("name", ""),
        ("options", "workerPool"): options.get("workerPool", ""),
    }
    for place, text in pools.items():
        name = report.settled(text, values)
        old = place[-1] == "workerPool"
        if name and not ((found := _POOL.fullmatch(name)) and (old or found[1])):
            report.add(
                place,
                f"{name!r} is not a private pool's full name",
                "write projects/P/locations/L/workerPools/NAME",
                API,
            )
    if not any(pools.values()):
        return
    for field in ("machineType", "diskSizeGb"):
        if options.get(field) not in (None, "UNSPECIFIED", 0):
            report.add(
                ("options", field),
                "a private pool has machines of its own",
                f"remove {field}, or the pool",
                "the service: a private pool's workers have their own configuration",
            )


def _logs_chosen(report: Diagnostics) -> bool:
    options = report.file.value.get("options", {})
    return bool(
        report.build.logs_bucket
        or options.get("logging") in _ALLOWED
        or options.get("defaultLogsBucketBehavior") == "REGIONAL_USER_OWNED_BUCKET"
    )


def _options(report: Diagnostics, options: Mapping[str, Any]) -> None:
    size = report.build.options.disk_size_gb
    if "diskSizeGb" in options and not 0 < size <= MAX_DISK_GB:
        report.add(("options", "diskSizeGb"), f"{size} GB", f"write 1 to {MAX_DISK_GB}", API)
    if "workerPool" in options:
        report.add(
            ("options", "workerPool"),
            "deprecated",
            "write pool: {name: projects/P/locations/L/workerPools/NAME}",
            API,
            "warning",
        )
    if options.get("defaultLogsBucketBehavior") == "LEGACY_BUCKET":
        report.add(
            ("options", "defaultLogsBucketBehavior"),
            "LEGACY_BUCKET is deprecated",
            "write REGIONAL_USER_OWNED_BUCKET",
            API,
            "warning",
        )
    if "secrets" in report.file.value:
        report.add(
            ("secrets",),
            "secrets of Cloud KMS in the file",
            "use availableSecrets",
            SCHEMA,
            "warning",
        )


def outputs(report: Diagnostics, values: Values | None) -> None:
    """Check images, tags and artifacts."""
    build = report.build
    report.limit(("images",), len(build.images), MAX_IMAGES, "images", LOCAL, "push some in a step")
    report.limit(("tags",), len(build.tags), MAX_TAGS, "tags", LOCAL, "use fewer")
    report.environment(("options", "env"), build.options.env)
    _two_lists_of_images(report)
    for n, text in enumerate(build.images):
        if values:
            report.image(("images", n), text, values)
    for n, text in enumerate(build.tags):
        tag = report.expanded(text, values)
        if tag and not _TAG.fullmatch(tag):  # an empty one is left out
            report.add(
                ("tags", n),
                f"{tag!r} is not a tag of a build",
                "letters, digits, _ . - only, at most 128",
                "the service: must match format",
            )
    if build.objects:
        _objects(report, build.objects, values)


def _two_lists_of_images(report: Diagnostics) -> None:
    value = report.file.value
    top, below = value.get("images", ()), value.get("artifacts", {}).get("images", ())
    if top and below and top != below:
        what, fix = "differs from images", "name the images in one of the two places"
        report.add(("artifacts", "images"), what, fix, LOCAL, "warning")


def _objects(report: Diagnostics, objects: Objects, values: Values | None) -> None:
    place: Place = ("artifacts", "objects", "location")
    where = report.settled(objects.location, values)
    scheme, _, path = where.partition("://")
    bucket, *folders = path.split("/")
    bad = scheme != "gs" or not is_bucket(bucket) or ".." in folders
    if (where or not objects.location) and bad:
        report.add(place, f"{objects.location!r} is not a bucket", "write gs://BUCKET/FOLDER/", API)
    at: Place = ("artifacts", "objects", "paths")
    if not objects.paths:
        report.add(at[:-1], "no paths", "add paths: [GLOB]", API)
    report.limit(at, len(objects.paths), MAX_PATHS, "paths", LOCAL, "use globs")
    for n, text in enumerate(objects.paths):
        if text in objects.paths[:n]:
            report.add((*at, n), f"{text!r} appears twice", "keep one", LOCAL, "warning")
        if re.search(r"\s", text):
            what = f"{text!r} has a space in it"
            report.add((*at, n), what, "write * in its place", LOCAL, "warning")
