"""builder.toml as one model. A flag wins over the environment, and both win over the file.

The variable of a setting is BUILDER_ and its name in capitals: BUILDER_REGISTRY,
BUILDER_CLOUD_REGION. An error names the flag, the variable or the line that a bad value came from.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from builder.core import backends, filemodel, files
from builder.core.backends import BackendKind, Flags
from builder.core.display import address
from builder.core.errors import InputError
from builder.core.filemodel import FileModel, invalid, matches
from builder.core.project import MARKER
from builder.core.yamlfile import Document, Mistake

PREFIX: Final = "BUILDER_"
"""How the variables of the environment begin that are settings."""

LOCAL_REPOSITORY: Final = "training"
"""The repository of images that stay on the engine."""

KEYLESS: Final = "keyless"
"""Stands where a key is named: a push signs with its own OIDC identity, through Sigstore."""

Table = TypeVar("Table", bound=FileModel)
Engine = Literal["auto", "machine", "private"]
MachineType = Literal[
    "E2_MEDIUM", "E2_STANDARD_2", "E2_HIGHCPU_8", "E2_HIGHCPU_32", "N1_HIGHCPU_8", "N1_HIGHCPU_32"
]

# --- shapes ---------------------------------------------------------------------------------------

_HOST: Final = re.compile(r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[0-9]+)?")
_PATH: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")


def _repository(value: str) -> str:
    """Refuse all but HOST/PATH without tag and digest: the factory adds those."""
    host, _, path = value.partition("/")
    if address(value) != value:
        raise invalid(
            f"{address(value)!r} holds a user and a password",
            "write HOST/PATH alone, and log in with docker login",
        )
    if not _HOST.fullmatch(host) or not all(_PATH.fullmatch(part) for part in path.split("/")):
        raise invalid(
            f"{value!r} is not a repository's name",
            "write HOST[:PORT]/PATH, without scheme and tag, in a-z, 0-9 and single . _ - between:"
            " registry.example.com/training",
        )
    return value


Repository = Annotated[str, AfterValidator(_repository)]
WebAddress = Annotated[
    str,
    matches(r"https?://[^\s/]+(/\S*)?", "an address", "write https://mirror.example.com/debian"),
]
Endpoint = Annotated[str, matches(r"https?://[^\s/]+", "an endpoint", "write https://HOST")]
ProjectId = Annotated[
    str,
    matches(
        r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]{6,}",
        "a project's id",
        "write a project's id: my-project",
    ),
]
Region = Annotated[
    str, matches(r"global|[a-z]+(-[a-z]+)+[0-9]+", "a region", "write a region: europe-west4")
]
Account = Annotated[
    str,
    matches(
        r"[^@\s]+@[a-z0-9.-]+\.gserviceaccount\.com",
        "a service account",
        "write its address: builder@my-project.iam.gserviceaccount.com",
    ),
]
WorkerPool = Annotated[
    str,
    matches(
        r"projects/[^/\s]+/locations/[a-z0-9-]+/workerPools/[\w-]+|[a-z][\w-]{0,62}",
        "a worker pool",
        "write projects/PROJECT/locations/REGION/workerPools/NAME, or the name alone",
    ),
]
Bucket = Annotated[
    str, matches(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", "a bucket", "write its name without gs://")
]
Age = Annotated[
    str, matches(r"[1-9][0-9]{0,3}[hdw]", "an age", "write hours, days or weeks: 12h, 30d, 4w")
]
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}

# --- the tables -----------------------------------------------------------------------------------


class CloudSettings(FileModel):
    """The table [cloud]: where and how Google Cloud Build builds."""

    project: ProjectId | None = None
    """None takes the one of the credentials."""
    region: Region = "global"
    service_account: Account | None = None
    """An e-mail address."""
    worker_pool: WorkerPool | None = None
    """A full name, or the name of a pool of this project and region."""
    staging_bucket: Bucket | None = None
    """The bucket for sources; None takes gcloud's own."""
    machine_type: MachineType | None = None
    endpoint: Endpoint | None = None
    """The API's address, for emulators and private access."""
    triggers: tuple[dict[str, Any], ...] = Field(default=(), alias="trigger")
    """The tables [[cloud.trigger]] as they stand."""

    @property
    def pool(self) -> str | None:
        """The worker pool's full name. A short one is of this project and region."""
        if not self.worker_pool or "/" in self.worker_pool:
            return self.worker_pool
        return f"projects/{self.project}/locations/{self.region}/workerPools/{self.worker_pool}"

    @property
    def bucket(self) -> str:
        """The bucket of the staged source: by default gcloud's own for the project and region
        (google-cloud-sdk, command_lib/builds/staging_bucket_util.py)."""
        safe = re.sub("[:.]", "_", self.project or "").replace("google", "elgoog")
        region = "" if self.region == "global" else f"_{self.region}"
        return self.staging_bucket or f"{safe}{region}_cloudbuild"


class Identity(FileModel):
    """Whoever signs without a key: an OIDC identity, and the issuer that vouches for it."""

    identity: str
    """As a certificate of Sigstore names it: an e-mail address, or the address of a workflow
    (https://github.com/O/R/.github/workflows/W.yml@refs/heads/main)."""
    issuer: str


