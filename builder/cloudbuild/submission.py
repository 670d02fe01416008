"""A build in the cloud: created once, followed to its end, its digests compared with the registry.

What a lost connection costs is time. A `create` whose answer was lost is found again by a tag of
its own instead of being sent twice; a build that runs is asked after until it has ended, and goes
on without us where we give up.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import registry
from builder.cloudbuild import logs, validation
from builder.cloudbuild.clients import Clients, explained, explaining, passing
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, StepDone, StepStarted, ignore
from builder.core.retry import Passing, Retry

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

    from builder.cloudbuild.document import Document
    from builder.cloudbuild.source import Staged
    from builder.core.settings import CloudSettings

TAG = "submission-"
"""How the tag begins that makes a submitted build findable."""

CREATE_ATTEMPTS = 4
WAITING = "waiting for a worker"
OUT_OF_TOUCH = 900.0
"""Seconds without a single answer about a build, after which it is no longer watched."""

OnLine = Callable[[str], None]
Sleep = Callable[[float], None]


def wait(seconds: float) -> None:
    """Between two questions."""
    time.sleep(seconds)


def unheard(line: str) -> None:
    """Nobody reads the log."""


GOOD = "SUCCESS"
ENDED = (GOOD, "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED")


@dataclass(frozen=True)
class Pushed:
    """An image that a build says it pushed. registry: what the registry says; None: not asked."""

    name: str
    digest: str
    registry: str | None = None

    @property
    def reference(self) -> str:
        """Repository and digest."""
        where = registry.parse(self.name)
        return str(where.at(self.digest))


@dataclass(frozen=True)
class Finished:
    """A build that has ended. note: what could not be seen of it, and why.

    seconds: from its start to its end; 0 where it never started.
    """

    id: str
    status: str
    detail: str
    log_url: str
    seconds: float
    images: tuple[Pushed, ...] = ()
    note: str = ""
    failed_steps: tuple[str, ...] = ()


# --- what is submitted ----------------------------------------------------------------------------


def prepared(
    build: Build,
    settings: CloudSettings,
    substitutions: Mapping[str, str],
    tags: Sequence[str] = (),
    staged: Staged | None = None,
) -> Build:
    """The build of a file with what the settings add to it. Pure: the argument stays as it was.

    Raises InputError for settings that cannot go together.
    """
    from google.cloud.devtools import cloudbuild_v1 as api

    new = api.Build(build)
    for name, value in substitutions.items():
        new.substitutions[name] = value
    new.tags.extend(tag for tag in tags if tag not in new.tags)
    if staged:
        new.source = api.Source(
            storage_source=api.StorageSource(
                bucket=staged.bucket, object_=staged.name, generation=staged.generation
            )
        )
    if settings.service_account:
        project = settings.service_account.split("@")[1].split(".")[0]
        new.service_account = f"projects/{project}/serviceAccounts/{settings.service_account}"
    if settings.logs_bucket:
        new.logs_bucket = settings.logs_bucket
    mode = api.BuildOptions.LoggingMode
    if settings.logging:
        new.options.logging = getattr(mode, settings.logging)
    elif new.service_account and not new.logs_bucket and not new.options.logging:
        new.options.logging = mode(mode.CLOUD_LOGGING_ONLY)
    if (
        new.service_account
        and not new.logs_bucket
        and new.options.logging not in (mode.CLOUD_LOGGING_ONLY, mode.NONE)
    ):
        raise InputError(
            f"a build with a service account and logging {settings.logging} needs a logs bucket",
            'write logs_bucket = "gs://BUCKET" or logging = "CLOUD_LOGGING_ONLY" below [cloud]',
        )
    if settings.pool:
        # a private pool has its own machines: the service refuses these two beside it
        new.options.pool = api.BuildOptions.PoolOption(name=settings.pool)
        new.options.machine_type = api.BuildOptions.MachineType(0)
        new.options.disk_size_gb = 0
    elif settings.machine_type:
        new.options.machine_type = getattr(api.BuildOptions.MachineType, settings.machine_type)
    return new


def create(clients: Clients, build: Build, sleep: Sleep | None = None) -> Build:
    """Submit a build, once. Raises OutsideError with what the service says.

    A connection that breaks says nothing about whether the build was created: it is looked for by
    its tag before it is sent again.
    """
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.devtools import cloudbuild_v1 as api

    tag = TAG + uuid.uuid4().hex
    build.tags.append(tag)
    request = api.CreateBuildRequest(**_within(clients), build=build)
    sent = False

    def attempt() -> Build:
        nonlocal sent
        if sent:
            with contextlib.suppress(FactoryError):
                if found := listed(clients, tag=tag, limit=1):
                    return found[0]
        sent = True
        try:
            operation = clients.build.create_build(request, retry=None, timeout=60.0)
            made: Build = operation.metadata.build
            return made
        except passing() as error:
            refused = explained(error, "the build could not be created")
            raise Passing(refused.message, final=refused) from error
        except (GoogleAPIError, GoogleAuthError) as error:
            raise explained(error, "the build was not created") from error

    return Retry(CREATE_ATTEMPTS, first=2.0).run(attempt, sleep=sleep or wait)


# --- asking ---------------------------------------------------------------------------------------


def _within(clients: Clients) -> dict[str, str]:
    """What a request about builds names. Over REST the parent alone: with the project beside it,
    the client takes the older address, which knows no region."""
    rest = clients.settings.transport == "rest"
    return {"parent": clients.parent} | ({} if rest else {"project_id": clients.project})


def _named(clients: Clients, key: str) -> dict[str, str]:
    """What a request about one build names."""
    rest = clients.settings.transport == "rest"
    old = {} if rest else {"project_id": clients.project, "id": key}
    return {"name": f"{clients.parent}/builds/{key}"} | old


def get(clients: Clients, key: str) -> Build:
    """A build by its id. Raises OutsideError."""
    with explaining(f"build {key}"):
        return _get(clients, key)


def _get(clients: Clients, key: str) -> Build:
    from google.cloud.devtools import cloudbuild_v1 as api

    request = api.GetBuildRequest(_named(clients, key))
    return clients.build.get_build(request, retry=None, timeout=30.0)


def listed(clients: Clients, tag: str = "", limit: int = 20) -> tuple[Build, ...]:
    """The project's builds in its region, the newest first. Raises OutsideError."""
    from google.cloud.devtools import cloudbuild_v1 as api

    request = api.ListBuildsRequest(
        **_within(clients),
        page_size=limit,
        filter=f'tags="{tag}"' if tag else "",
    )
    found: list[Build] = []
    with explaining("the list of builds"):
        for build in clients.build.list_builds(request, timeout=30.0):
            found.append(build)
            if len(found) == limit:
                break
    return tuple(found)


