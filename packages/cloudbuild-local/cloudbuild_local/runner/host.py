"""What the options of a call say about this machine, and what steps get of it."""

import json
import os
import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from cloudbuild_local.errors import InputError
from cloudbuild_local.reader import substitutions
from cloudbuild_local.runner import source
from cloudbuild_local.runner.engine import login
from cloudbuild_local.runner.plan import BuildPlan
from cloudbuild_local.runner.sandbox import Host

_REGISTRY = re.compile(
    r"(?<![\w./-])((?:[a-z0-9-]+\.)+[a-z0-9-]+(?::\d+)?|localhost(?::\d+)?)/[a-z0-9]"
)
_PROJECT_VARIABLES = ("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT")


def built_in(folder: Path, project: str | None, region: str) -> dict[str, str]:
    """Return the values of the built-in substitutions. folder: of the source, maybe with git."""
    known = next((os.environ[name] for name in _PROJECT_VARIABLES if os.environ.get(name)), None)
    return {
        **source.commit(folder),
        "PROJECT_ID": project or known or "local-project",
        "PROJECT_NUMBER": "0",
        "LOCATION": region,
    }


def stand_ins(options: tuple[str, ...]) -> dict[str, str]:
    """Return the images of `--map IMAGE=LOCAL`. Raises InputError."""
    images = {}
    for text in options:
        name, _, local = text.partition("=")
        if not (name and local):
            raise InputError(f"--map: {text!r} is not IMAGE=LOCAL", "for example ubuntu=debian")
        images[name] = local
    return images


def secrets(options: tuple[str, ...]) -> dict[str, str]:
    """Return the values of `--secret NAME` and `--secret NAME=FILE`. Raises InputError."""
    values = {}
    for text in options:
        name, equals, file = text.partition("=")
        if equals:
            values[name] = _content(f"--secret {name}", Path(file)).removesuffix("\n")
        elif name in os.environ:
            values[name] = os.environ[name]
        else:
            what = f"--secret {name}: this shell has no variable {name}"
            raise InputError(what, f"--secret {name}=FILE")
    return values


def _content(option: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{option}: {file} cannot be read: {reason}", "name a text file") from None


def access(
    plan: BuildPlan,
    host_network: bool,
    run_secrets: Path | None,
    with_logins: bool,
    say: Callable[[str], None],
) -> Host:
    """Return what the steps get of this machine. say: takes a line about whose logins they get.

    Raises InputError or OutsideError.
    """
    files, configuration = {}, b""
    if run_secrets:
        for path in filter(Path.is_file, run_secrets.iterdir()):
            files[path.name] = _content("--run-secrets", path).encode()
    if with_logins:
        names, configuration = logins(plan)
        say(f"logins for the steps: {', '.join(names) or 'none, the build names no known host'}")
    return Host(host_network, files, configuration)


def logins(plan: BuildPlan) -> tuple[tuple[str, ...], bytes]:
    """Return the registries that a build names and that this machine is logged in to, and a
    configuration of the docker command with these logins only.

    Raises OutsideError for a broken configuration or credential helper.
    """
    texts = [text for _, text in substitutions.texts(plan.file.value)]
    texts += [text for planned in plan.steps for text in (planned.step.script, planned.step.name)]
    hosts = sorted({host for text in texts for host in _REGISTRY.findall(text)})
    auths: dict[str, dict[str, str]] = {}
    for host in hosts:
        known = {key.lower(): value for key, value in login(f"{host}/any").items() if value}
        if "identitytoken" in known:
            auths[host] = {"identitytoken": known["identitytoken"]}
        elif "username" in known:
            text = f"{known['username']}:{known['password']}"
            auths[host] = {"auth": b64encode(text.encode()).decode()}
    return tuple(auths), json.dumps({"auths": auths}).encode() if auths else b""
