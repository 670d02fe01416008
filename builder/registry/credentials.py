"""The credentials that docker keeps for registries, read from its files and its helpers."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from builder.core import web
from builder.core.errors import InputError, OutsideError
from builder.registry.names import DOCKER_HUB, login_command

DOCKER_HUB_LOGIN: Final = "https://index.docker.io/v1/"
"""The key under which docker keeps the credentials of Docker Hub."""


@dataclass(frozen=True)
class Credentials:
    """What docker knows for a host. `source`: the file or helper. `repr` shows no secrets."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    source: str = ""

    @property
    def basic(self) -> str:
        """Username and password in base64, for HTTP and for docker's configuration."""
        return web.basic(self.username, self.password)

    def for_engine(self) -> dict[str, str]:
        """Return the form that the engine's API takes."""
        return self._token() or {"username": self.username, "password": self.password}

    def for_config(self) -> dict[str, str]:
        """Return the form that `auths` of docker's configuration file takes."""
        return self._token() or {"auth": self.basic}

    def _token(self) -> dict[str, str]:
        if self.registry_token:
            return {"registrytoken": self.registry_token}
        return {"identitytoken": self.identity_token} if self.identity_token else {}


def credentials_for(host: str, environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return what docker would send to HOST; None where it knows nothing.

    The order is docker's: a helper for the host (`credHelpers`), else the store for all hosts
    (`credsStore`), else `auths` of the file. Raises InputError for a broken file, OutsideError for
    a broken helper.
    """
    path = docker_config(environ)
    config = _read(path)
    key = DOCKER_HUB_LOGIN if host == DOCKER_HUB else host
    helper = _object(config, "credHelpers", path).get(key) or config.get("credsStore")
    if helper:
        return _from_helper(str(helper), key, path, environ)
    auths = _object(config, "auths", path)
    names = [key] if key in auths else [name for name in auths if _hostname(name) == _hostname(key)]
    return _from_auth(_object(auths, names[0], path), names[0], path) if names else None


def docker_config(environ: Mapping[str, str] = os.environ) -> Path:
    """Return docker's configuration file: in `$DOCKER_CONFIG`, else in `~/.docker`."""
    folder = environ.get("DOCKER_CONFIG")
    home = environ.get("HOME")
    return (Path(folder) if folder else Path(home or Path.home()) / ".docker") / "config.json"


def _read(path: Path) -> dict[str, Any]:
    """Return docker's configuration; empty where there is no file. Raises InputError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", "make it readable for you"
        ) from None
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(
            f"{path}{line}: not JSON: {error}", "repair it, or move it away and log in again"
        ) from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object", "move it away and log in again")
    return config


def _object(value: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    """Return the JSON object under a name; empty where there is none. Raises InputError."""
    content = value.get(name) or {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: {name}: not a JSON object", "move it away and log in again")
    return content


def _hostname(key: str) -> str:
    """Return the host of a key: older versions of docker wrote `https://HOST/v2/`."""
    return re.sub(r"^https?://", "", key).split("/")[0]


def _host_of(key: str) -> str:
    return DOCKER_HUB if key == DOCKER_HUB_LOGIN else _hostname(key)


def _from_auth(auth: Mapping[str, Any], key: str, path: Path) -> Credentials | None:
    for name in ("username", "password", "auth", "identitytoken", "registrytoken"):
        if not isinstance(auth.get(name, ""), str):
            raise InputError(
                f"{path}: auths.{key}.{name}: not a text", f"run: {login_command(_host_of(key))}"
            )
    username, password = auth.get("username", ""), auth.get("password", "")
    if coded := auth.get("auth"):
        try:
            username, _, password = base64.b64decode(coded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, TypeError):
            raise InputError(
                f"{path}: auths.{key}.auth is not base64", f"run: {login_command(_host_of(key))}"
            ) from None
    known = Credentials(
        username=username,
        password=password.rstrip("\0"),
        identity_token=auth.get("identitytoken", ""),
        registry_token=auth.get("registrytoken", ""),
        source=str(path),
    )
    # docker leaves empty entries where a store holds the secret
    return known if known.username or known.identity_token or known.registry_token else None


def _from_helper(name: str, key: str, path: Path, environ: Mapping[str, str]) -> Credentials | None:
    program, host = f"docker-credential-{name}", _host_of(key)
    by_hand = f"try by hand: echo {key} | {program} get"
    try:
        done = subprocess.run(
            [program, "get"],
            input=key,
            capture_output=True,
            text=True,
            timeout=60,
            env=dict(environ),
            check=False,
        )
    except OSError:
        raise OutsideError(
            f"{host}: {path} names the credential helper {program}, which is not on the PATH",
            f"install {program}, or take its line out of {path} and log in again",
        ) from None
    except subprocess.TimeoutExpired:
        raise OutsideError(f"{host}: {program} gave no answer in 60 s", by_hand) from None
    if done.returncode:
        lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
        if any("credentials not found" in line for line in lines):
            return None
        raise OutsideError(
            f"{host}: {program} failed: {lines[-1] if lines else f'exit {done.returncode}'}",
            f"run: {login_command(host)}",
        )
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    except (ValueError, AttributeError):
        raise OutsideError(f"{host}: {program} answered no JSON object", by_hand) from None
    if not username and not secret:
        return None
    if username == "<token>":
        return Credentials(identity_token=secret, source=program)
    return Credentials(username=username, password=secret, source=program)