def cancel(clients: Clients, key: str) -> Build:
    """Stop a build. Raises OutsideError."""
    from google.cloud.devtools import cloudbuild_v1 as api

    request = api.CancelBuildRequest(_named(clients, key))
    with explaining(f"build {key}"):
        return clients.build.cancel_build(request, timeout=60.0)


def retry(clients: Clients, key: str) -> Build:
    """Start a build again with the same source. Raises OutsideError."""
    from google.api_core.exceptions import NotFound
    from google.cloud.devtools import cloudbuild_v1 as api

    get(clients, key)
    request = api.RetryBuildRequest(_named(clients, key))
    with explaining(f"build {key}"):
        try:
            operation = clients.build.retry_build(request, timeout=60.0)
        except NotFound:
            raise OutsideError(
                f"build {key}: its staged source is gone, so it cannot run again",
                "submit it anew; with --keep-source a build can be retried",
            ) from None
        made: Build = operation.metadata.build
        return made


# --- following ------------------------------------------------------------------------------------


def watch(
    clients: Clients,
    build: Build,
    on_line: OnLine = unheard,
    on_event: OnEvent = ignore,
    sleep: Sleep | None = None,
) -> Finished:
    """Follow a build to its end: every line of its log to `on_line`, its steps to `on_event`.

    How the build went comes from its status alone; what of the log could not be read is a note.
    Raises OutsideError where nothing was heard of it for a quarter of an hour: it goes on.
    """
    follower = logs.begin(build)
    steps = _Steps(on_event)
    heard, failures = time.monotonic(), 0
    while True:
        try:
            with explaining(f"build {build.id}", but=passing()):
                build = _get(clients, build.id)
            heard, failures = time.monotonic(), 0
        except passing() as error:
            failures += 1
            if time.monotonic() - heard > OUT_OF_TOUCH:
                raise OutsideError(
                    f"build {build.id}: nothing was heard of it for {OUT_OF_TOUCH / 60:.0f} "
                    f"minutes ({error}); it goes on",
                    f"builder cloud logs {build.id}",
                ) from error
        steps.tell(build)
        ended = status(build) in ENDED and not failures
        if ended and not follower.ended:
            follower = follower.end()  # the log is complete: what is read from now on is all
        while ask := follower.ask:
            follower, lines = follower.told(logs.read(clients, build, ask))
            for line in lines:
                on_line(line)
            if follower.idle:
                break
        if ended and follower.done:
            return finished(build, follower.note)
        (sleep or wait)(max(follower.pause, min(30.0, 2.0**failures) if failures else 0.0))


