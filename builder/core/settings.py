"""The project's settings: a flag wins over the environment, and both win over builder.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from builder.core import trustsettings
from builder.core.display import address
from builder.core.errors import InputError
from builder.core.projectfile import PREFIX, ProjectFile, check_shapes, layered
from builder.core.trustsettings import TRUST, TrustSettings
from builder.core.workers import MACHINES

Engine = Literal["auto", "machine", "private"]
Logging = Literal["CLOUD_LOGGING_ONLY", "GCS_ONLY", "LEGACY", "NONE"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
LOCAL_REPOSITORY = "training"

_HOST = re.compile(r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[0-9]+)?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")


@dataclass(frozen=True)
class Settings:
    """The settings that are not one image's.

    registry: HOST/PATH of the one repository that images go to; None keeps them on the engine.
    engine: "machine" (the one the machine has), "private" (our own) or "auto" (the first there is).
    debian_mirror: the address of a mirror of Debian; None takes the one of the host's apt, or
    Debian's own. debian_snapshot: that of an archive that keeps every version, for one that the
    mirror no longer has; None takes Debian's own.
    trust: the table [trust].
    """

    registry: str | None = None
    engine: Engine = "auto"
    debian_mirror: str | None = None
    debian_snapshot: str | None = None
    trust: TrustSettings = field(default_factory=TrustSettings)

    @property
    def repository(self) -> str:
        """The name before the colon of every image reference."""
        return self.registry or LOCAL_REPOSITORY


NAMES = tuple(one.name for one in fields(Settings) if one.name != TRUST)

_ADDRESS = (r"https?://[^\s/]+(/\S*)?", "an address, such as https://mirror.example.com/debian")
_ADDRESSES = {"debian_mirror": _ADDRESS, "debian_snapshot": _ADDRESS}

CLOUD = "cloud"
"""The table of builder.toml for Google Cloud Build."""

TABLES = (CLOUD, "job", "kubernetes", TRUST)
"""Tables of builder.toml; each is read where it is used."""


@dataclass(frozen=True)
class CloudSettings:
    """The table [cloud]: where and how Google Cloud Build builds.

    project: None takes the one of the credentials.
    service_account: an e-mail address; a build that names one must also name its logging.
    worker_pool: a full name, or the name of a pool of this project and region.
    staging_bucket: the bucket for sources; None takes gcloud's own.
    logging: None takes what cloudbuild.yaml names, else CLOUD_LOGGING_ONLY, which needs no bucket.
    logs_bucket: gs:// and a name, for GCS_ONLY and LEGACY.
    endpoint: the API's address, for emulators and private access.
    transport: "rest", which goes through HTTP proxies, or "grpc".
    triggers: the tables [[cloud.trigger]] as they stand, each with its line.
    """

    project: str | None = None
    region: str = "global"
    service_account: str | None = None
    worker_pool: str | None = None
    staging_bucket: str | None = None
    logging: Logging | None = None
    logs_bucket: str | None = None
    machine_type: str | None = None
    endpoint: str | None = None
    transport: str = "rest"
    triggers: tuple[tuple[int, Mapping[str, Any]], ...] = ()

    @property
    def pool(self) -> str | None:
        """The worker pool's full name. A short one is of this project and region."""
        if not self.worker_pool or "/" in self.worker_pool:
            return self.worker_pool
        return f"projects/{self.project}/locations/{self.region}/workerPools/{self.worker_pool}"

    @property
    def bucket(self) -> str:
        """Where the source is staged: by default gcloud's own bucket for the project and region
        (google-cloud-sdk, command_lib/builds/staging_bucket_util.py)."""
        safe = re.sub("[:.]", "_", self.project or "").replace("google", "elgoog")
        region = "" if self.region == "global" else f"_{self.region}"
        return self.staging_bucket or f"{safe}{region}_cloudbuild"


CLOUD_NAMES = tuple(one.name for one in fields(CloudSettings) if one.name != "triggers")

ACCOUNT = r"[^@\s]+@[a-z0-9.-]+\.gserviceaccount\.com"
ACCOUNT_EXAMPLE = "its address: builder@my-project.iam.gserviceaccount.com"
"""The shape of a service account's address, and an example."""

