"""Rules for the build as a whole: its limits, its options, its account, and what comes out."""

import re
from collections.abc import Mapping
from typing import Any

from cloudbuild_local.reader.finding import SCHEMA
from cloudbuild_local.rules.report import Report

MAX_STEPS = 300
MAX_TIMEOUT = 24 * 3600.0
MAX_DISK_GB = 4000
BUCKETS = "Cloud Storage, bucket names"
_BUCKET = re.compile(r"(?!\d+(\.\d+){3}$)(?=.{3,222}$)[a-z0-9]([a-z0-9._-]*[a-z0-9])?")

_TAG = re.compile(r"[\w][\w.-]{0,127}")  # the service's own words: "must match format"
_POOL = r"projects/[^/]+/locations/[^/]+/workerPools/[^/]+"
_OLD_POOL = r"projects/[^/]+/(locations/[^/]+/)?workerPools/[^/]+"
_ACCOUNT = r"projects/[^/]+/serviceAccounts/[^/]+"


def whole(report: Report) -> None:
    """Check what concerns the whole build."""
    value, build = report.file.value, report.build
    if not build.steps:
        report.error((), "no steps", "add steps:, each with the name of an image", SCHEMA)
    report.limit(("steps",), len(build.steps), MAX_STEPS, "steps", "put some into a script")
    if "source" in value:
        fix = "remove it: the call, or the trigger, says what is built"
        report.error(("source",), "a configuration file cannot name its source", fix, "gcloud")
    if not 0 < build.timeout <= MAX_TIMEOUT:
        what = "must be more than 0s and at most 86400s"
        report.error(("timeout",), what, "write timeout: 3600s", SCHEMA)
    if value.get("queueTtl", 1) <= 0:
        report.error(("queueTtl",), "must be more than 0s", "write queueTtl: 3600s", SCHEMA)
    _options(report)
    _pool(report)
    _account(report)
    logs = report.settled(value.get("logsBucket", ""))
    if logs and not _BUCKET.fullmatch(logs.removeprefix("gs://").partition("/")[0]):
        what, fix = f"{logs!r} is not a bucket", "write gs://BUCKET[/FOLDER]"
        report.error(("logsBucket",), what, fix, BUCKETS)


def _options(report: Report) -> None:
    options, size = report.get("options"), report.build.options.disk_size_gb
    report.environment(("options", "env"), report.build.options.env)
    if "diskSizeGb" in options and not 0 < size <= MAX_DISK_GB:
        report.error(("options", "diskSizeGb"), f"{size} GB", f"write 1 to {MAX_DISK_GB}")
    if "workerPool" in options:
        fix = "write pool: {name: projects/P/locations/L/workerPools/NAME}"
        report.warning(("options", "workerPool"), "deprecated", fix)


def _pool(report: Report) -> None:
    """Check the name of a private pool, and that the build asks for no machine beside it."""
    options, pool = report.get("options"), report.get("options", "pool").get("name", "")
    old = options.get("workerPool", "")
    what, fix = "a private pool's full name", "write projects/P/locations/L/workerPools/NAME"
    if pool:
        report.shape(("options", "pool", "name"), pool, _POOL, what, fix)
    if old:
        report.shape(("options", "workerPool"), old, _OLD_POOL, what, fix)
    for field in ("machineType", "diskSizeGb") if pool or old else ():
        if options.get(field) not in (None, "UNSPECIFIED", 0):
            what = "a private pool has machines of its own"
            report.error(("options", field), what, f"remove {field}, or the pool", "the service")


def _account(report: Report) -> None:
    """Check the build's service account, and that it has a log that it may write."""
    options, place = report.get("options"), ("serviceAccount",)
    text = report.file.value.get("serviceAccount", "")
    has_log = (
        report.file.value.get("logsBucket")
        or options.get("logging") in ("CLOUD_LOGGING_ONLY", "NONE", "STACKDRIVER_ONLY")
        or options.get("defaultLogsBucketBehavior") == "REGIONAL_USER_OWNED_BUCKET"
    )
    fix = "add options: {logging: CLOUD_LOGGING_ONLY}, or logsBucket"
    if text and not has_log:
        what = "a build with its own service account is refused if the call names no log bucket"
        report.warning(place, what, fix, "the service")
    if text:
        fix = "write projects/PROJECT/serviceAccounts/EMAIL"
        report.shape(place, text, _ACCOUNT, "a service account's full name", fix)


def outputs(report: Report) -> None:
    """Check images, tags and objects."""
    value = report.file.value
    for n, text in enumerate(value.get("images", ())):
        report.image(("images", n), text)
    for n, text in enumerate(report.get("artifacts").get("images", ())):
        report.image(("artifacts", "images", n), text)
    for n, text in enumerate(value.get("tags", ())):
        tag = report.expanded(text)
        if tag and not _TAG.fullmatch(tag):  # an empty one is left out
            fix = "write letters, digits, _ . -, at most 128"
            report.error(("tags", n), f"{tag!r} is not a tag of a build", fix, "the service")
    if report.build.objects:
        _objects(report, report.build.objects)


def _objects(report: Report, objects: Mapping[str, Any]) -> None:
    place, written = ("artifacts", "objects"), objects.get("location", "")
    location = report.settled(written)
    scheme, _, path = location.partition("://")
    bucket, *folders = path.split("/")
    bad = scheme != "gs" or not _BUCKET.fullmatch(bucket) or ".." in folders
    if bad and (location or not written):
        what = f"{written!r} is not a bucket"
        report.error((*place, "location"), what, "write gs://BUCKET/FOLDER/")
    if not objects.get("paths"):
        report.error(place, "no paths", "add paths: [GLOB]")