def status(build: Build) -> str:
    """The name of a build's status."""
    return str(build.status.name)


def finished(build: Build, note: str = "") -> Finished:
    """What a build that has ended left."""
    seconds = 0.0
    if build.start_time and build.finish_time:
        seconds = (build.finish_time - build.start_time).total_seconds()
    detail = build.failure_info.detail or build.status_detail
    failed = tuple(
        step.id or f"#{number}"
        for number, step in enumerate(build.steps)
        if step.status.name in ("FAILURE", "TIMEOUT", "INTERNAL_ERROR")
    )
    return Finished(
        build.id, status(build), detail, build.log_url, seconds, _images(build), note, failed
    )


def _images(build: Build) -> tuple[Pushed, ...]:
    """The images of `images:`, and those that steps pushed themselves and wrote to their output."""
    found = {image.name: image.digest for image in build.results.images}
    for output in build.results.build_step_outputs:
        try:
            content = json.loads(output or b"[]")
        except ValueError:
            continue
        for one in content if isinstance(content, list) else []:
            if isinstance(one, dict) and {"repository", "digest", "tags"} <= one.keys():
                found |= {f"{one['repository']}:{tag}": one["digest"] for tag in one["tags"]}
    return tuple(Pushed(name, digest) for name, digest in found.items())


@dataclass
class _Steps:
    """Tells of each step when it starts and ends, from what the build's message says of it."""

    on_event: OnEvent
    told: dict[int, str] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)
    waits: float = 0.0

    def tell(self, build: Any) -> None:
        queued = status(build) in ("PENDING", "QUEUED")
        if queued and not self.waits:
            self.waits = time.monotonic()
            self.on_event(StepStarted(WAITING))
        elif self.waits and not queued:
            self.on_event(StepDone(WAITING, time.monotonic() - self.waits))
            self.waits = 0.0
        for number, step in enumerate(build.steps):
            name, now = step.id or f"#{number}", step.status.name
            if self.told.get(number) == now:
                continue
            if now == "WORKING" or (now in ENDED and number not in self.began):
                self.began[number] = time.monotonic()
                self.on_event(StepStarted(name))
            if now in ENDED:
                seconds = time.monotonic() - self.began[number]
                if step.timing.start_time and step.timing.end_time:
                    seconds = (step.timing.end_time - step.timing.start_time).total_seconds()
                error = None if now == GOOD else now.lower()
                self.on_event(StepDone(name, seconds, error=error))
            self.told[number] = now


# --- judging --------------------------------------------------------------------------------------

_WHY: Mapping[str, tuple[str, str]] = {
    "TIMEOUT": ("took longer than its timeout", "raise timeout: in cloudbuild.yaml"),
    "EXPIRED": (
        "waited in the queue longer than its queueTtl",
        "look at the pool and the quota for concurrent builds, then builder cloud retry",
    ),
    "CANCELLED": ("was cancelled", "builder cloud retry ID"),
    "INTERNAL_ERROR": (
        "ended with an internal error of Cloud Build",
        "builder cloud retry ID; status.cloud.google.com",
    ),
}


