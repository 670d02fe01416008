"""What steps get of this machine beyond what the hosted service would give them."""

from __future__ import annotations

import json
import re

from builder import registry
from builder.cloudbuild.reader import substitutions
from builder.cloudbuild.runner.metadata import Caller
from builder.cloudbuild.runner.plan import BuildPlan
from builder.cloudbuild.runner.sandbox import Host
from builder.core.errors import InputError

_HOST = re.compile(r"(?<![\w./-])((?:[a-z0-9-]+\.)+[a-z0-9-]+(?::\d+)?|localhost(?::\d+)?)/")


def host_access(
    network: bool, configuration: bool, logins: bytes = b"", caller: Caller | None = None
) -> Host:
    """The Host of `--host-network`, `--host-configuration`, `--logins` and `--metadata`.

    Raises InputError for a CA bundle that cannot be read, and for a metadata server that could not
    tell who asks it.
    """
    from builder.core.network import discover

    if network and caller:
        raise InputError(
            "--metadata and --host-network exclude each other: on this machine's network, every "
            "program could ask for the token",
            "leave one out",
        )
    return Host(network, discover().secrets() if configuration else {}, logins, caller)


def logins(plan: BuildPlan) -> tuple[tuple[str, ...], bytes]:
    """The registries that a build names and that this machine is logged in to, and a configuration
    of the docker command with these logins only.

    Raises InputError or OutsideError for a broken configuration or credential helper.
    """
    texts = [text for _, text in substitutions.templates(plan.build)]
    texts += [step.script for step in plan.build.steps]
    hosts = sorted({host for text in texts for host in _HOST.findall(text)})
    auths: dict[str, dict[str, str]] = {}
    for host in hosts:
        if known := registry.credentials_for(host):
            auths[host] = known.for_config()
    return tuple(auths), json.dumps({"auths": auths}).encode() if auths else b""