# Shape and example of each value of [cloud]; the service refuses what else is wrong.
_CLOUD_SHAPES: Mapping[str, tuple[str, str]] = {
    "project": (r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "a project's id: my-project"),
    "region": (r"global|[a-z]+-[a-z]+[0-9]+", "a region: europe-west4, or global"),
    "service_account": (ACCOUNT, ACCOUNT_EXAMPLE),
    "worker_pool": (
        r"projects/[^/\s]+/locations/[a-z0-9-]+/workerPools/[a-z0-9-]+|[a-z][a-z0-9-]{0,62}",
        "projects/PROJECT/locations/REGION/workerPools/NAME, or the name alone",
    ),
    "staging_bucket": (r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", "a bucket's name without gs://"),
    "logging": ("|".join(get_args(Logging)), f"one of {', '.join(get_args(Logging))}"),
    "logs_bucket": (
        r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](?:/[\w./-]*\w)?",
        "gs://BUCKET[/FOLDER]",
    ),
    "machine_type": ("|".join(MACHINES), f"one of {', '.join(MACHINES)}"),
    "endpoint": (r"https?://\S+", "https://HOST"),
    "transport": ("rest|grpc", "rest or grpc"),
}


def load(
    root: Path,
    *,
    environ: Mapping[str, str] | None = None,
    key: str | None = None,
    **flags: str | None,
) -> Settings:
    """The settings of the project at `root`; a flag that is None was not given.

    key: the flag for trust.key. Raises InputError that names where the bad value came from.
    """
    file = ProjectFile.read(root)
    written = file.texts(NAMES, tables=TABLES)
    chosen = layered(written, NAMES, PREFIX, environ, flags)
    registry, engine = chosen.get("registry"), chosen.get("engine")
    addresses = {name: chosen[name] for name in _ADDRESSES if name in chosen}
    return Settings(
        registry=_registry(*registry) if registry else None,
        engine=_engine(*engine) if engine else "auto",
        **check_shapes(addresses, _ADDRESSES),
        trust=trustsettings.read(root, file, environ, key),
    )


def load_cloud(
    root: Path, *, environ: Mapping[str, str] | None = None, **flags: str | None
) -> CloudSettings:
    """The settings for Cloud Build of the project at `root`: flag, BUILDER_CLOUD_..., [cloud].

    Raises InputError that names where the bad value came from.
    """
    file = ProjectFile.read(root)
    triggers = _triggers(file) if "trigger" in file.table(CLOUD) else ()
    written = file.texts(CLOUD_NAMES, CLOUD, tables=("trigger",))
    chosen = layered(written, CLOUD_NAMES, f"{PREFIX}{CLOUD.upper()}_", environ, flags)
    values: dict[str, Any] = dict(check_shapes(chosen, _CLOUD_SHAPES))
    return CloudSettings(**values, triggers=triggers)


def _triggers(file: ProjectFile) -> tuple[tuple[int, Mapping[str, Any]], ...]:
    """Each table [[cloud.trigger]] with the line that it begins at."""
    value = file.table(CLOUD)["trigger"]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        where = file.place("trigger", CLOUD)
        raise InputError(f"{where}: expected tables", "write [[cloud.trigger]]")
    begins = [
        number
        for number, line in enumerate(file.text.splitlines(), 1)
        if re.match(r"\s*\[\[\s*cloud\s*\.\s*trigger\s*\]\]", line)
    ]
    begins += [1] * (len(value) - len(begins))  # written inline
    return tuple(zip(begins, value, strict=False))


def _engine(value: str, where: str) -> Engine:
    if value not in ENGINES:
        raise InputError(f"{where}: no engine is called {value!r}", f"use {' | '.join(ENGINES)}")
    return value


def _registry(value: str, where: str) -> str:
    """HOST/PATH, as Docker writes a repository, without tag and digest: the factory adds those."""
    problem = fix = ""
    bare = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://", "", value).strip("/ \t")
    host, _, path = bare.partition("/")
    if address(value) != value:
        value, problem = address(value), "holds a user and a password"
        fix = "write HOST/PATH alone, and log in with docker login"
    elif bare != value:
        problem, fix = "has a scheme, a slash or a space around it", f"write {bare}"
    elif not path:
        problem = "names a host and no repository on it"
        fix = f"add a path, for example {host or 'registry.example.com'}/training"
    elif "@" in path or ":" in path:
        problem = "carries a tag or a digest"
        fix = f"write {host}/{re.split('[@:]', path)[0]}; the push adds the tags"
    elif bare != bare.lower():
        problem, fix = "has upper-case letters", f"write {bare.lower()}"
    elif not _HOST.fullmatch(host) or not all(_PATH.fullmatch(part) for part in path.split("/")):
        problem = "is not a repository name"
        fix = "write HOST[:PORT]/PATH in a-z, 0-9 and single . _ - between them"
    if problem:
        raise InputError(f"{where}: {value!r} {problem}", fix)
    return value