def judged(one: Finished) -> Finished:
    """The build, if it succeeded. Raises CheckFailed for a failed step, else OutsideError."""
    if one.status == GOOD:
        return one
    detail = f": {one.detail}" if one.detail else ""
    if one.status == "FAILURE":
        where = f" in {', '.join(one.failed_steps)}" if one.failed_steps else ""
        raise CheckFailed(f"build {one.id} failed{where}{detail}", f"builder cloud logs {one.id}")
    why, fix = _WHY.get(one.status, (f"ended as {one.status}", "look at " + one.log_url))
    raise OutsideError(f"build {one.id} {why}{detail}", fix.replace("ID", one.id))


def compared(one: Finished) -> Finished:
    """Each digest that the build names beside the one that the registry has under that name.

    A registry that cannot be asked from here is a note. Raises CheckFailed where they differ.
    """
    seen: list[Pushed] = []
    notes = [one.note] if one.note else []
    clients: dict[str, registry.Registry | None] = {}
    for image in one.images:
        where = registry.parse(image.name)
        there: str | None = None
        if clients.setdefault(where.host, registry.Registry(where.host)) is not None:
            client = clients[where.host]
            assert client is not None
            try:
                there = client.head(where.repository, where.target)
            except FactoryError as error:
                clients[where.host] = None
                notes.append(f"digests not compared: {error.message}")
            else:
                if there != image.digest:
                    says = there or "that it has no such image"
                    raise CheckFailed(
                        f"{image.name}: the build says {image.digest}, the registry {says}",
                        "do not use it; look who else pushes there, and build it again",
                    )
        seen.append(replace(image, registry=there))
    for open_client in clients.values():
        if open_client:
            open_client.__exit__()
    return replace(one, images=tuple(seen), note="; ".join(notes))


def row(build: Build) -> dict[str, Any]:
    """A build as `status` and `list` show it."""
    done = finished(build)
    return {
        "id": build.id,
        "status": done.status,
        "created": build.create_time.isoformat() if build.create_time else None,
        "seconds": done.seconds,
        "substitutions": {k: v for k, v in build.substitutions.items() if k.startswith("_")},
        "tags": [tag for tag in build.tags if not re.match(f"{TAG}[0-9a-f]{{32}}$", tag)],
        "images": [{"name": image.name, "digest": image.digest} for image in done.images],
        "steps": [
            {"id": step.id or f"#{number}", "status": step.status.name}
            for number, step in enumerate(build.steps)
        ],
        "detail": done.detail,
        "log_url": build.log_url,
    }


# --- from a file to a build -----------------------------------------------------------------------

GPU, REGISTRY, REGION = "_GPU", "_REGISTRY", "_REGION"
FROM_GIT = ("COMMIT_SHA", "SHORT_SHA", "BRANCH_NAME", "TAG_NAME", "REPO_NAME")
"""Names of the service's own that a call may set (its documentation, "default substitutions")."""


def values(
    document: Document,
    targets: Sequence[str],
    repository: str | None,
    region: str,
    commit: Mapping[str, str],
    given: Mapping[str, str],
) -> dict[str, str]:
    """The substitutions of a submission: what the call says, over what the project knows.

    Only names that the file declares are set by us, so any project's file can be submitted. commit:
    COMMIT_SHA and its kin, which a trigger would set; empty for a tree that differs from it.
    """
    declared = document.build.substitutions
    known = {GPU: ",".join(targets), REGISTRY: repository or "", REGION: region}
    if region == "global":  # builds have a region by that name, registries have not
        known.pop(REGION)
    ours = {name: value for name, value in known.items() if value and name in declared}
    git = {name: commit[name] for name in FROM_GIT if commit.get(name)}
    return {**git, **ours, **given}


def checked(document: Document, given: Mapping[str, str]) -> None:
    """Raises InputError for what the service would refuse: before anything is staged."""
    validation.refuse(document, validation.check(document, given))


def clean(root: Path) -> bool:
    """Whether the tree is what its commit says: only then a build may carry the commit's name."""
    command = ["git", "status", "--porcelain", "--", "."]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and not done.stdout
