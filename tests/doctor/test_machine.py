"""`builder doctor` on machines of every kind: each finding has its remedy, none is a traceback."""

import errno
import os
from collections import namedtuple
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from inline_snapshot import snapshot

from builder.core.docker_sdk import NoEngine
from builder.core.errors import OutsideError
from builder.core.findings import DoctorFinding, examine
from builder.core.settings import Settings
from builder.doctor import machine
from builder.engine import Engine, docker
from tests.conftest import Run
from tests.doctor.conftest import severities
from tests.emulators.answers import serving
from tests.shown import shown

Space = namedtuple("Space", "total used free")


def engine(**changes: Any) -> Engine:
    """An engine that everything is right with."""
    right: dict[str, Any] = {
        "origin": "machine",
        "host": "unix:///var/run/docker.sock",
        "version": "28.5.2",
        "buildx": ("docker", "buildx"),
        "buildx_version": "0.29.1",
        "containerd_store": True,
        "data": Path("/"),
    }
    return Engine(**right | changes)


def examined(
    monkeypatch: pytest.MonkeyPatch, answer: Engine | OutsideError
) -> dict[str, DoctorFinding]:
    """Return the findings by name where this engine answers, or this refusal does."""
    refusal = {"side_effect": answer} if isinstance(answer, OutsideError) else {}
    connect = Mock(return_value=answer, **refusal)
    monkeypatch.setattr(machine, "connect", connect)
    findings = examine(machine.Machine(Settings()))
    assert all(call.kwargs == {"start": False} for call in connect.call_args_list)
    return {finding.name: finding for finding in findings}


@pytest.mark.parametrize(
    ("changes", "severities_of", "words"),
    [
        ({}, {"engine": "ok", "buildx": "ok", "platform": "ok"}, {}),
        (  # Debian 12's
            {"version": "20.10.24+dfsg1", "buildx_version": "", "containerd_store": False},
            {"engine": "ok", "buildx": "warning"},
            {"buildx": "install"},
        ),
        (
            {"product": "Podman", "version": "5.4.2", "architecture": "arm64", "rootless": True},
            {"engine": "ok", "buildx": "warning", "platform": "warning"},
            {"engine": "Podman 5.4.2, this machine's own, without root", "platform": "emulated"},
        ),
        ({"host": "tcp://far:2375"}, {"disk": "warning"}, {"disk": "not visible from here"}),
    ],
)
def test_engines_of_every_kind(
    changes: dict[str, Any],
    severities_of: dict[str, str],
    words: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    findings = examined(monkeypatch, engine(**changes))
    assert severities(findings).items() >= severities_of.items()
    for name, text in words.items():
        assert text in f"{findings[name].message} {findings[name].remedy}"
    assert all(finding.remedy for finding in findings.values() if finding.severity == "error")


def test_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "connect", lambda *_, **__: engine(buildx_version=""))
    monkeypatch.setattr(machine.network, "discover", Mock(side_effect=OutsideError("no CA", "x")))
    monkeypatch.setattr(
        docker.shutil, "disk_usage", lambda _: Space(10**11, 6 * 10**10, 4 * 10**10)
    )
    assert shown(run("doctor")) == snapshot("""\
ok       engine: Docker 28.5.2, this machine's own, at unix:///var/run/docker.sock
warning  buildx: `docker buildx` does not work: Docker 28.5.2 at
.. unix:///var/run/docker.sock runs images, but does not build this Dockerfile
         install docker-buildx (Debian 13) or docker-buildx-plugin (Docker's own
.. packages)
ok       platform: linux/amd64
ok       disk: 40 GB free at /; a CUDA image needs 25
warning  registry: none is set: images stay on the engine
         write registry = "HOST/PATH" in builder.toml, or use --registry
error    network: no CA
         x
| error: 1 errors prevent the work
| fix:   x
exit code 4
""")


def test_data_that_this_user_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied", "/x"))
    monkeypatch.setattr(docker.shutil, "disk_usage", refused)
    disk = examined(monkeypatch, engine(data=Path("/var/lib/docker")))["disk"]
    assert disk.severity == "warning" and "/var/lib/docker" in disk.message and disk.remedy


def test_what_the_engine_or_the_system_refuses_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = NoEngine("no Docker engine at /x; the private engine does not run", "x")
    for user, severity, remedy in (
        (0, "warning", "to start it"),
        (1000, "error", "install Docker"),
    ):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        finding = examined(monkeypatch, none)["engine"]
        assert finding.severity == severity and finding.remedy.startswith(remedy)
    why = OutsideError("the engine does not answer: denied", "let this user reach it")
    finding = examined(monkeypatch, why)["engine"]
    assert (finding.severity, finding.message, finding.remedy) == ("error", why.message, why.fix)
    refused = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied", "/etc/thing"))
    monkeypatch.setattr(machine.network, "discover", refused)
    finding = examined(monkeypatch, engine())["network"]
    assert (finding.severity, finding.message) == ("error", "/etc/thing: Permission denied")
    assert finding.remedy.startswith("let this user")


def test_a_malformed_index_and_a_registry_that_redirects_in_a_circle_are_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "connect", lambda *_, **__: engine())
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://bob:pw@[::1/simple")
    circle = "/v2/x/manifests/latest"
    with serving({circle: (302, {"Location": circle}, b"")}) as server:
        settings = Settings(registry=f"127.0.0.1:{server.server_port}/x")
        findings = {finding.name: finding for finding in examine(machine.Machine(settings))}
    network, registry = findings["network"], findings["registry"]
    assert network.severity == registry.severity == "error" and network.remedy and registry.remedy
    assert network.message == "the Python index http://***@[::1/simple is no address"
    assert "more than 5 redirects" in registry.message
