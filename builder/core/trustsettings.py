"""The table [trust] of builder.toml: whose statements count, and what a push signs with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from builder.core.errors import InputError
from builder.core.project import MARKER
from builder.core.projectfile import PREFIX, ProjectFile, layered

TRUST: Final = "trust"
"""The table of builder.toml that says whose statements about an image count."""

CLOUD_KEY: Final = "gcpkms://"
"""How the name of a key in Google Cloud KMS begins, as cosign writes it."""

KEYLESS: Final = "keyless"
"""Stands where a key is named: a push signs with its own OIDC identity, through Sigstore."""

SUITES: Final = ("program", "trainer")
"""The suites of checks, the least first."""

_SECONDS: Final = {"hour": 3600.0, "day": 86400.0, "week": 604800.0}
_AGE: Final = re.compile(r"(\d+) (hour|day|week)s?")
_LIST: Final = (
    '["keys/prover.pub"], or [{ identity = "ci@example.com", issuer = "https://accounts.google.com"'
    " }]"
)


@dataclass(frozen=True)
class NamedIdentity:
    """Whoever signs without a key: an OIDC identity, and the issuer that vouches for it.

    identity: as a certificate of Sigstore names it: an e-mail address, or the address of a workflow
    (https://github.com/O/R/.github/workflows/W.yml@refs/heads/main).
    """

    identity: str
    issuer: str


@dataclass(frozen=True)
class TrustSettings:
    """The table [trust]. A key is the path of a file, or gcpkms://... in Google Cloud KMS.

    key: the private key that a push signs with, or KEYLESS; None signs nothing. prove: those whose
    receipts count, by public key or identity; none asks for no signature. build: those whose bases
    count; none takes those of `prove`. suite: the least suite of checks; "" takes any. age: seconds
    since the proof, at most; None for any age. trusted_root, signing_config: the files that say
    which Sigstore is trusted and which one signs; None takes Sigstore's public one.
    """

    key: str | None = None
    prove: tuple[str | NamedIdentity, ...] = ()
    build: tuple[str | NamedIdentity, ...] = ()
    suite: str = ""
    age: float | None = None
    trusted_root: str | None = None
    signing_config: str | None = None


def read(
    root: Path, file: ProjectFile, environ: Mapping[str, str] | None, key: str | None
) -> TrustSettings:
    """The table, with BUILDER_TRUST_KEY and the flag `key` above it.

    Raises InputError for a value of another shape, and for a private key inside the project.
    """
    table = file.table(TRUST)
    places = ("trusted_root", "signing_config")
    written = file.texts(("key", "suite", "age", *places), TRUST, tables=("prove", "build"))
    chosen = layered(
        {name: one for name, one in written.items() if name == "key"},
        ("key",),
        f"{PREFIX}{TRUST.upper()}_",
        environ,
        {"key": key},
    )
    prove = _signers(root, file, "prove", table)
    for name in ("build", "suite", "age"):
        if name in table and not prove:
            raise InputError(
                f"{file.place(name, TRUST)}: nothing is judged without the keys that count",
                'write prove = ["keys/prover.pub"] beside it',
            )
    return TrustSettings(
        key=private_key(root, *chosen["key"]) if "key" in chosen else None,
        prove=prove,
        build=_signers(root, file, "build", table),
        suite=_suite(*written["suite"]) if "suite" in written else "",
        age=_age(*written["age"]) if "age" in written else None,
        **{name: str(_path(root, written[name][0])) for name in places if name in written},
    )


def private_key(root: Path, name: str, where: str) -> str:
    """The signing key's name. A path in builder.toml counts from the project, any other from here.

    where: where it was written. Raises InputError for a file inside of the project.
    """
    if name.startswith(CLOUD_KEY) or name == KEYLESS:
        return name
    path = _path(root if where.startswith(MARKER) else Path(), name)
    if path.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"{where}: {name} is a private key inside of the project",
            "move it out of the project, where no commit, image or upload takes it along",
        )
    return str(path)


def _path(base: Path, name: str) -> Path:
    return base / Path(name).expanduser()


def _signers(
    root: Path, file: ProjectFile, name: str, table: Mapping[str, Any]
) -> tuple[str | NamedIdentity, ...]:
    """The public keys and identities under a name; a path counts from the project."""
    value = table.get(name, [])
    found = [_signer(root, one) for one in value] if isinstance(value, list) else [None]
    if None in found:
        raise InputError(
            f"{file.place(name, TRUST)}: expected a list of keys or identities, found {value!r}",
            f"write {name} = {_LIST}",
        )
    return tuple(one for one in found if one)


def _signer(root: Path, value: object) -> str | NamedIdentity | None:
    """A public key or an identity; None for anything else."""
    if isinstance(value, dict):
        texts = all(isinstance(one, str) and one for one in value.values())
        known = value.keys() == {"identity", "issuer"}
        return NamedIdentity(**value) if texts and known else None
    if not isinstance(value, str) or not value:
        return None
    return value if value.startswith(CLOUD_KEY) else str(_path(root, value))


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
