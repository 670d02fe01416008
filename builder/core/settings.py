"""The project's settings: a flag wins over the environment, and both win over builder.toml."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from builder.core.display import address
from builder.core.errors import InputError
from builder.core.project import MARKER
from builder.core.workers import MACHINES

Engine = Literal["auto", "machine", "private"]
Logging = Literal["CLOUD_LOGGING_ONLY", "GCS_ONLY", "LEGACY", "NONE"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
PREFIX = "BUILDER_"
LOCAL_REPOSITORY = "training"

_HOST = re.compile(r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[0-9]+)?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")

TRUST = "trust"
"""The table of builder.toml that says whose statements about an image count."""

CLOUD_KEY = "gcpkms://"
"""How the name of a key in Google Cloud KMS begins, as cosign writes it."""

SUITES = ("program", "trainer")
"""The suites of checks, the least first."""

_SECONDS = {"hour": 3600.0, "day": 86400.0, "week": 604800.0}
_AGE = re.compile(r"(\d+) (hour|day|week)s?")


@dataclass(frozen=True)
class TrustSettings:
    """The table [trust]. A key is the path of a file, or gcpkms://... in Google Cloud KMS.

    key: the private key that a push signs with; None signs nothing. prove: the public keys of those
    whose receipts count; none asks for no signature. build: the public keys of those whose bases
    count; none takes those of `prove`. suite: the least suite of checks; "" takes any. age: seconds
    since the proof, at most; None for any age.
    """

    key: str | None = None
    prove: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    suite: str = ""
    age: float | None = None


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
    trust: TrustSettings = TrustSettings()

    @property
    def repository(self) -> str:
        """The name before the colon of every image reference."""
        return self.registry or LOCAL_REPOSITORY


NAMES = tuple(field.name for field in fields(Settings) if field.name != TRUST)

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


CLOUD_NAMES = tuple(field.name for field in fields(CloudSettings) if field.name != "triggers")

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


Written = tuple[str, str]
"""A value, and where it was written: a flag, a variable, or a file's name, line and key."""


@dataclass(frozen=True)
class ProjectFile:
    """builder.toml as it stands: its text and its content. A project without one has neither."""

    text: str
    content: Mapping[str, Any]

    @classmethod
    def read(cls, root: Path) -> ProjectFile:
        """The file of the project at `root`. Raises InputError where it is not TOML."""
        path = root / MARKER
        if not path.is_file():
            return cls("", {})
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            return cls(text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"at line (\d+)", str(error))  # else it is "at end of document"
            where = f"{MARKER}:{found[1] if found else len(text.splitlines()) or 1}"
            raise InputError(
                f"{where}: not TOML: {error}", 'write one setting a line: name = "value"'
            ) from None

    def table(self, name: str) -> Mapping[str, Any]:
        """The table of this name, empty where there is none. Raises InputError for another type."""
        found = self.content.get(name, {})
        if not isinstance(found, dict):
            where = f"{MARKER}:{_line(self.text, name)}: {name}"
            raise InputError(f"{where}: expected a table", f"write [{name}]")
        return found

    def place(self, key: str, table: str = "") -> str:
        """`builder.toml:3: cloud.region`: where a key stands, at the top or in a table."""
        if not table:
            return f"{MARKER}:{_line(self.text, key)}: {key}"
        return f"{MARKER}:{_line_in(self.text, table, key)}: {table}.{key}"

    def texts(
        self, names: Sequence[str], table: str = "", tables: Sequence[str] = ()
    ) -> dict[str, Written]:
        """The settings at the top of the file or in a table, which are all texts.

        names: the settings that there are; tables: the keys that hold tables, which are left out.
        Raises InputError for any other key, and for a value that is not a text.
        """
        values: dict[str, Written] = {}
        for key, value in (self.table(table) if table else self.content).items():
            where = self.place(key, table)
            if key in tables:
                continue
            if key not in names:
                known = (*names, *tables)
                near = difflib.get_close_matches(key, known, n=1)
                fix = f"write {near[0]}" if near else f"known settings: {', '.join(known)}"
                raise InputError(f"{where}: unknown setting", fix)
            if not isinstance(value, str):
                raise InputError(
                    f"{where}: expected text, found {value!r}", f'write {key} = "..." in quotes'
                )
            values[key] = (value, where)
        return values


