"""Where jobs go (project, region, endpoint), which image they take, and the clients that speak.

A flag wins over the job's file, the file over the environment (BUILDER_JOB_PROJECT ...), and all
of them over the table [job] of builder.toml. `endpoint` is Google's own unless it is set, which is
how an emulator or private access is spoken to.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import registry
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import CLOUD, PREFIX, ProjectFile, Settings, Written, check_shapes
from builder.facts import accelerators
from builder.jobs.description import Job
from builder.jobs.places.vertex.checks import Image
from builder.prove import receipts
from builder.spec import catalogue
from builder.spec.kernels import RUNS_ON

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import JobServiceClient

    from builder.engine import Engine

TABLE = "job"
NAMES = ("project", "region", "endpoint", "logging_endpoint", "transport")
_SHAPES: Mapping[str, tuple[str, str]] = {
    "project": (r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]{6,}", "a project's id"),
    "region": (r"[a-z]+(-[a-z]+)+[0-9]+", "a region such as us-central1"),
    "endpoint": (r"https?://[^\s/]+", "https://HOST"),
    "logging_endpoint": (r"https?://[^\s/]+", "https://HOST"),
    "transport": (r"rest|grpc", "rest or grpc"),
}


@dataclass(frozen=True)
class Service:
    """Which service, for whom and where. `endpoint` None: Google's own of the region."""

    project: str | None = None
    region: str | None = None
    endpoint: str | None = None
    logging_endpoint: str | None = None
    transport: str = "grpc"

    @property
    def parent(self) -> str:
        """The resource that jobs are made in. Raises InputError where it is not known."""
        if not self.project:
            raise InputError(
                "no project is known",
                "give --project, add project: to the job, or set it in the table [job] of "
                "builder.toml",
            )
        if not self.region:
            raise InputError(
                "no region is known",
                "give --region, add region: to the job, or set it in the table [job] of "
                "builder.toml",
            )
        return f"projects/{self.project}/locations/{self.region}"

    def known(self) -> Service:
        """Itself, if project and region are known: asked before credentials are looked for."""
        _ = self.parent
        return self


def load(
    root: Path | None,
    job: Job | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    **flags: str | None,
) -> Service:
    """Where a job goes. Raises InputError that names where a bad value came from."""
    environ = os.environ if environ is None else environ
    table = _written(root) if root is not None else {}
    chosen: dict[str, Written] = {}
    for name in NAMES:
        variable = f"{PREFIX}{TABLE.upper()}_{name.upper()}"
        described = getattr(job, name, None) if job is not None else None
        candidates = [
            (flags.get(name), f"--{name.replace('_', '-')}"),
            (described, f"{name}: of the job"),
            (environ.get(variable), variable),
            table.get(name, (None, "")),
        ]
        if name == "project":
            candidates.append((environ.get("GOOGLE_CLOUD_PROJECT"), "GOOGLE_CLOUD_PROJECT"))
        found = next(((value, where) for value, where in candidates if value), None)
        if found is not None:
            chosen[name] = found
    return Service(**check_shapes(chosen, _SHAPES))


def of_job(
    root: Path, name: str | None, project: str | None = None, region: str | None = None
) -> Service:
    """Where to ask about a job: as its whole name says, or the description of that name.

    Raises InputError where no project or no region is known.
    """
    from builder.jobs import description

    job = None
    if name and name in description.names(root):
        job = description.load(root, name)
    found = load(root, job, project=project, region=region)
    parts = (name or "").split("/")
    if len(parts) == 6 and parts[0] == "projects":
        found = replace(found, project=found.project or parts[1], region=parts[3])
    return found.known()


def _written(root: Path) -> dict[str, Written]:
    """The table [job]; the project of [cloud] serves where [job] names none."""
    file = ProjectFile.read(root)
    shared = file.table(CLOUD).get("project")
    cloud = {"project": (shared, file.place("project", CLOUD))} if isinstance(shared, str) else {}
    return cloud | file.texts(NAMES, TABLE)


# --- the image ------------------------------------------------------------------------------------


def targets(root: Path) -> dict[str, str]:
    """Target -> accelerator of a project; targets that cannot be read are left out."""
    found = {}
    for name in catalogue.targets(root):
        try:
            found[name] = accelerators.find(catalogue.load(root, name).accelerator).name
        except InputError:
            continue
    return found


