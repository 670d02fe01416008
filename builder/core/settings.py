"""Where things go: a command-line flag wins over the environment, and both over builder.toml."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from builder.core.errors import InputError
from builder.core.project import MARKER

Engine = Literal["auto", "machine", "private"]
Logging = Literal["CLOUD_LOGGING_ONLY", "GCS_ONLY", "LEGACY", "NONE"]
ENGINES: tuple[Engine, ...] = ("auto", "machine", "private")
PREFIX = "BUILDER_"
LOCAL_REPOSITORY = "training"

_HOST = re.compile(r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[0-9]+)?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")


@dataclass(frozen=True)
class Settings:
    """What does not belong to one image.

    registry: HOST/PATH of the one repository that images go to; None keeps them on the engine.
    engine: "machine" (the one the machine has), "private" (our own) or "auto" (the first there is).
    """

    registry: str | None = None
    engine: Engine = "auto"

    @property
    def repository(self) -> str:
        """The name before the colon of every image reference."""
        return self.registry or LOCAL_REPOSITORY


NAMES = tuple(field.name for field in fields(Settings))

CLOUD = "cloud"
"""The table of builder.toml for Google Cloud Build."""

TABLES = (CLOUD, "job")
"""Tables of builder.toml; each is read where it is used."""

MACHINE_TYPES = (
    "E2_MEDIUM",
    "E2_STANDARD_2",
    "E2_HIGHCPU_8",
    "E2_HIGHCPU_32",
    "N1_HIGHCPU_8",
    "N1_HIGHCPU_32",
)
"""What the default pool of Cloud Build runs on (API reference, BuildOptions.machineType)."""


@dataclass(frozen=True)
class CloudSettings:
    """The table [cloud]: where and how Google Cloud Build builds.

    project: None takes the one of the credentials. service_account: an e-mail address; a build that
    names one must say where its log goes. logging: None is as the file says, else
    CLOUD_LOGGING_ONLY, which needs no bucket. worker_pool: a full name, or the name of a pool of
    this project and region. staging_bucket: None is gcloud's own. logs_bucket: gs:// and a name,
    for GCS_ONLY and LEGACY. endpoint: of the API, for emulators and private access; transport:
    "rest" goes through HTTP proxies.
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


CLOUD_NAMES = tuple(field.name for field in fields(CloudSettings) if field.name != "triggers")