def check_shapes(
    written: Mapping[str, Written], shapes: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """The values alone. shapes: by name, what the whole value matches, and an example.

    Raises InputError that names where the bad value came from.
    """
    for name, (value, where) in written.items():
        shape, example = shapes[name]
        if not re.fullmatch(shape, value):
            raise InputError(f"{where}: {value!r} is not what is expected", f"write {example}")
    return {name: value for name, (value, _) in written.items()}


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
        trust=_trust(root, file, environ, key),
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


def _trust(
    root: Path, file: ProjectFile, environ: Mapping[str, str] | None, key: str | None
) -> TrustSettings:
    """The table, with BUILDER_TRUST_KEY and the flag `key` above it.

    Raises InputError for a value of another shape, and for a private key inside the project.
    """
    table = file.table(TRUST)
    written = file.texts(("key", "suite", "age"), TRUST, tables=("prove", "build"))
    chosen = layered(
        {name: one for name, one in written.items() if name == "key"},
        ("key",),
        f"{PREFIX}{TRUST.upper()}_",
        environ,
        {"key": key},
    )
    prove = _keys(root, file, "prove", table)
    for name in ("build", "suite", "age"):
        if name in table and not prove:
            raise InputError(
                f"{file.place(name, TRUST)}: nothing is judged without the keys that count",
                'write prove = ["keys/prover.pub"] beside it',
            )
    return TrustSettings(
        key=private_key(root, *chosen["key"]) if "key" in chosen else None,
        prove=prove,
        build=_keys(root, file, "build", table),
        suite=_suite(*written["suite"]) if "suite" in written else "",
        age=_age(*written["age"]) if "age" in written else None,
    )


def private_key(root: Path, name: str, where: str) -> str:
    """The signing key's name. A path in builder.toml counts from the project, any other from here.

    where: where it was written. Raises InputError for a file inside of the project.
    """
    if name.startswith(CLOUD_KEY):
        return name
    path = Path(name).expanduser()
    if where.startswith(MARKER):
        path = root / path
    if path.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"{where}: {name} is a private key inside of the project",
            "move it out of the project, where no commit, image or upload takes it along",
        )
    return str(path)


def _keys(root: Path, file: ProjectFile, name: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    """The public keys under a name; a path counts from the project."""
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise InputError(
            f"{file.place(name, TRUST)}: expected a list of keys, found {value!r}",
            f'write {name} = ["keys/prover.pub"]',
        )
    return tuple(
        one if one.startswith(CLOUD_KEY) else str(root / Path(one).expanduser()) for one in value
    )


def _suite(value: str, where: str) -> str:
    if value not in SUITES:
        raise InputError(
            f"{where}: no suite of checks is called {value!r}", f"use {' | '.join(SUITES)}"
        )
    return value


def _age(value: str, where: str) -> float:
    found = _AGE.fullmatch(value)
    if not found or not int(found[1]):
        raise InputError(f"{where}: {value!r} is no age", 'write "12 hours", "30 days", "4 weeks"')
    return int(found[1]) * _SECONDS[found[2]]


def layered(
    written: Mapping[str, Written],
    names: Sequence[str],
    prefix: str,
    environ: Mapping[str, str] | None,
    flags: Mapping[str, str | None],
) -> dict[str, Written]:
    """Each setting's value from its flag, else from its variable, else from the file."""
    environ = os.environ if environ is None else environ
    if unknown := set(flags) - set(names):
        raise TypeError(f"no such setting: {sorted(unknown)}")
    chosen = dict(written)
    for name in names:
        variable, flag = prefix + name.upper(), flags.get(name)
        if flag is not None:
            chosen[name] = (flag, f"--{name.replace('_', '-')}")
        elif environ.get(variable):
            chosen[name] = (environ[variable], variable)
    return chosen


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