def local_image(root: Path, job: Job, settings: Settings) -> tuple[Image, tuple[str, ...]]:
    """The job's image as this machine knows it, and what is still open about it.

    Raises InputError: neither a target nor a reference.
    """
    name = job.image
    if name not in catalogue.targets(root):
        return _foreign(root, name), () if "@" in name else (_by_tag(name),)
    spec = catalogue.load(root, name)
    receipt = receipts.read(root / "build" / name / "receipt.json")
    pruned = _pruned(spec)
    if receipt is None or receipt.digest is None or not receipt.passed:
        tag = f"{settings.repository}:{name}"
        return Image(tag, None, name, spec.accelerator, False, pruned), (
            f"{name} has no valid receipt here: builder image {name} --push; `builder job submit` "
            "sends what the registry holds, by digest",
        )
    reference = f"{settings.repository}@{receipt.digest}"
    notes = () if settings.registry else (_NO_REGISTRY,)
    return Image(reference, receipt.digest, name, receipt.accelerator, True, pruned), notes


def pushed_image(
    root: Path, job: Job, settings: Settings, on_event: OnEvent = ignore
) -> tuple[Image, tuple[str, ...]]:
    """The job's image as its registry holds it, by digest; one of ours with its receipt.

    Raises InputError, OutsideError (not there) or CheckFailed (not proven).
    """
    from builder.pipeline import verify
    from builder.tensorflow import suite as suites

    name = job.image
    if name in catalogue.targets(root):
        if not settings.registry:
            raise InputError(
                f"{name} is on this machine only: no registry is named",
                'write registry = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME" in builder.toml, '
                f"then builder image {name} --push",
            )
        spec = catalogue.load(root, name)
        suite = suites.of_image(spec.labels)  # of this target, whatever image bears its name there
        found = verify.verify(name, settings, suite=suite, on_event=on_event)
        return Image(
            found.reference,
            found.digest,
            name,
            found.receipt.accelerator,
            True,
            _pruned(spec),
        ), ()
    image = _foreign(root, name)
    where = registry.parse(name)
    try:
        with registry.Registry(where.host) as there:
            manifest = there.manifest(where.repository, where.target)
            labels = _labels(there, where, manifest) if manifest else {}
    except OutsideError:
        if where.digest:  # this machine cannot ask; the service will
            return image, (f"{where.host} was not asked about {name}",)
        raise
    if manifest is None:
        raise OutsideError(f"{name}: {where.host} has no such image", "correct it, or push it")
    held = where.at(manifest.digest)
    notes: tuple[str, ...] = () if where.digest else (f"{name} is {manifest.digest} now",)
    made_for, proven = labels.get(verify.ACCELERATOR), False
    if made_for is not None:  # an image of ours under another name: its receipt lies beside it
        try:
            found = verify.verify(str(held), settings, on_event=on_event)
            made_for, proven = found.receipt.accelerator, True
        except CheckFailed as error:
            notes += (f"{error.message}: that it is for {made_for} is what its label says",)
    pruned = RUNS_ON in labels
    return Image(str(held), manifest.digest, None, made_for, proven, pruned), notes


def _labels(
    there: registry.Registry, where: registry.Reference, image: registry.Manifest
) -> Mapping[str, str]:
    """An image's labels; none of a list of images, or where its configuration cannot be read."""
    try:
        config = registry.Descriptor.read(image.content["config"])
        content = json.loads(there.blob(where.repository, config))
        return dict(content["config"]["Labels"] or {})
    except (FactoryError, ValueError, KeyError, TypeError):
        return {}


def planned_image(root: Path, job: Job, settings: Settings) -> Image:
    """What a program's image will be, as far as it is known before it is made.

    Raises InputError for a job whose image is no target, or where no registry is named.
    """
    from builder.jobs.places.local import prepare as here

    if not settings.registry:
        raise InputError(
            "a program is pushed before it is sent, and no registry is named",
            'write registry = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME" in builder.toml',
        )
    target = here.target_of(root, job.image)
    spec = catalogue.load(root, target)
    made_for = accelerators.find(spec.accelerator).name
    return Image(settings.registry, None, target, made_for, False, _pruned(spec))