# Shape and example of each value of [cloud]; whatever else is wrong, the service says.
_CLOUD_SHAPES: Mapping[str, tuple[str, str]] = {
    "project": (r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "a project's id: my-project"),
    "region": (r"global|[a-z]+-[a-z]+[0-9]+", "a region: europe-west4, or global"),
    "service_account": (
        r"[^@\s]+@[a-z0-9.-]+\.gserviceaccount\.com",
        "its address: builder@my-project.iam.gserviceaccount.com",
    ),
    "worker_pool": (
        r"projects/[^/\s]+/locations/[a-z0-9-]+/workerPools/[a-z0-9-]+|[a-z][a-z0-9-]{0,62}",
        "projects/PROJECT/locations/REGION/workerPools/NAME, or the name alone",
    ),
    "staging_bucket": (r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", "a bucket's name without gs://"),
    "logging": (r"CLOUD_LOGGING_ONLY|GCS_ONLY|LEGACY|NONE", "CLOUD_LOGGING_ONLY, GCS_ONLY, ..."),
    "logs_bucket": (r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](?:/\S+)?", "gs://BUCKET[/FOLDER]"),
    "machine_type": ("|".join(MACHINE_TYPES), f"one of {', '.join(MACHINE_TYPES)}"),
    "endpoint": (r"https?://\S+", "https://HOST"),
    "transport": ("rest|grpc", "rest or grpc"),
}


def load(root: Path, *, environ: Mapping[str, str] | None = None, **flags: str | None) -> Settings:
    """The settings of the project at `root`; a flag that is None was not given.

    Raises InputError that names where the bad value came from.
    """
    environ = os.environ if environ is None else environ
    chosen: dict[str, tuple[str, str]] = {}  # name -> value, where it was written
    chosen.update(_from_file(root / MARKER))
    for name in NAMES:
        variable = PREFIX + name.upper()
        if environ.get(variable):
            chosen[name] = (environ[variable], variable)
        flag = flags.get(name)
        if flag is not None:
            chosen[name] = (flag, f"--{name}")
    if unknown := set(flags) - set(NAMES):
        raise TypeError(f"no such setting: {sorted(unknown)}")
    registry = chosen.get("registry")
    return Settings(
        registry=_registry(*registry) if registry else None,
        engine=_engine(*chosen["engine"]) if "engine" in chosen else "auto",
    )


def load_cloud(
    root: Path, *, environ: Mapping[str, str] | None = None, **flags: str | None
) -> CloudSettings:
    """The settings for Cloud Build of the project at `root`: flag, BUILDER_CLOUD_..., [cloud].

    Raises InputError that names where the bad value came from.
    """
    environ = os.environ if environ is None else environ
    if unknown := set(flags) - set(CLOUD_NAMES):
        raise TypeError(f"no such setting: {sorted(unknown)}")
    text, content = _content(root / MARKER)
    table = content.get(CLOUD, {})
    if not isinstance(table, dict):
        raise InputError(f"{MARKER}:{_line(text, CLOUD)}: cloud: expected a table", "write [cloud]")
    chosen: dict[str, tuple[str, str]] = {}
    triggers: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    for name, value in table.items():
        where = f"{MARKER}:{_line_in(text, CLOUD, name)}: cloud.{name}"
        if name == "trigger":
            triggers = _triggers(text, value, where)
        elif name not in CLOUD_NAMES:
            raise _unknown(where, name, (*CLOUD_NAMES, "trigger"))
        elif not isinstance(value, str):
            raise _no_text(where, name, value)
        else:
            chosen[name] = (value, where)
    for name in CLOUD_NAMES:
        variable = f"{PREFIX}{CLOUD.upper()}_{name.upper()}"
        flag = flags.get(name)
        if flag is not None:
            chosen[name] = (flag, f"--{name.replace('_', '-')}")
        elif environ.get(variable):
            chosen[name] = (environ[variable], variable)
    for name, (value, where) in chosen.items():
        shape, example = _CLOUD_SHAPES[name]
        if not re.fullmatch(shape, value):
            raise InputError(f"{where}: {value!r} is not what is expected", f"write {example}")
    values: dict[str, Any] = {name: value for name, (value, _) in chosen.items()}
    return CloudSettings(**values, triggers=triggers)


def _triggers(text: str, value: Any, where: str) -> tuple[tuple[int, Mapping[str, Any]], ...]:
    """Each table [[cloud.trigger]] with the line that it begins at."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InputError(f"{where}: expected tables", "write [[cloud.trigger]]")
    begins = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r"\s*\[\[\s*cloud\s*\.\s*trigger\s*\]\]", line)
    ]
    begins += [1] * (len(value) - len(begins))  # written inline
    return tuple(zip(begins, value, strict=False))


def _content(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of builder.toml, and what it says. Raises InputError where it is not TOML."""
    if not path.is_file():
        return "", {}
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))  # else it is "at end of document"
        where = f"{MARKER}:{found[1] if found else len(text.splitlines()) or 1}"
        raise InputError(
            f"{where}: not TOML: {error}", 'write one setting a line: name = "value"'
        ) from None


def _from_file(path: Path) -> dict[str, tuple[str, str]]:
    text, content = _content(path)
    values = {}
    for name, value in content.items():
        where = f"{MARKER}:{_line(text, name)}: {name}"
        if name in TABLES:
            continue
        if name not in NAMES:
            raise _unknown(where, name, (*NAMES, *TABLES))
        if not isinstance(value, str):
            raise _no_text(where, name, value)
        values[name] = (value, where)
    return values


def _unknown(where: str, name: str, known: tuple[str, ...]) -> InputError:
    near = difflib.get_close_matches(name, known, n=1)
    fix = f"write {near[0]}" if near else f"known settings: {', '.join(known)}"
    return InputError(f"{where}: unknown setting", fix)


def _no_text(where: str, name: str, value: object) -> InputError:
    return InputError(f"{where}: expected text, found {value!r}", f'write {name} = "..." in quotes')


def _line_in(text: str, table: str, key: str) -> int:
    """The line (from 1) of a key inside of a table."""
    lines = text.splitlines()
    begin = _line(text, table)
    shape = re.compile(rf"""\s*(?:\[\[?\s*{table}\s*\.\s*)?["']?{re.escape(key)}["']?\s*[\].=]""")
    numbered = list(enumerate(lines, 1))[begin - 1 :]
    return next((number for number, line in numbered if shape.match(line)), begin)


def _line(text: str, key: str) -> int:
    """The line (from 1) on which a top-level key or table stands."""
    shape = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[\].=]""")
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines, 1) if shape.match(line)), 1)


def _engine(value: str, where: str) -> Engine:
    if value not in ENGINES:
        raise InputError(f"{where}: no engine is called {value!r}", f"use {' | '.join(ENGINES)}")
    return value


def _registry(value: str, where: str) -> str:
    """HOST/PATH, as Docker writes a repository; the tag and the digest are the factory's to add."""
    problem = fix = ""
    bare = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://", "", value).strip("/ \t")
    host, _, path = bare.partition("/")
    if bare != value:
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