def _signer(value: object) -> object:
    """Refuse what is neither a public key's name nor an identity."""
    if isinstance(value, Identity) or (isinstance(value, str) and value):
        return value
    parts = dict(value) if isinstance(value, dict) else {}
    texts = [text for text in parts.values() if isinstance(text, str) and text]
    if parts.keys() == {"identity", "issuer"} and len(texts) == 2:
        return value
    raise invalid(
        f"expected a key or an identity, found {value!r}",
        'write ["keys/prover.pub"], or [{ identity = "ci@example.com", '
        'issuer = "https://accounts.google.com" }]',
    )


Signers = tuple[Annotated[str | Identity, BeforeValidator(_signer)], ...]


class TrustSettings(FileModel):
    """The table [trust]: whose attestations count. A key is a file."""

    key: str | None = None
    """The private key that a push signs with, or KEYLESS; None signs nothing."""
    prove: Signers = Field(default=(), examples=[["keys/prover.pub"]])
    """Those whose receipts count, by public key or identity; none asks for no signature."""
    on_gpu: Signers = Field(default=(), examples=[["keys/lab.pub"]])
    """Those of whom one has to have run an image on its GPU; none asks for no such run."""
    max_age: Age | None = Field(default=None, examples=["30d"])
    """How old a receipt may be that counts; None for any age."""
    trusted_root: str | None = None
    signing_config: str | None = None
    """`trusted_root` and `signing_config`: the files that say which Sigstore is trusted and which
    one signs; None takes Sigstore's public one."""
    layers: int = Field(default=0, ge=0)
    """How many of `rebuilders` sign a line of images/layers.lock before its layer is taken from
    elsewhere; 0 asks for none."""
    rebuilders: Signers = Field(default=(), examples=[["keys/ci.pub", "keys/ours.pub"]])

    @property
    def asks(self) -> bool:
        """Whether an image of anybody needs a receipt that somebody signed."""
        return bool(self.prove or self.on_gpu)

    @property
    def oldest(self) -> timedelta | None:
        age = self.max_age
        return timedelta(hours=int(age[:-1]) * _HOURS[age[-1]]) if age else None

    @model_validator(mode="after")
    def _judges(self) -> TrustSettings:
        for name in ("prove", "on_gpu"):
            if name in self.model_fields_set and not getattr(self, name):
                raise invalid(f"{name} names nobody", f'write {name} = ["keys/prover.pub"]')
        if self.layers > (count := len(set(self.rebuilders))):
            what = f"layers asks for {self.layers} rebuilders, and {count} are named"
            raise invalid(what, 'write rebuilders = ["keys/ci.pub", "keys/ours.pub"]')
        return self


class Settings(FileModel):
    """The settings that are not one image's."""

    registry: Repository | None = None
    """HOST/PATH of the one repository that images go to; None keeps them on the engine."""
    engine: Engine = "auto"
    """"machine" (the one the machine has), "private" (our own) or "auto" (the first there is)."""
    debian_mirror: WebAddress | None = None
    """The address of a mirror of Debian; None takes the one of the host's apt, or Debian's own."""
    debian_snapshot: WebAddress | None = None
    """That of an archive that keeps every version, for one that the mirror no longer has; None
    takes Debian's own."""
    cloud: CloudSettings = CloudSettings()
    trust: TrustSettings = TrustSettings()

    @property
    def repository(self) -> str:
        """The name before the colon of every image reference."""
        return self.registry or LOCAL_REPOSITORY

    def table(self, name: str, model: type[Table]) -> Table:
        """Return the table of a backend for jobs; its defaults for settings that were not read."""
        written = getattr(self, name, None)
        return written if isinstance(written, model) else model()


@cache
def _model(kinds: tuple[BackendKind, ...]) -> type[Settings]:
    defaults = {kind.table: kind.settings() for kind in kinds if kind.settings is not None}
    tables: dict[str, Any] = {name: (type(value), value) for name, value in defaults.items()}
    return create_model("Settings", __base__=Settings, **tables)