def _pruned(spec: catalogue.ImageSpec) -> bool:
    """Whether other GPUs' device code is taken out: only where there is a GPU to keep it for."""
    return spec.prune != "off" and accelerators.find(spec.accelerator).kind == "gpu"


def packaged_image(
    root: Path,
    job: Job,
    settings: Settings,
    folder: Path,
    module: str | None,
    engine: Engine,
    on_event: OnEvent = ignore,
) -> Image:
    """A program's folder as an image over the job's target: locked, built, proven and pushed.

    Raises InputError for a program that is none or a job whose image is no target.
    """
    from builder.jobs import package
    from builder.jobs.places.local import prepare as here

    planned = planned_image(root, job, settings)
    program = package.program(folder, module)
    target = here.target_of(root, job.image)
    made = package.build(root, settings, engine, target, program, on_event)
    pushed = package.push_built(settings, engine, made, on_event)
    return replace(
        planned,
        reference=pushed.reference,
        digest=pushed.digest,
        accelerator=made.receipt.accelerator,
        proven=True,
    )


_NO_REGISTRY = (
    "no registry is named in builder.toml: the image has a name on this machine only, and cannot "
    "be sent so"
)


def _by_tag(name: str) -> str:
    return f"{name} is a tag: `builder job submit` sends the digest that it leads to"


def _foreign(root: Path, name: str) -> Image:
    if not re.search(r"[/:@.]", name):
        known = ", ".join(catalogue.targets(root))
        raise InputError(
            f"image: {name!r} is neither a target nor the reference of an image",
            f"write one of {known}, or HOST/PATH@sha256:<digest>" if known else "write HOST/PATH",
        )
    where = registry.parse(name)
    return Image(str(where), where.digest)


# --- clients --------------------------------------------------------------------------------------


def jobs_client(service: Service) -> JobServiceClient:
    """A client of the job service. An http:// endpoint needs no credentials: it is an emulator."""
    from google.api_core.client_options import ClientOptions
    from google.cloud import aiplatform_v1

    if service.endpoint is None:
        host = f"{service.region}-aiplatform.googleapis.com"
        return aiplatform_v1.JobServiceClient(
            credentials=_credentials(),
            transport=service.transport,
            client_options=ClientOptions(api_endpoint=host),
        )
    if service.endpoint.startswith("https://") or service.transport == "rest":
        anonymous = service.endpoint.startswith("http://")
        address = service.endpoint if anonymous else service.endpoint.removeprefix("https://")
        return aiplatform_v1.JobServiceClient(
            credentials=_anonymous() if anonymous else _credentials(),
            transport=service.transport,
            client_options=ClientOptions(api_endpoint=address),
        )
    import grpc  # type: ignore[import-untyped]
    from google.cloud.aiplatform_v1.services.job_service.transports.grpc import (
        JobServiceGrpcTransport,
    )

    channel = grpc.insecure_channel(service.endpoint.removeprefix("http://"))
    return aiplatform_v1.JobServiceClient(transport=JobServiceGrpcTransport(channel=channel))


def logging_client(service: Service) -> Any:
    """A client of Cloud Logging, over HTTP."""
    from google.cloud import logging

    if service.logging_endpoint and service.logging_endpoint.startswith("http://"):
        return logging.Client(  # type: ignore[no-untyped-call]
            project=service.project,
            credentials=_anonymous(),
            _use_grpc=False,
            client_options={"api_endpoint": service.logging_endpoint},
        )
    options = {"api_endpoint": service.logging_endpoint} if service.logging_endpoint else None
    return logging.Client(  # type: ignore[no-untyped-call]
        project=service.project,
        credentials=_credentials(),
        _use_grpc=False,
        client_options=options,
    )


def storage_client(service: Service) -> Any:
    """A client of Cloud Storage; STORAGE_EMULATOR_HOST is honoured by the library itself."""
    from google.cloud.storage import Client  # type: ignore[import-untyped]

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        return Client(project=service.project, credentials=_anonymous())
    return Client(project=service.project, credentials=_credentials())


def _anonymous() -> Any:
    from google.auth.credentials import AnonymousCredentials

    return AnonymousCredentials()  # type: ignore[no-untyped-call]


def _credentials() -> Any:
    """This machine's credentials. Raises OutsideError where there are none."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        found, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except DefaultCredentialsError:
        raise OutsideError(
            "no credentials for Google Cloud on this machine",
            "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
        ) from None
    return found
