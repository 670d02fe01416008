"""The credentials that docker keeps for registries, in its configuration or a helper."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.core import files, web
from builder.core.errors import InputError, OutsideError
from builder.registry.names import login_command


@dataclass(frozen=True)
class Credentials:
    """What docker knows for a host. `source`: the file or helper. `repr` shows no secrets."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    source: str = ""

    @property
    def basic(self) -> str:
        return web.basic(self.username, self.password)

    def for_engine(self) -> dict[str, str]:
        if self.identity_token:
            return {"identitytoken": self.identity_token}
        return {"username": self.username, "password": self.password}


def credentials_for(host: str, environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return what docker would send to HOST; None where it knows nothing.

    Raises InputError for a broken file, OutsideError for a broken helper.
    """
    from docker import auth
    from docker.credentials import StoreError
    from docker.errors import DockerException

    path = docker_config(environ)
    try:
        warnings.filterwarnings("ignore", "docker-credential-")  # its error says the same
        content = {"auths": {}, **files.parsed(json.loads, path.read_bytes())}
        config = auth.load_config(config_dict=content)
        helper = config.get_credential_store(host)
        entry = config.resolve_authconfig(host) or {}
    except FileNotFoundError:
        return None
    except (DockerException, StoreError) as error:
        raise OutsideError(f"{host}: {path}: {error}", f"run: {login_command(host)}") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        fix = f"repair it, or move it away and run: {login_command(host)}"
        raise InputError(f"{path}: cannot be read: {error}", fix) from None
    from_helper = "ServerAddress" in entry  # a store may lack what the file has
    known = Credentials(
        username=entry.get("Username" if from_helper else "username") or "",
        password=entry.get("Password" if from_helper else "password") or "",
        identity_token=entry.get("IdentityToken") or "",
        source=f"docker-credential-{helper}" if from_helper else str(path),
    )
    # docker leaves empty entries where a store holds the secret
    return known if known.username or known.identity_token else None


def docker_config(environ: Mapping[str, str] = os.environ) -> Path:
    """Return docker's configuration file: in `$DOCKER_CONFIG`, else in `~/.docker`."""
    folder = environ.get("DOCKER_CONFIG")
    home = environ.get("HOME")
    return (Path(folder) if folder else Path(home or Path.home()) / ".docker") / "config.json"