def _tables(model: type[Settings]) -> dict[str, type[FileModel]]:
    annotations = {name: field.annotation for name, field in model.model_fields.items()}
    return {
        name: annotation
        for name, annotation in annotations.items()
        if isinstance(annotation, type) and issubclass(annotation, FileModel)
    }


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuilderToml(Document):
    mapping: str = "a table"
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    """Where a value is from, if not from the file."""
    model: type[Settings] = Settings
    """What its tables are checked against."""

    @classmethod
    def read(cls, root: Path) -> BuilderToml:
        """Return the file; nothing where there is none. Raises InputError for other text."""
        path = root / MARKER
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        try:
            return cls(files.parsed(tomllib.loads, text), _lines(text))
        except ValueError as error:
            at = re.search(r"at line (\d+)", str(error))  # else it is "at end of document"
            place = f"{MARKER}:{at[1] if at else len(text.splitlines()) or 1}"
            raise InputError(
                f"{place}: not TOML: {error}", 'write one setting a line: name = "value"'
            ) from None

    def table(self, *path: str | int) -> BuilderToml:
        start = len(path)
        below = {key[start:]: line for key, line in self.lines.items() if key[:start] == path}
        return dataclasses.replace(self, lines=below)

    def override(self, environ: Mapping[str, str], tables: Mapping[str, Flags]) -> None:
        """Put the values of variables, and above them those of flags, in place of the file's."""
        for name in _texts(self.model):
            table, _, key = name.rpartition(".")
            variable, flag = PREFIX + name.upper().replace(".", "_"), tables.get(table, {}).get(key)
            value = environ.get(variable) if flag is None else flag
            target = self.value.setdefault(table, {}) if table else self.value
            if value and isinstance(target, dict):
                target[key] = value
                self.sources[name] = variable if flag is None else f"--{key.replace('_', '-')}"

    def mistaken(self, mistakes: list[Mistake]) -> InputError:
        """Return the error of these mistakes; one of a flag or a variable comes first, alone."""
        for mistake in mistakes:
            if source := self.sources.get(mistake.field):
                return InputError(f"{source}: {mistake.what}", mistake.fix)
        return filemodel.error(MARKER, mistakes)

    def written(self, key: str, example: str) -> str:
        if key == "trigger":
            return "[[cloud.trigger]]"
        if example.startswith("["):
            return f'{key} = ["{example[1:-1]}"]'
        return f"[{key}]" if key in _tables(self.model) else f'{key} = "{example or "..."}"'


def _lines(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line (from 1) of each table and each key, by its path."""
    lines: dict[tuple[str | int, ...], int] = {}
    tables: Counter[tuple[str | int, ...]] = Counter()
    header: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*(\[\[?)\s*([\w.\s-]+?)\s*\]", line):
            header = tuple(re.split(r"\s*\.\s*", match[2]))
            lines.setdefault(header, number)
            if match[1] == "[[":
                tables[header] += 1
                header = (*header, tables[header] - 1)
                lines[header] = number
        elif match := re.match(r"""\s*["']?([\w.-]+)["']?\s*=""", line):
            lines.setdefault((*header, *match[1].split(".")), number)
    return lines


def load(
    root: Path,
    *,
    environ: Mapping[str, str] | None = None,
    tables: Mapping[str, Flags] | None = None,
    **flags: str | None,
) -> Settings:
    """Return the settings of the project at `root`.

    flags: those of the command line, by the names of settings; one that is None was not given.
    tables: those of a table, such as {"cloud": {"region": "us-central1"}}. Raises InputError that
    names where each bad value came from.
    """
    file = BuilderToml.read(root)
    model = _model(backends.ours())
    if not {*file.value, *(tables or ())} <= {*model.file_keys()}:
        model = _model(backends.every())
    file = dataclasses.replace(file, model=model)
    file.override(os.environ if environ is None else environ, {"": flags, **(tables or {})})
    try:
        settings = model.model_validate(file.value)
    except ValidationError as error:
        raise file.mistaken(filemodel.mistakes(file, error.errors(), model)) from None
    return settings.model_copy(update={"trust": _with_paths(root, settings.trust, file)})


def load_cloud(
    root: Path, *, environ: Mapping[str, str] | None = None, **flags: str | None
) -> CloudSettings:
    """Return the settings for Cloud Build. flags: those of the table [cloud]. Raises InputError."""
    return load(root, environ=environ, tables={"cloud": flags}).cloud


def _texts(model: type[Settings]) -> Iterator[str]:
    """Yield the name of each setting that is one text: `registry`, `cloud.region`."""
    lists, tables = ("triggers", "prove", "on_gpu", "layers", "rebuilders"), _tables(model)
    for name in model.model_fields:
        keys = tables[name].model_fields if name in tables else ()
        yield from (f"{name}.{key}" for key in keys if key not in lists)
        if name not in tables:
            yield name


# --- keys -----------------------------------------------------------------------------------------


def _with_paths(root: Path, trust: TrustSettings, file: BuilderToml) -> TrustSettings:
    """Return the table with whole paths. One in builder.toml counts from the project; a key that a
    flag or a variable names counts from the working directory."""

    def whole(name: str) -> str:
        return str(root / Path(name).expanduser())

    changes: dict[str, Any] = {
        name: tuple(whole(one) if isinstance(one, str) else one for one in getattr(trust, name))
        for name in ("prove", "on_gpu", "rebuilders")
    }
    for name in ("trusted_root", "signing_config"):
        if value := getattr(trust, name):
            changes[name] = whole(value)
    if trust.key and trust.key != KEYLESS:
        source = file.sources.get("trust.key")
        path = (Path() if source else root) / Path(trust.key).expanduser()
        place = source or f"{MARKER}:{file.line('trust', 'key')}: trust.key"
        changes["key"] = str(outside(root, path, place))
    return trust.model_copy(update=changes)


def outside(root: Path, path: Path, place: str) -> Path:
    """Return the path of a private key. Raises InputError for one inside of the project.

    place: where it was written, for the error.
    """
    if path.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"{place}: {path} is a private key inside of the project",
            "keep it outside of the project, where no commit, image or upload takes it along",
        )
    return path
